//! Answers, compared with the caches of the simulated engines.

use super::Race;
use crate::table::{Better, Measure};
use crate::workload::BlockId;

pub(super) const AFTER_FILL: Measure = Measure { title: "wrong after the fill", better: Better::Neither };
pub(super) const AFTER_CHURN: Measure = Measure { title: "wrong after churn", better: Better::Neither };
const WITH_HOLES: Measure =
    Measure { title: "wrong while a middle block is missing", better: Better::Neither };
const MENDED: Measure = Measure { title: "wrong after it is stored again", better: Better::Neither };

/// Answers that were wrong.
#[derive(Debug, Default)]
pub(super) struct Wrong {
    asked: usize,
    /// Answers with an engine that was said to hold more than it does.
    high: usize,
    /// Answers with an engine that was said to hold less.
    low: usize,
}

impl Wrong {
    /// Compares an answer with the truth, for some of the engines.
    pub(super) fn count(&mut self, depths: &[u32], truth: &[u32], engines: impl Fn(usize) -> bool) {
        let some = |wrong: fn(u32, u32) -> bool| {
            let mut pairs = depths.iter().zip(truth).enumerate();
            pairs.any(|(engine, (depth, truth))| engines(engine) && wrong(*depth, *truth))
        };
        self.asked += 1;
        self.high += usize::from(some(|depth, truth| depth > truth));
        self.low += usize::from(some(|depth, truth| depth < truth));
    }

    pub(super) fn show(&self) -> String {
        match (self.high, self.low) {
            (0, 0) => "0".to_owned(),
            (high, 0) => format!("{high} too high"),
            (0, low) => format!("{low} too low"),
            (high, low) => format!("{high} too high, {low} too low"),
        }
    }

    /// With how often was asked, where that depends on the subject's speed.
    pub(super) fn of_asked(&self) -> String {
        format!("{} of {}", self.show(), self.asked)
    }
}

impl Race<'_> {
    /// Prompts of all depths that are cached: a third each, where there are enough.
    pub(super) fn prompts_to_check(&mut self) -> Vec<Vec<BlockId>> {
        let depths = self.effort.prompts.map(|(depth, _)| depth);
        let each = self.effort.checks / depths.len();
        depths.into_iter().flat_map(|depth| self.world.cached_prompts(depth, each)).collect()
    }

    /// Compares now.
    pub(super) fn check_now(&mut self, measure: Measure) {
        let prompts = self.prompts_to_check();
        self.check(measure, &prompts);
    }

    /// Takes a block out of the middle of what is cached of each prompt, on every engine that holds it, and
    /// puts it back.
    pub(super) fn check_holes(&mut self) {
        let prompts = self.prompts_to_check();
        let holes = self.world.make_holes(&prompts);
        self.apply_to_all(&holes.made);
        self.check(WITH_HOLES, &prompts);
        self.world.mend_holes(&holes);
        self.apply_to_all(&holes.mended);
        self.check(MENDED, &prompts);
    }

    fn check(&mut self, measure: Measure, prompts: &[Vec<BlockId>]) {
        self.announce(measure.title);
        let contents = self.contents(prompts);
        let truth: Vec<Vec<u32>> = prompts.iter().map(|prompt| self.world.depths(prompt)).collect();
        let mut depths = vec![0; self.world.caches().len()];
        for contender in &self.contenders {
            for &column in contender.subject.columns() {
                let mut reader = contender.subject.reader(column);
                reader.load(&contents);
                let mut wrong = Wrong::default();
                for (prompt, truth) in truth.iter().enumerate() {
                    reader.depths(prompt, &mut depths);
                    wrong.count(&depths, truth, |_| true);
                }
                self.results.text(measure, self.workload, column, wrong.show());
            }
        }
    }
}
