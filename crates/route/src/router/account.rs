//! What becomes of bookings.

use super::Router;
use crate::booking::{Booking, BookingId};
use crate::outline::Outline;
use crate::policy::Weights;
use crate::rate::assumed;
use crate::worker::Slot;

/// Tokens of a booking that somebody else tells of.
const MAX_TOLD: u64 = 1 << 32;

/// A booking of another router.
#[derive(Debug, Clone, Copy)]
pub struct RemoteBooking<'a> {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens that are to be prefilled.
    pub uncached: u64,
    /// Tokens that it is expected to generate.
    pub output: u64,
    /// How many seconds ago it was made.
    pub age: f64,
    /// Its first token came.
    pub started: bool,
    /// Hashes of the prompt's prefixes, shortest first.
    pub prefixes: &'a [u64],
}

/// What goes to an endpoint, in tokens.
pub(super) struct Sent {
    pub(super) prompt: u64,
    pub(super) uncached: u64,
    pub(super) output: u64,
    /// What is uncached is by exact state alone.
    pub(super) sure: bool,
}

impl Router {
    /// Books a request that goes to `slot`.
    pub(super) fn book(
        &mut self,
        slot: Slot,
        Sent { prompt, uncached, output, sure }: Sent,
        outline: &Outline,
        now: f64,
    ) -> Option<BookingId> {
        let alone = self.workers.get(slot.index())?.as_ref()?.pending == 0;
        let telling = alone && sure;
        let booking = Booking { worker: slot, prompt, uncached, output, made: now, started: false, telling };
        let id = self.enter(booking, now)?;
        if self.options.flight_ttl > 0.0 && !outline.is_empty() {
            self.predict(id, slot, outline.hashes(), now + self.options.flight_ttl);
        }
        Some(id)
    }

    /// Books what another router sent to `slot`. Its first token says nothing of the engine's speed: clocks
    /// and ways differ.
    pub fn book_remote(&mut self, slot: Slot, remote: &RemoteBooking<'_>, now: f64) -> Option<BookingId> {
        let &RemoteBooking { prompt, uncached, output, age, started, prefixes } = remote;
        if !(0.0..self.options.booking_ttl).contains(&age) {
            return None;
        }
        // More than any prompt has is a mistake, and sums must not overflow.
        let [prompt, output] = [prompt, output].map(|tokens| tokens.min(MAX_TOLD));
        let (uncached, made) = (uncached.min(prompt), now - age);
        let booking = Booking { worker: slot, prompt, uncached, output, made, started, telling: false };
        let id = self.enter(booking, now)?;
        let ends = made + self.options.flight_ttl;
        if !started && ends > now && !prefixes.is_empty() {
            self.predict(id, slot, prefixes.into(), ends);
        }
        Some(id)
    }

    /// Adds a booking to the list, and to what its endpoint has to do.
    fn enter(&mut self, booking: Booking, now: f64) -> Option<BookingId> {
        let Booking { worker: slot, prompt, uncached, output, started, .. } = booking;
        let Weights { a, t, .. } = self.options.weights;
        let worker = self.workers.get_mut(slot.index())?.as_mut()?;
        let Some(id) = self.bookings.add(booking) else {
            self.totals.refused += 1;
            return None;
        };
        if !started {
            if worker.pending == 0 {
                worker.since = now;
            }
            worker.pending += 1;
            worker.pending_tokens += uncached;
            worker.pending_seconds += assumed(prompt, uncached, a, t);
        }
        worker.requests += 1;
        worker.kv_tokens += prompt.saturating_add(output);
        worker.kv_new += uncached.saturating_add(output);
        Some(id)
    }

    /// The prompt counts as held until `ends`.
    fn predict(&mut self, id: BookingId, slot: Slot, hashes: Box<[u64]>, ends: f64) {
        if !self.flights.add(id, slot, hashes, ends) {
            self.totals.unpredicted += 1;
        }
    }

    /// A booking that is not over.
    pub fn booking(&self, id: BookingId) -> Option<&Booking> {
        self.bookings.get(id)
    }

    /// Every booking that is not over.
    pub fn bookings(&self) -> impl Iterator<Item = (BookingId, &Booking)> {
        self.bookings.iter()
    }

    /// Hashes of the prefixes that count as held because of a booking.
    pub fn prefixes(&self, id: BookingId) -> &[u64] {
        self.flights.hashes(id)
    }

    /// The first token came: its prefill is done, and its blocks are where the engine's events say. Says
    /// after how many seconds.
    pub fn first_token(&mut self, id: BookingId, now: f64) -> Option<f64> {
        let weights = self.options.weights;
        let booking = self.bookings.get_mut(id).filter(|booking| !booking.started)?;
        booking.started = true;
        let Booking { worker, prompt, uncached, made, telling, .. } = *booking;
        let took = (now - made).max(0.0);
        self.flights.remove(id);
        let worker = self.workers.get_mut(worker.index())?.as_mut()?;
        let seconds = assumed(prompt, uncached, weights.a, weights.t);
        worker.prefilled(uncached, seconds);
        worker.since = worker.since.max(now);
        if telling {
            worker.rate.learn(uncached, seconds, took);
        }
        Some(took)
    }

    /// The first token came this many seconds after the decision, as reported when the request was over. Says
    /// whether that was news.
    pub fn first_token_took(&mut self, id: BookingId, seconds: f64) -> bool {
        let made = self.bookings.get_mut(id).filter(|_| seconds.is_finite() && seconds >= 0.0);
        made.map(|booking| booking.made).is_some_and(|made| self.first_token(id, made + seconds).is_some())
    }

    /// The request is over. Says whether it was booked.
    pub fn finish(&mut self, id: BookingId) -> bool {
        self.end(id).is_some()
    }

    /// The request was never served, or not to its end. Says whether it was booked.
    pub fn abort(&mut self, id: BookingId) -> bool {
        self.end(id).is_some()
    }

    /// Ends what has lasted too long.
    pub fn expire(&mut self, now: f64) {
        self.flights.expire(now);
        while let Some(id) = self.bookings.oldest_before(now - self.options.booking_ttl) {
            self.end(id);
            self.totals.expired += 1;
        }
    }

    pub(super) fn end(&mut self, id: BookingId) -> Option<Booking> {
        let booking = self.bookings.remove(id)?;
        self.flights.remove(id);
        if let Some(Some(worker)) = self.workers.get_mut(booking.worker.index()) {
            if !booking.started {
                let Weights { a, t, .. } = self.options.weights;
                worker.prefilled(booking.uncached, assumed(booking.prompt, booking.uncached, a, t));
            }
            worker.requests -= 1;
            worker.kv_tokens -= booking.prompt.saturating_add(booking.output);
            worker.kv_new -= booking.uncached.saturating_add(booking.output);
        }
        Some(booking)
    }
}
