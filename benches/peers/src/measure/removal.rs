//! What remains when all else is measured: engines that leave.

use super::Race;
use crate::clock::process_seconds;
use crate::table::{Better, Measure};

const REMOVE: Measure = Measure { title: "remove one engine, ns per block of it", better: Better::Lower };

/// Engines that leave, one after the other. Even the smallest fleet has as many.
const LEAVING: u32 = 5;

impl Race<'_> {
    pub(super) fn removal(&mut self) {
        self.announce("engines leave");
        for engine in 0..LEAVING {
            let blocks = self.world.caches()[engine as usize].len() as f64;
            for number in self.order(engine as usize) {
                let contender = &mut self.contenders[number];
                let seconds = process_seconds(|| contender.subject.remove_engine(engine));
                self.results.sample(REMOVE, self.workload, contender.column(), seconds * 1e9 / blocks);
            }
        }
    }
}
