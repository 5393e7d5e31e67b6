//! Heartbeats of one connection: when to PING, and what an answer proves.
//!
//! A PONG that brings back the context of PING n proves that the peer was there after PING n was **sent**: so
//! that moment is what counts, however late the answer is read. Some peers answer without a context (libzmq
//! before 4.3): their answers are matched in order, with one PING under way at a time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use kvplane_core::jitter;

use crate::zmtp::command::PingContext;
use crate::zmtp::session::Session;

/// PINGs under way. A peer that answers none of them is not asked more often.
const UNANSWERED_MAX: usize = 16;

/// Moments of an interval at which PINGs are sent. Connections of a thread share them, so that their answers
/// come together and are read in few turns: each wake-up costs more than the PONG that it is for.
const MOMENTS: u32 = 2;

/// How often to PING and how long to wait; see [`Subscription`](crate::Subscription).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
}

/// The heartbeats of one connection.
#[derive(Debug)]
pub(crate) struct Heart {
    pace: Pace,
    next: Instant,
    counter: u64,
    /// Counters and when they were sent; the oldest first.
    unanswered: VecDeque<(u64, Instant)>,
    /// The peer answers PINGs: from then on nothing else is a proof.
    answers: bool,
    /// It does so without their context.
    without_context: bool,
    /// The first PING after the last sign of life.
    unheard_since: Option<Instant>,
}

impl Heart {
    /// Begins when the handshake is complete. PINGs are sent at one of the moments that the thread's
    /// connections share, counted from `began`; which one is random, so that connections that were opened
    /// together are spread over them.
    pub(crate) fn new(pace: Pace, began: Instant, now: Instant) -> Self {
        Self {
            pace,
            next: first_beat(pace.interval, began, now),
            counter: 0,
            unanswered: VecDeque::new(),
            answers: false,
            without_context: false,
            unheard_since: None,
        }
    }

    /// Queues a PING if one is due; true when there is something to send.
    pub(crate) fn beat(&mut self, session: &mut Session, now: Instant) -> bool {
        if !self.is_due(now) {
            return false;
        }
        // In tenths of a second, rounded up.
        let ttl = u16::try_from(self.pace.timeout.as_millis().div_ceil(100)).unwrap_or(u16::MAX);
        self.counter += 1;
        if !session.ping(ttl, &PingContext::counter(self.counter)) {
            return false;
        }
        self.unanswered.push_back((self.counter, now));
        self.unheard_since.get_or_insert(now);
        // On the grid that it began with; after a stall, from now on.
        self.next += self.pace.interval;
        if self.next <= now {
            self.next = now + self.pace.interval;
        }
        true
    }

    /// Whether [`Self::beat`] has something to do at this moment.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.may_ask() && now >= self.next
    }

    /// Whether another PING may be under way.
    fn may_ask(&self) -> bool {
        let most = if self.without_context { 1 } else { UNANSWERED_MAX };
        !self.pace.interval.is_zero() && self.unanswered.len() < most
    }

    /// When [`Self::beat`] or [`Self::silence`] has something to say next, if nothing comes before.
    pub(crate) fn due(&self, heard_at: Instant) -> Option<Instant> {
        let silent = |asked: Instant| (heard_at + self.pace.timeout).max(asked + self.pace.timeout / 2);
        self.may_ask().then_some(self.next).into_iter().chain(self.unheard_since.map(silent)).min()
    }

    /// Bytes came.
    pub(crate) fn heard(&mut self) {
        self.unheard_since = None;
    }

    /// A PONG came: the moment at which the peer is known to have been there, if it answers one of our PINGs.
    pub(crate) fn pong(&mut self, context: &PingContext) -> Option<Instant> {
        let position = if context.as_bytes().is_empty() {
            self.without_context = true;
            (!self.unanswered.is_empty()).then_some(0)
        } else {
            let counter = context.as_counter()?;
            self.unanswered.iter().position(|(sent, _)| *sent == counter)
        };
        let (_, sent_at) = self.unanswered.drain(..=position?).next_back()?;
        self.answers = true;
        Some(sent_at)
    }

    /// Whether frames are a proof: only while no PING was ever answered.
    pub(crate) fn frames_prove(&self) -> bool {
        !self.answers
    }

    /// How long nothing has come, when that is too long. A PING must have been under way for a good part of
    /// it: a thread that was held up has not asked, and must not conclude anything from silence.
    pub(crate) fn silence(&self, heard_at: Instant, now: Instant) -> Option<Duration> {
        let silence = now.saturating_duration_since(heard_at);
        let asked = now.saturating_duration_since(self.unheard_since?);
        (silence >= self.pace.timeout && asked >= self.pace.timeout / 2).then_some(silence)
    }
}

/// A shared moment within the interval from now on, or the last one before, which is due at once.
fn first_beat(interval: Duration, began: Instant, now: Instant) -> Instant {
    let step = (interval / MOMENTS).max(Duration::from_nanos(1));
    let until = now.saturating_duration_since(began) + jitter(interval);
    let past_step = Duration::from_nanos_u128(until.as_nanos() % step.as_nanos());
    began + until.saturating_sub(past_step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { interval: Duration::from_millis(500), timeout: Duration::from_secs(6) };

    fn session() -> Session {
        let mut session = Session::dealer(0);
        let count = session.out().len();
        session.sent(count);
        session
    }

    #[test]
    fn a_pong_proves_the_moment_of_its_ping_and_of_no_later_one() {
        let (mut session, start) = (session(), kvplane_runtime::now());
        let mut heart = Heart::new(PACE, start, start);
        let at = |millis| start + Duration::from_millis(millis);
        assert!(heart.frames_prove());
        for millis in [500, 1000, 1500] {
            assert!(heart.beat(&mut session, at(millis)));
            assert!(!heart.beat(&mut session, at(millis)), "once per interval");
        }
        assert_eq!(heart.pong(&PingContext::counter(2)), Some(at(1000)));
        assert!(!heart.frames_prove());
        assert_eq!(heart.pong(&PingContext::counter(1)), None, "older than one that was answered");
        assert_eq!(heart.pong(&PingContext::counter(9)), None, "never sent");
        assert_eq!(heart.pong(&PingContext::counter(3)), Some(at(1500)));
        assert_eq!(heart.pong(&PingContext::default()), None, "nothing is under way");
    }

    #[test]
    fn a_pong_without_context_answers_the_oldest_ping() {
        let (mut session, start) = (session(), kvplane_runtime::now());
        let mut heart = Heart::new(PACE, start, start);
        let at = |millis| start + Duration::from_millis(millis);
        assert!(heart.beat(&mut session, at(500)) && heart.beat(&mut session, at(1000)));
        assert_eq!(heart.pong(&PingContext::default()), Some(at(500)));
        assert!(!heart.beat(&mut session, at(1500)), "one at a time from now on");
        assert_eq!(heart.pong(&PingContext::default()), Some(at(1000)));
        assert!(heart.beat(&mut session, at(1500)));
    }

    #[test]
    fn silence_counts_only_with_a_ping_under_way() {
        let (mut session, start) = (session(), kvplane_runtime::now());
        let mut heart = Heart::new(PACE, start, start);
        let at = |millis| start + Duration::from_millis(millis);
        // The thread was held up for a minute: nothing was asked.
        assert_eq!(heart.silence(start, at(60_000)), None);
        assert!(heart.beat(&mut session, at(60_000)));
        assert_eq!(heart.silence(start, at(62_000)), None);
        assert_eq!(heart.silence(start, at(63_000)), Some(Duration::from_secs(63)));
        heart.heard();
        assert_eq!(heart.silence(at(63_000), at(70_000)), None);
    }

    #[test]
    fn whoever_waits_for_the_moment_that_is_due_misses_nothing() {
        let (mut session, start) = (session(), kvplane_runtime::now());
        let mut heart = Heart::new(PACE, start, start);
        let mut beats = 0;
        while let Some(due) = heart.due(start) {
            let before = due.checked_sub(Duration::from_nanos(1)).unwrap();
            assert!(!heart.is_due(before) && heart.silence(start, before).is_none(), "nothing before");
            if heart.silence(start, due).is_some() {
                break;
            }
            assert!(heart.beat(&mut session, due));
            beats += 1;
        }
        assert!(beats >= 11, "{beats} PINGs within the timeout");
    }

    #[test]
    fn a_peer_that_answers_nothing_is_asked_so_often_and_no_more() {
        let (mut session, start) = (session(), kvplane_runtime::now());
        let mut heart = Heart::new(PACE, start, start);
        let beats = (1..100).filter(|n| heart.beat(&mut session, start + PACE.interval * *n)).count();
        assert_eq!(beats, UNANSWERED_MAX);
    }

    #[test]
    fn connections_of_a_thread_share_two_moments_of_an_interval() {
        let began = kvplane_runtime::now();
        let step = PACE.interval / MOMENTS;
        let mut moments = std::collections::BTreeSet::new();
        for opened in 0..200 {
            let now = began + Duration::from_millis(1_000 + opened % 7);
            let next = first_beat(PACE.interval, began, now);
            assert!(next + step > now && next <= now + PACE.interval);
            assert_eq!((next - began).as_nanos() % step.as_nanos(), 0);
            moments.insert((next - began).as_nanos() % PACE.interval.as_nanos());
        }
        assert_eq!(moments.len(), MOMENTS as usize);
    }
}
