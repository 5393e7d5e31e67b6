//! A reader on one thread while events are applied on another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::Race;
use super::exactness::Wrong;
use crate::clock::quantile;
use crate::subjects::Reader;
use crate::table::{Better, Measure};
use crate::workload::Slice;

const P50: Measure = Measure { title: "reader beside a writer, p50, us", better: Better::Lower };
const P99: Measure = Measure { title: "reader beside a writer, p99, us", better: Better::Lower };
const WRONG: Measure = Measure { title: "wrong beside a writer", better: Better::Neither };

/// Lookups of which the time is kept, in one round.
const LOOKUPS_MAX: usize = 4_000_000;

impl Race<'_> {
    /// Times each lookup of the natural mix while a writer applies events as fast as it can.
    pub(super) fn beside_writer(&mut self, first: Slice) {
        self.announce("reader beside a writer");
        let requests = first.arrivals.iter().take(self.effort.requests_beside_writer);
        let prompts: Vec<_> =
            requests.map(|request| self.world.blocks.contents(first.prompt(request))).collect();
        let mut slice = first;
        for round in 0..self.effort.rounds {
            if round > 0 {
                slice = self.world.churn(self.short_round());
            }
            for number in self.order(round) {
                let contender = &mut self.contenders[number];
                let column = contender.column();
                let mut times = contender.with(&slice, &self.world.blocks, |subject| {
                    let reader = subject.remote_reader(column);
                    let events = slice.events.len();
                    let mut write = || {
                        subject.apply(0..events);
                        subject.drain();
                    };
                    let Some(mut reader) = reader else {
                        write();
                        return Vec::new();
                    };
                    reader.load(&prompts);
                    while_writing(write, |writing| time_each(&mut *reader, prompts.len(), writing))
                });
                for (measure, share) in [(P50, 0.5), (P99, 0.99)] {
                    if let Some(time) = quantile(&mut times, share) {
                        self.results.sample(measure, self.workload, column, f64::from(time) / 1e3);
                    }
                }
            }
        }
    }

    /// Half of the engines stand still while the others churn: answers about the former must be right all the time.
    pub(super) fn check_beside_writer(&mut self) {
        self.announce("exactness beside a writer");
        let still = |engine: usize| engine.is_multiple_of(2);
        let last = self.world.serve_only(|engine| !still(engine as usize));
        self.apply_to_all(&last);
        let prompts = self.prompts_to_check();
        let contents = self.contents(&prompts);
        let truth: Vec<Vec<u32>> = prompts.iter().map(|prompt| self.world.depths(prompt)).collect();
        let slice = self.world.churn(self.short_round());
        for contender in &mut self.contenders {
            let column = contender.column();
            let wrong = contender.with(&slice, &self.world.blocks, |subject| {
                let reader = subject.remote_reader(column);
                let mut write = || {
                    subject.apply(0..slice.events.len());
                    subject.drain();
                };
                let Some(mut reader) = reader else {
                    write();
                    return None;
                };
                reader.load(&contents);
                Some(while_writing(write, |writing| {
                    let mut wrong = Wrong::default();
                    let mut depths = vec![0; truth[0].len()];
                    for prompt in (0..truth.len()).cycle() {
                        reader.depths(prompt, &mut depths);
                        wrong.count(&depths, &truth[prompt], still);
                        // At least once through all of them, however short the writing is.
                        if prompt == truth.len() - 1 && !writing.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    wrong
                }))
            });
            if let Some(wrong) = wrong {
                self.results.text(WRONG, self.workload, column, wrong.of_asked());
            }
        }
        let idle = self.world.serve_only(|_| true);
        self.apply_to_all(&idle);
    }
}

/// Reads on another thread while this one writes.
fn while_writing<T: Send>(write: impl FnOnce(), read: impl FnOnce(&AtomicBool) -> T + Send) -> T {
    let writing = AtomicBool::new(true);
    thread::scope(|scope| {
        let reading = scope.spawn(|| read(&writing));
        write();
        writing.store(false, Ordering::Relaxed);
        match reading.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Nanoseconds of each lookup.
fn time_each(reader: &mut dyn Reader, prompts: usize, writing: &AtomicBool) -> Vec<u32> {
    let mut times = Vec::with_capacity(LOOKUPS_MAX);
    for prompt in (0..prompts).cycle() {
        let start = Instant::now();
        reader.lookup(prompt);
        times.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
        if times.len() == LOOKUPS_MAX || !writing.load(Ordering::Relaxed) {
            break;
        }
    }
    times
}
