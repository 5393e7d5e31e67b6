//! Filling up, steady churn, and what both take in memory.

use super::{Contender, Race};
use crate::clock::process_seconds;
use crate::table::{Better, Measure};
use crate::workload::{Blocks, Slice};

const FILL: Measure = Measure { title: "fill, M blocks per CPU-s", better: Better::Higher };
const CHURN: Measure = Measure { title: "churn apply, M blocks per CPU-s", better: Better::Higher };

const BYTES: [Measure; 4] = [
    Measure { title: "bytes per (engine, block) after the fill", better: Better::Lower },
    Measure { title: "bytes per (engine, block) after 1 turnover", better: Better::Lower },
    Measure { title: "bytes per (engine, block) after 2 turnovers", better: Better::Lower },
    Measure { title: "bytes per (engine, block) after 3 turnovers", better: Better::Lower },
];

const BYTES_BY_GROUP: Measure =
    Measure { title: "bytes per (engine, block, group), after the last turnover", better: Better::Lower };

impl Contender {
    /// Applies a slice; says how many million blocks per CPU second, until the last of them is visible. A
    /// block that two tiers announce is two; in how many groups it is does not count.
    fn apply_timed(&mut self, slice: &Slice, blocks: &Blocks) -> f64 {
        let seconds = self.with(slice, blocks, |subject| {
            process_seconds(|| {
                subject.apply(0..slice.events.len());
                subject.drain();
            })
        });
        (slice.block_operations() * self.subject.tiers()) as f64 / seconds / 1e6
    }
}

impl Race<'_> {
    /// Until all caches are full.
    pub(super) fn fill(&mut self) {
        self.announce("fill");
        let slice = self.world.fill();
        for contender in &mut self.contenders {
            let speed = contender.apply_timed(&slice, &self.world.blocks);
            self.results.sample(FILL, self.workload, contender.column(), speed);
        }
        let note = format!(
            "{} engines × {} blocks; {:.1} blocks an event while filling",
            self.world.caches().len(),
            self.world.resident() / self.world.caches().len(),
            slice.block_operations() as f64 / slice.events.len() as f64,
        );
        self.results.note(self.workload, &note);
        self.weigh(BYTES[0]);
    }

    /// Stores and evictions at constant residency. A block that is stored or removed counts as one.
    pub(super) fn churn(&mut self) {
        let rounds = self.effort.rounds_per_turnover;
        let operations = 2 * self.world.resident() / rounds;
        for turnover in 1..=self.effort.turnovers {
            self.announce(&format!("churn, turnover {turnover}"));
            for round in 0..rounds {
                let slice = self.world.churn(operations);
                for number in self.order(turnover * rounds + round) {
                    let contender = &mut self.contenders[number];
                    let speed = contender.apply_timed(&slice, &self.world.blocks);
                    self.results.sample(CHURN, self.workload, contender.column(), speed);
                }
            }
            self.weigh(BYTES[turnover.min(BYTES.len() - 1)]);
        }
        let resident = self.world.resident();
        for contender in self.contenders.iter().filter(|contender| contender.subject.groups() > 1) {
            let bytes = contender.bytes as f64 / (resident * contender.subject.groups()) as f64;
            self.results.sample(BYTES_BY_GROUP, self.workload, contender.column(), bytes);
        }
    }

    fn weigh(&mut self, measure: Measure) {
        let resident = self.world.resident() as f64;
        for contender in &self.contenders {
            let bytes = contender.bytes as f64 / resident;
            self.results.sample(measure, self.workload, contender.column(), bytes);
        }
    }
}
