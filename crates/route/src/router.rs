//! The decision, with all that it goes by.

mod account;
mod decision;

use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_64;

use crate::booking::Bookings;
use crate::demand::Demand;
use crate::flight::Flights;
use crate::load::{Load, LoadSource};
use crate::outline::Outline;
use crate::policy::{Policy, View, Weights};
use crate::rng::Rng;
use crate::worker::{Slot, Worker};

pub use account::RemoteBooking;
pub use decision::{Ask, Choice, Decision, Skipped, Why};

/// What a router goes by, and its bounds.
#[derive(Debug, Clone)]
pub struct Options {
    /// How decisions are made, unless a request says otherwise.
    pub policy: Policy,
    /// The constants of `work`.
    pub weights: Weights,
    /// Chance begins here.
    pub seed: u64,
    /// How long a booking lasts that nobody ends, in seconds.
    pub booking_ttl: f64,
    /// How long a prompt counts as held before its first token, in seconds. 0: never.
    pub flight_ttl: f64,
    /// Bookings at a time.
    pub max_bookings: usize,
    /// Hashes of prompts in flight at a time.
    pub max_points: usize,
    /// Endpoints at a time.
    pub max_workers: usize,
    /// Requests that may wait at an endpoint.
    pub max_waiting: Option<u32>,
    /// Requests that may be at an endpoint.
    pub max_in_flight: Option<u32>,
    /// An endpoint without a sign of life for this long gets one request at most, in seconds.
    pub silence: f64,
    /// KV tokens of an engine that does not say.
    pub kv_capacity: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::Work,
            weights: Weights::default(),
            seed: 1,
            booking_ttl: 300.0,
            flight_ttl: 10.0,
            max_bookings: 65_536,
            max_points: 1 << 20,
            max_workers: 4_096,
            max_waiting: None,
            max_in_flight: None,
            silence: 2.0,
            kv_capacity: 400_000,
        }
    }
}

/// What happened to bookings so far, and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Bookings that are not over.
    pub bookings: usize,
    /// Hashes of prompts in flight.
    pub points: usize,
    /// Bookings that were not made because there were too many.
    pub refused: u64,
    /// Bookings that nobody ended.
    pub expired: u64,
    /// Prompts in flight that could not be counted as held.
    pub unpredicted: u64,
}

/// Decides, and keeps the books.
#[derive(Debug)]
pub struct Router {
    options: Options,
    workers: Vec<Option<Worker>>,
    names: FxHashMap<Box<str>, Slot>,
    bookings: Bookings,
    flights: Flights,
    demand: Demand,
    totals: Totals,
    turn: u64,
    rng: Rng,
    // Room for a decision, used again.
    depths: Vec<u64>,
    views: Vec<View>,
    costs: Vec<f64>,
    order: Vec<(f64, u64, u32)>,
}

impl Router {
    /// A router that knows nobody.
    pub fn new(options: Options) -> Self {
        Self {
            bookings: Bookings::new(options.max_bookings),
            flights: Flights::new(options.max_points),
            demand: Demand::default(),
            rng: Rng::new(options.seed),
            options,
            workers: Vec::new(),
            names: FxHashMap::default(),
            totals: Totals::default(),
            turn: 0,
            depths: Vec::new(),
            views: Vec::new(),
            costs: Vec::new(),
            order: Vec::new(),
        }
    }

    /// What it goes by.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The number of an endpoint, by its name; a new one for a new name. `None` when there are too many.
    pub fn worker(&mut self, name: &str) -> Option<Slot> {
        if let Some(&slot) = self.names.get(name) {
            return Some(slot);
        }
        if self.names.len() >= self.options.max_workers {
            return None;
        }
        let free = self.workers.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.workers.push(None);
            self.workers.len() - 1
        });
        self.workers[at] = Some(Worker::new(xxh3_64(name.as_bytes())));
        let slot = Slot(at as u32);
        self.names.insert(name.into(), slot);
        Some(slot)
    }

    /// Forgets an endpoint, and its bookings.
    pub fn remove_worker(&mut self, name: &str) {
        if let Some(slot) = self.names.remove(name) {
            self.restart(slot);
            self.workers[slot.index()] = None;
        }
    }

    /// The names of all endpoints.
    pub fn workers(&self) -> impl Iterator<Item = (&str, Slot)> {
        self.names.iter().map(|(name, slot)| (&**name, *slot))
    }

    /// An endpoint began a new life: nothing that was sent there is there any more.
    pub fn restart(&mut self, slot: Slot) {
        for id in self.bookings.of(slot) {
            self.end(id);
        }
    }

    /// What an engine reports of its load, and until when that counts. Afterwards bookings alone do.
    pub fn report_load(&mut self, slot: Slot, load: Load, now: f64, until: f64) {
        if let Some(Some(worker)) = self.workers.get_mut(slot.index()) {
            worker.report(load, now, until);
        }
    }

    /// How many endpoints' loads are known from what, in the order of [`LoadSource::ALL`].
    pub fn load_sources(&self, now: f64) -> [u64; LoadSource::ALL.len()] {
        let mut counts = [0; LoadSource::ALL.len()];
        for worker in self.workers.iter().flatten() {
            counts[worker.load_source(now) as usize] += 1;
        }
        counts
    }

    /// How much slower than assumed an endpoint prefills, as learned.
    pub fn slowness(&self, slot: Slot) -> Option<f64> {
        Some(self.workers.get(slot.index())?.as_ref()?.rate.factor())
    }

    /// Requests and uncached tokens booked at an endpoint.
    pub fn booked(&self, slot: Slot) -> Option<(u32, u64)> {
        let worker = self.workers.get(slot.index())?.as_ref()?;
        Some((worker.requests, worker.pending_tokens))
    }

    /// What happened so far.
    pub fn totals(&self) -> Totals {
        Totals { bookings: self.bookings.len(), points: self.flights.points(), ..self.totals }
    }

    /// Tokens of the longest prefix that is on its way to each endpoint, by slot.
    pub fn in_flight(&self, outline: &Outline) -> Vec<u64> {
        let mut depths = vec![0; self.workers.len()];
        self.flights.depths(outline, &mut depths);
        depths
    }
}

#[cfg(test)]
mod tests;
