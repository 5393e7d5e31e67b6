//! When the replay socket is asked during a silence.
//!
//! A batch can be lost without a sign when nothing follows it: the publisher dropped it, or an answer of the
//! ring was cut short in the same place twice. So the ring is asked soon after the last batch, and again
//! later. What the connection carries afterwards is in order, and a full queue at the publisher would bring
//! batches first: each answer without news makes it less likely that the next one has any. While heartbeats
//! prove that the engine is there, pauses therefore grow.

use std::time::Duration;

use super::Options;

/// How often the pause between two questions doubles.
const DOUBLINGS: u32 = 2;

/// Bits of a random number that shorten a pause.
const FINENESS: u32 = 16;

/// The questions of one silence.
#[derive(Debug)]
pub(super) struct Quiet {
    first: Duration,
    every: Duration,
    next: Option<Duration>,
    /// Questions of this silence so far.
    questions: u32,
    /// The engine was proven to be there since the last of them.
    proven: bool,
    /// Where the random numbers are; zero: there are none.
    random: u64,
}

impl Quiet {
    pub(super) fn new(options: &Options) -> Self {
        let (first, every, random) = (options.quiet_first, options.quiet_every, options.spread);
        Self { first, every, next: None, questions: 0, proven: false, random }
    }

    /// When the next question is due; `None` while there is nothing to ask.
    pub(super) fn due(&self) -> Option<Duration> {
        self.next
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.next.is_some_and(|at| now >= at)
    }

    /// The stream follows, and a batch came or may have come: a silence may begin.
    pub(super) fn begin(&mut self, now: Duration) {
        self.questions = 0;
        let pause = self.spread(self.first);
        self.next = Some(now + pause);
    }

    /// The stream does not follow: it is asked for other reasons.
    pub(super) fn stop(&mut self) {
        self.next = None;
    }

    /// The engine was proven to be there, over the connection that brings its batches.
    pub(super) fn proven(&mut self) {
        self.proven = true;
    }

    /// A question was asked.
    pub(super) fn asked(&mut self, now: Duration) {
        let doublings = if std::mem::take(&mut self.proven) { self.questions.min(DOUBLINGS) } else { 0 };
        self.questions += 1;
        let pause = self.spread(self.every * (1 << doublings));
        self.next = Some(now + pause);
    }

    /// The last question was not answered: the next comes after this pause, and those behind it as at first.
    pub(super) fn postpone(&mut self, now: Duration, pause: Duration) {
        self.questions = 0;
        self.next = Some(now + pause);
    }

    /// Up to a quarter less.
    fn spread(&mut self, pause: Duration) -> Duration {
        if self.random == 0 {
            return pause;
        }
        // xorshift: never zero again.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = (self.random >> (64 - FINENESS)) as u32;
        pause.saturating_sub(pause / 4 * share / (1 << FINENESS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn quiet(spread: u64) -> Quiet {
        Quiet::new(&Options { spread, ..Options::default() })
    }

    /// Pauses before five questions of a silence.
    fn pauses(quiet: &mut Quiet, proven: bool) -> [Duration; 5] {
        let mut now = seconds(100);
        quiet.begin(now);
        std::array::from_fn(|_| {
            let at = quiet.due().unwrap();
            assert!(!quiet.is_due(now) && quiet.is_due(at));
            let pause = at.saturating_sub(std::mem::replace(&mut now, at));
            if proven {
                quiet.proven();
            }
            quiet.asked(now);
            pause
        })
    }

    #[test]
    fn pauses_grow_while_the_engine_is_proven_to_be_there() {
        let mut calm = quiet(0);
        let growing = [1, 30, 60, 120, 120].map(seconds);
        assert_eq!(pauses(&mut calm, true), growing);
        assert_eq!(pauses(&mut calm, true), growing, "a batch begins another silence");
        assert_eq!(pauses(&mut calm, false), [1, 30, 30, 30, 30].map(seconds));
    }

    #[test]
    fn a_question_without_an_answer_begins_anew() {
        let mut calm = quiet(0);
        pauses(&mut calm, true);
        calm.postpone(seconds(1_000), seconds(3));
        assert_eq!(calm.due(), Some(seconds(1_003)));
        calm.proven();
        calm.asked(seconds(1_003));
        assert_eq!(calm.due(), Some(seconds(1_033)));
    }

    #[test]
    fn streams_that_fall_silent_together_are_asked_apart() {
        let longest = [1, 30, 60, 120, 120].map(seconds);
        let mut fourths = std::collections::BTreeSet::new();
        for spread in 1..=300_u64 {
            // As good as random, as what streams are given.
            let found = pauses(&mut quiet(spread.wrapping_mul(0x9e37_79b9_7f4a_7c15)), true);
            for (pause, longest) in found.into_iter().zip(longest) {
                assert!(pause <= longest && pause >= longest * 3 / 4, "{pause:?} of {longest:?}");
            }
            fourths.insert(found[3].as_millis() / 1_000);
        }
        assert!(fourths.len() > 25, "within {} different seconds", fourths.len());
    }
}
