//! One endpoint as the router sees it: what is booked there, what it reports, how fast it is.

use crate::load::{Load, LoadSource, Reported};
use crate::rate::Rate;

/// The number of an endpoint in its router. It is reused after the endpoint was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Worker {
    /// Spreads sessions and prefixes: the same in every router.
    pub(crate) identity: u64,
    /// Uncached tokens of bookings before their first token.
    pub(crate) pending_tokens: u64,
    /// Seconds that their prefill takes at the assumed speed, attention included.
    pub(crate) pending_seconds: f64,
    /// Bookings before their first token.
    pub(crate) pending: u32,
    /// Bookings that are not over.
    pub(crate) requests: u32,
    /// KV tokens that bookings read until they are over.
    pub(crate) kv_tokens: u64,
    /// KV tokens that bookings add: what they share is there once.
    pub(crate) kv_new: u64,
    pub(crate) reported: Option<Reported>,
    pub(crate) rate: Rate,
    /// Since when the prompt at the head of the queue is being prefilled.
    pub(crate) since: f64,
    /// Picks while the engine was silent, since its last sign of life.
    pub(crate) silent_picks: u32,
}

impl Worker {
    pub(crate) fn new(identity: u64) -> Self {
        Self {
            identity,
            pending_tokens: 0,
            pending_seconds: 0.0,
            pending: 0,
            requests: 0,
            kv_tokens: 0,
            kv_new: 0,
            reported: None,
            rate: Rate::default(),
            since: 0.0,
            silent_picks: 0,
        }
    }

    /// One prefill less is pending.
    pub(crate) fn prefilled(&mut self, uncached: u64, seconds: f64) {
        self.pending -= 1;
        self.pending_tokens -= uncached;
        // Sums of fractions do not return to nothing by themselves.
        self.pending_seconds =
            if self.pending == 0 { 0.0 } else { (self.pending_seconds - seconds).max(0.0) };
    }

    /// Takes what the engine reports. What of it is booked here is known better, and sooner, from the bookings.
    pub(crate) fn report(&mut self, load: Load, now: f64, until: f64) {
        const USUAL: f64 = 1_024.0;
        let foreign = load.running.saturating_add(load.waiting).saturating_sub(self.requests);
        // What is not told in tokens counts like a usual prompt.
        let foreign_tokens = match load.waiting_tokens {
            Some(tokens) => tokens.saturating_sub(self.pending_tokens) as f64,
            None => f64::from(load.waiting.saturating_sub(self.pending)) * USUAL,
        };
        self.reported = Some(Reported { load, at: now, until, foreign, foreign_tokens });
    }

    /// What the engine reported, while that is fresh.
    pub(crate) fn fresh(&self, now: f64) -> Option<&Reported> {
        self.reported.as_ref().filter(|reported| now <= reported.until)
    }

    /// What its load is known from.
    pub(crate) fn load_source(&self, now: f64) -> LoadSource {
        match self.reported {
            None => LoadSource::Bookings,
            Some(Reported { until, .. }) if now <= until => LoadSource::Reported,
            Some(_) => LoadSource::Stale,
        }
    }

    /// Seconds until a new prompt's turn, at the assumed speed: of booked ones, less what the engine has done
    /// since its last sign, and of those that others sent, less what it has done since it reported them.
    /// `factor`: by how much the engine is slower.
    pub(crate) fn queue(&self, now: f64, seconds_per_token: f64, factor: f64) -> f64 {
        let booked = self.pending_seconds;
        let head = booked / f64::from(self.pending.max(1));
        let done = ((now - self.since).max(0.0) / factor).min(head);
        let foreign = self.fresh(now).map_or(0.0, |reported| {
            let done = (now - reported.at).max(0.0) / factor;
            (reported.foreign_tokens * seconds_per_token - done).max(0.0)
        });
        booked - done + foreign
    }

    /// Requests there that others sent.
    pub(crate) fn foreign(&self, now: f64) -> u32 {
        self.fresh(now).map_or(0, |reported| reported.foreign)
    }

    /// Requests there: those that are booked, and those of others.
    pub(crate) fn in_flight(&self, now: f64) -> u32 {
        self.requests.saturating_add(self.foreign(now))
    }

    /// The part of the KV cache that is in use.
    pub(crate) fn kv_usage(&self, now: f64, assumed_capacity: u64) -> f64 {
        let capacity = self.reported.and_then(|last| last.load.kv_capacity).unwrap_or(assumed_capacity);
        let booked = if capacity == 0 { 0.0 } else { self.kv_new as f64 / capacity as f64 };
        let reported =
            self.fresh(now).and_then(|reported| reported.load.kv_usage).filter(|usage| usage.is_finite());
        booked.max(reported.unwrap_or(0.0)).clamp(0.0, 0.98)
    }
}
