//! What becomes of bookings.

use super::Router;
use crate::booking::{Booking, BookingId};
use crate::outline::Outline;
use crate::policy::Weights;
use crate::rate::assumed;
use crate::worker::Slot;

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
        let weights = self.options.weights;
        let worker = self.workers.get_mut(slot.index())?.as_mut()?;
        let kv = prompt.saturating_add(output);
        let alone = worker.pending == 0;
        let telling = alone && sure;
        let booking = Booking { worker: slot, prompt, uncached, output, made: now, started: false, telling };
        let Some(id) = self.bookings.add(booking) else {
            self.totals.refused += 1;
            return None;
        };
        if alone {
            worker.since = now;
        }
        worker.pending += 1;
        worker.pending_tokens += uncached;
        worker.pending_seconds += assumed(prompt, uncached, weights.a, weights.t);
        worker.requests += 1;
        worker.kv_tokens += kv;
        worker.kv_new += uncached.saturating_add(output);
        if self.options.flight_ttl > 0.0
            && !outline.is_empty()
            && !self.flights.add(id, slot, outline, now + self.options.flight_ttl)
        {
            self.totals.unpredicted += 1;
        }
        Some(id)
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

    /// The first token came so many seconds after the decision, as told later: when the request was over. Says whether that was news.
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
