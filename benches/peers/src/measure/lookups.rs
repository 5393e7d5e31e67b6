//! Lookups while nothing changes.

use super::Race;
use crate::broom::Broom;
use crate::clock::thread_seconds;
use crate::subjects::{Column, Reader};
use crate::table::{Better, Measure};
use crate::workload::{Slice, tokens};

const LOOKUP: [Measure; 3] = [
    Measure { title: "lookup 64 deep, us", better: Better::Lower },
    Measure { title: "lookup 512 deep, us", better: Better::Lower },
    Measure { title: "lookup 2048 deep, us", better: Better::Lower },
];
const COLD: [Measure; 3] = [
    Measure { title: "lookup 64 deep, processor's caches emptied, us", better: Better::Lower },
    Measure { title: "lookup 512 deep, processor's caches emptied, us", better: Better::Lower },
    Measure { title: "lookup 2048 deep, processor's caches emptied, us", better: Better::Lower },
];
const NATURAL: Measure = Measure { title: "lookup, natural mix, us", better: Better::Lower };
const TOKENS: Measure = Measure { title: "tokens to scores, natural mix, us", better: Better::Lower };

/// Microseconds that a lookup takes, over one pass of all prompts.
pub(crate) fn time_lookups(reader: &mut dyn Reader, prompts: &[Vec<u64>]) -> f64 {
    reader.load(prompts);
    let seconds = thread_seconds(|| {
        for prompt in 0..prompts.len() {
            reader.lookup(prompt);
        }
    });
    seconds * 1e6 / prompts.len() as f64
}

impl Race<'_> {
    pub(super) fn lookups(&mut self) {
        let mut found = Vec::new();
        for (number, (depth, count)) in self.effort.prompts.into_iter().enumerate() {
            self.announce(&format!("lookup {depth} deep"));
            let prompts = self.world.cached_prompts(depth, count);
            found.push(format!("{} of {depth} blocks", prompts.len()));
            if !prompts.is_empty() {
                let contents = self.contents(&prompts);
                self.time_prompts(LOOKUP[number], &contents, || {});
                let mut broom = Broom::default();
                self.time_prompts(COLD[number], &contents, || broom.sweep());
            }
        }
        self.results.note(self.workload, &format!("prompts for lookups: {}", found.join(", ")));
    }

    /// Asks for the requests that come next, before anything of that is applied: how much of them is cached
    /// is as it would be.
    pub(super) fn natural_mix(&mut self, next: &Slice) {
        let requests: Vec<_> =
            next.arrivals.iter().take(self.effort.requests).map(|arrival| next.prompt(arrival)).collect();
        let prompts: Vec<_> = requests.iter().map(|request| self.world.blocks.contents(request)).collect();
        self.announce("natural mix");
        let note = format!(
            "natural mix: {} requests of {} blocks on average, {:.0}% of them held by some engine",
            prompts.len(),
            prompts.iter().map(Vec::len).sum::<usize>() / prompts.len().max(1),
            self.share_held(&prompts) * 100.0,
        );
        self.results.note(self.workload, &note);
        self.time_prompts(NATURAL, &prompts, || {});
        let requests: Vec<Vec<u32>> = requests.into_iter().map(tokens).collect();
        self.time_tokens(&requests);
    }

    /// How much of all prompts is held by whoever holds most of each, according to the first subject.
    fn share_held(&self, prompts: &[Vec<u64>]) -> f64 {
        let Some(contender) = self.contenders.first() else { return 0.0 };
        let mut reader = contender.subject.reader(contender.column());
        reader.load(prompts);
        let mut depths = vec![0; self.world.caches().len()];
        let mut held = 0;
        for prompt in 0..prompts.len() {
            reader.depths(prompt, &mut depths);
            held += depths.iter().max().copied().unwrap_or(0) as usize;
        }
        held as f64 / prompts.iter().map(Vec::len).sum::<usize>().max(1) as f64
    }

    fn time_prompts(&mut self, measure: Measure, prompts: &[Vec<u64>], mut before: impl FnMut()) {
        for round in 0..self.effort.rounds {
            for (number, column) in self.lookup_order(round) {
                let mut reader = self.contenders[number].subject.reader(column);
                before();
                self.results.sample(measure, self.workload, column, time_lookups(&mut *reader, prompts));
            }
        }
    }

    fn time_tokens(&mut self, requests: &[Vec<u32>]) {
        for round in 0..self.effort.rounds {
            for (number, column) in self.lookup_order(round) {
                let mut reader = self.contenders[number].subject.reader(column);
                let seconds = thread_seconds(|| {
                    for request in requests {
                        reader.lookup_tokens(request);
                    }
                });
                let time = seconds * 1e6 / requests.len() as f64;
                self.results.sample(TOKENS, self.workload, column, time);
            }
        }
    }

    /// Who is asked, and how, in the order of a round. A subject is not asked twice in a row: it would find
    /// its memory in the processor's caches.
    fn lookup_order(&self, round: usize) -> Vec<(usize, Column)> {
        let ways =
            self.contenders.iter().map(|contender| contender.subject.columns().len()).max().unwrap_or(0);
        let order = self.order(round);
        let asked = (0..ways).flat_map(|way| order.iter().map(move |number| (*number, way)));
        let column = |(number, way): (usize, usize)| {
            Some((number, *self.contenders[number].subject.columns().get(way)?))
        };
        asked.filter_map(column).collect()
    }
}
