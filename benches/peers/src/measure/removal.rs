//! What remains when all else is measured: saving the state, and engines that leave.

use super::Race;
use crate::clock::process_seconds;
use crate::table::{Better, Measure};

const SAVE_SECONDS: Measure = Measure { title: "snapshot of all engines, CPU-s", better: Better::Lower };
const SAVE_BYTES: Measure = Measure { title: "snapshot, bytes an entry", better: Better::Lower };
const SAVE_HOLD: Measure = Measure { title: "snapshot, longest hold of a writer, ms", better: Better::Lower };
const REMOVE: Measure = Measure { title: "remove one engine, ns per block of it", better: Better::Lower };

/// Engines that leave, one after the other. Even the smallest fleet has as many.
const LEAVING: u32 = 5;

impl Race<'_> {
    pub(super) fn save(&mut self) {
        self.announce("snapshot");
        let resident = self.world.resident() as f64;
        for contender in &mut self.contenders {
            let column = contender.column();
            if let Some(saved) = contender.subject.save() {
                self.results.sample(SAVE_SECONDS, self.workload, column, saved.seconds);
                self.results.sample(SAVE_BYTES, self.workload, column, saved.bytes as f64 / resident);
                if let Some(hold) = saved.longest_hold_seconds {
                    self.results.sample(SAVE_HOLD, self.workload, column, hold * 1e3);
                }
            }
        }
    }

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
