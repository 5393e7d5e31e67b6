//! Prompts that were routed and are not stored yet: which worker will hold which prefix, if all goes well.
//!
//! ```text
//! hash of a prefix ──> workers that a prompt with it is on its way to, with a count
//! booking          ──> the hashes it added
//! ```
//!
//! A prompt in flight with a prefix is in flight with every shorter one too, so a look-up begins at the
//! deepest hash that anybody has and goes up. Bounded in points; what does not fit is not predicted.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::booking::BookingId;
use crate::outline::Outline;
use crate::worker::Slot;

#[derive(Debug)]
struct Flight {
    worker: Slot,
    hashes: Box<[u64]>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Flights {
    prefixes: FxHashMap<u64, SmallVec<[(Slot, u32); 2]>>,
    booked: FxHashMap<BookingId, Flight>,
    /// By end: the lifetime is the same for all. One of another router ends a little later than it should.
    order: VecDeque<(f64, BookingId)>,
    points: usize,
    limit: usize,
}

impl Flights {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            prefixes: FxHashMap::default(),
            booked: FxHashMap::default(),
            order: VecDeque::new(),
            points: 0,
            limit,
        }
    }

    pub(crate) fn points(&self) -> usize {
        self.points
    }

    /// The hashes that a booking added.
    pub(crate) fn hashes(&self, id: BookingId) -> &[u64] {
        self.booked.get(&id).map_or(&[], |flight| &flight.hashes)
    }

    /// Says whether there was room. Hashes are of prefixes, each longer than the one before.
    pub(crate) fn add(&mut self, id: BookingId, worker: Slot, hashes: Box<[u64]>, ends: f64) -> bool {
        if self.points + hashes.len() > self.limit {
            return false;
        }
        self.points += hashes.len();
        for &hash in &hashes {
            let holders = self.prefixes.entry(hash).or_default();
            match holders.iter_mut().find(|(holder, _)| *holder == worker) {
                Some((_, count)) => *count += 1,
                None => holders.push((worker, 1)),
            }
        }
        if self.order.len() > 2 * self.booked.len() + 64 {
            let booked = &self.booked;
            self.order.retain(|(_, id)| booked.contains_key(id));
        }
        self.order.push_back((ends, id));
        self.booked.insert(id, Flight { worker, hashes });
        true
    }

    pub(crate) fn remove(&mut self, id: BookingId) {
        let Some(Flight { worker, hashes }) = self.booked.remove(&id) else { return };
        self.points -= hashes.len();
        for hash in &hashes {
            let Some(holders) = self.prefixes.get_mut(hash) else { continue };
            if let Some(at) = holders.iter().position(|(holder, _)| *holder == worker) {
                holders[at].1 -= 1;
                if holders[at].1 == 0 {
                    holders.swap_remove(at);
                }
            }
            if holders.is_empty() {
                self.prefixes.remove(hash);
            }
        }
    }

    /// Drops what has lasted too long.
    pub(crate) fn expire(&mut self, now: f64) {
        while let Some(&(ends, id)) = self.order.front() {
            if ends > now {
                break;
            }
            self.order.pop_front();
            self.remove(id);
        }
    }

    /// For every worker the tokens of the longest prefix that is on its way there; by slot, and 0 for the others.
    pub(crate) fn depths(&self, outline: &Outline, depths: &mut [u64]) {
        if self.booked.is_empty() {
            return;
        }
        let points = outline.points();
        let known = points.partition_point(|point| self.prefixes.contains_key(&point.hash));
        let mut found = 0;
        for point in points[..known].iter().rev() {
            let Some(holders) = self.prefixes.get(&point.hash) else { continue };
            // Who has a long prefix has the short ones too.
            if holders.len() == found {
                continue;
            }
            for (worker, _) in holders {
                if let Some(depth) = depths.get_mut(worker.index())
                    && *depth == 0
                {
                    *depth = point.depth;
                    found += 1;
                }
            }
            if found == depths.len() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A prompt is a branch of a small tree: prompts share prefixes of any length.
    fn outline(path: &[u8]) -> Outline {
        Outline::of_units(path.iter().map(|step| u64::from(*step) + 1), 64)
    }

    proptest! {
        /// Beside a list of all that is in flight, each compared with the prompt point by point.
        #[test]
        fn depths_are_those_of_the_longest_shared_prefix(
            steps in proptest::collection::vec(
                (0u8..4, 0u32..5, proptest::collection::vec(0u8..2, 0..40), 0u8..20), 1..60),
            limit in prop_oneof![Just(60usize), Just(10_000)],
        ) {
            let mut flights = Flights::new(limit);
            let mut naive: Vec<(BookingId, Slot, Outline, f64)> = Vec::new();
            for (at, (kind, worker, path, ttl)) in steps.into_iter().enumerate() {
                let now = at as f64;
                flights.expire(now);
                naive.retain(|flight| flight.3 > now);
                if kind == 0 && !naive.is_empty() {
                    let gone = naive.remove(usize::from(ttl) % naive.len());
                    flights.remove(gone.0);
                    continue;
                }
                let outline = outline(&path);
                let mut depths = [0; 5];
                flights.depths(&outline, &mut depths);
                for (slot, depth) in depths.iter().enumerate() {
                    let shared = |other: &Outline| {
                        let both = outline.points().iter().zip(other.points());
                        both.take_while(|(one, two)| one == two).map(|(one, _)| one.depth).last().unwrap_or(0)
                    };
                    let here = naive.iter().filter(|flight| flight.1.index() == slot);
                    let expected = here.map(|flight| shared(&flight.2)).max().unwrap_or(0);
                    prop_assert_eq!(*depth, expected);
                }
                let taken: usize = naive.iter().map(|flight| flight.2.points().len()).sum();
                prop_assert_eq!(flights.points(), taken);
                let id = BookingId(at as u64);
                let fits = taken + outline.points().len() <= limit;
                // One lifetime for all: the order of ages is the order of ends.
                prop_assert_eq!(flights.add(id, Slot(worker), outline.hashes(), now + 7.0), fits);
                if fits {
                    naive.push((id, Slot(worker), outline, now + 7.0));
                }
            }
        }
    }
}
