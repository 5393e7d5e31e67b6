//! Lookups and events as they come: each request is looked up, then its engine announces what it does.

use super::Race;
use crate::clock::process_seconds;
use crate::table::{Better, Measure};

/// An operation is a block that is stored, removed, or part of a prompt that is looked up.
const MIXED: Measure = Measure { title: "mixed, M block operations per CPU-s", better: Better::Higher };

impl Race<'_> {
    pub(super) fn mixed(&mut self) {
        self.announce("mixed");
        for round in 0..self.effort.rounds {
            let slice = self.world.churn(self.short_round());
            let prompts: Vec<Vec<u64>> = slice
                .arrivals
                .iter()
                .map(|arrival| self.world.blocks.contents(slice.prompt(arrival)))
                .collect();
            let operations = slice.block_operations() + slice.prompt_blocks();
            for number in self.order(round) {
                let contender = &mut self.contenders[number];
                let column = contender.column();
                let seconds = contender.with(&slice, &self.world.blocks, |subject| {
                    let mut reader = subject.reader(column);
                    reader.load(&prompts);
                    process_seconds(|| {
                        let mut applied = 0;
                        for (number, arrival) in slice.arrivals.iter().enumerate() {
                            subject.apply(applied..arrival.after);
                            applied = arrival.after;
                            reader.lookup(number);
                        }
                        subject.apply(applied..slice.events.len());
                        subject.drain();
                    })
                });
                self.results.sample(MIXED, self.workload, column, operations as f64 / seconds / 1e6);
            }
        }
    }
}
