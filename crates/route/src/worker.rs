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

    /// What the engine reports, while that is fresh.
    pub(crate) fn load(&self, now: f64) -> Option<Load> {
        self.reported.filter(|reported| now <= reported.until).map(|reported| reported.load)
    }

    /// What its load is known from.
    pub(crate) fn load_source(&self, now: f64) -> LoadSource {
        match self.reported {
            None => LoadSource::Bookings,
            Some(Reported { until, .. }) if now <= until => LoadSource::Reported,
            Some(_) => LoadSource::Stale,
        }
    }

    /// Seconds until a new prompt's turn, at the assumed speed: of booked ones, less what the engine has done since its last sign, and of
    /// those that others sent there. `factor`: by how much the engine is slower.
    pub(crate) fn queue(&self, load: Option<Load>, now: f64, seconds_per_token: f64, factor: f64) -> f64 {
        let booked = self.pending_seconds;
        let head = booked / f64::from(self.pending.max(1));
        let done = ((now - self.since).max(0.0) / factor).min(head);
        booked - done + self.foreign_tokens(load) * seconds_per_token
    }

    /// Uncached tokens that wait there and are not booked here. What is not told in tokens counts like a mean booking.
    fn foreign_tokens(&self, load: Option<Load>) -> f64 {
        const USUAL: f64 = 1_024.0;
        let Some(load) = load else { return 0.0 };
        if let Some(tokens) = load.waiting_tokens {
            return tokens.saturating_sub(self.pending_tokens) as f64;
        }
        f64::from(load.waiting.saturating_sub(self.pending)) * USUAL
    }

    /// Requests there: booked or reported, whichever is more. Reports lag behind, and others send too.
    pub(crate) fn in_flight(&self, load: Option<Load>) -> u32 {
        self.requests.max(load.map_or(0, |load| load.running.saturating_add(load.waiting)))
    }

    /// The part of the KV cache that is in use.
    pub(crate) fn kv_usage(&self, load: Option<Load>, assumed_capacity: u64) -> f64 {
        let capacity = self.reported.and_then(|last| last.load.kv_capacity).unwrap_or(assumed_capacity);
        let booked = if capacity == 0 { 0.0 } else { self.kv_new as f64 / capacity as f64 };
        let reported = load.and_then(|load| load.kv_usage).filter(|usage| usage.is_finite());
        booked.max(reported.unwrap_or(0.0)).clamp(0.0, 0.98)
    }
}
