//! One workload: everything that is measured on it, with all subjects in turn.
//!
//! Each round does the same with every subject before the next round begins, and begins with another subject:
//! what else happens on the machine meets all of them. All subjects see the same events in the same order.

mod beside_writer;
mod churn;
mod exactness;
mod lookups;
mod mixed;
mod removal;

use crate::alloc::bytes_in_use;
use crate::subjects::{Column, Name, Subject};
use crate::table::Results;
use crate::workload::{BlockId, Blocks, Slice, World};

pub(crate) use lookups::time_lookups;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// How often churn replaces everything that is resident.
    pub(crate) turnovers: usize,
    /// Rounds of churn for each of those.
    pub(crate) rounds_per_turnover: usize,
    /// Depths that are looked up, and how many prompts of each: as many blocks as make up some megabytes, so that a
    /// prompt has left the caches of the processor when its turn comes again.
    pub(crate) prompts: [(usize, usize); 3],
    /// Requests of the natural mix: fewer than bring a second turn of the same conversation.
    pub(crate) requests: usize,
    /// Requests that a reader beside a writer asks about.
    pub(crate) requests_beside_writer: usize,
    /// Prompts whose answers are compared with the truth.
    pub(crate) checks: usize,
    /// Block operations of one round beside a reader, or mixed with lookups; at most a quarter turnover.
    pub(crate) short_round: usize,
}

impl Effort {
    pub(crate) const FULL: Self = Self {
        rounds: 7,
        turnovers: 3,
        rounds_per_turnover: 2,
        prompts: [(64, 4096), (512, 2048), (2048, 512)],
        requests: 512,
        requests_beside_writer: 4096,
        checks: 300,
        short_round: 2_000_000,
    };

    pub(crate) const QUICK: Self = Self {
        rounds: 3,
        turnovers: 1,
        rounds_per_turnover: 3,
        prompts: [(64, 256), (512, 64), (2048, 16)],
        requests: 64,
        requests_beside_writer: 256,
        checks: 90,
        short_round: 100_000,
    };
}

/// A subject in the race.
struct Contender {
    subject: Box<dyn Subject>,
    /// Memory that it has taken: what was in use more after its calls than before.
    bytes: isize,
}

impl Contender {
    fn new(name: Name, engines: usize) -> Option<Self> {
        let before = bytes_in_use();
        let subject = name.make(engines)?;
        Some(Self { subject, bytes: bytes_in_use() - before })
    }

    /// Does something with a slice's events at hand. When it returns, whatever was applied is visible.
    fn with<T>(&mut self, slice: &Slice, blocks: &Blocks, work: impl FnOnce(&mut dyn Subject) -> T) -> T {
        let before = bytes_in_use();
        self.subject.stage(slice, blocks);
        let result = work(&mut *self.subject);
        self.subject.drain();
        self.subject.unstage();
        self.bytes += bytes_in_use() - before;
        result
    }

    /// Applies a slice.
    fn apply(&mut self, slice: &Slice, blocks: &Blocks) {
        self.with(slice, blocks, |subject| subject.apply(0..slice.events.len()));
    }

    /// The column for everything that is not a lookup.
    fn column(&self) -> Column {
        self.subject.columns()[0]
    }
}

/// All subjects on one workload.
pub(crate) struct Race<'a> {
    workload: &'a str,
    world: World,
    contenders: Vec<Contender>,
    effort: Effort,
    results: &'a mut Results,
}

impl<'a> Race<'a> {
    pub(crate) fn new(
        workload: &'a str,
        world: World,
        subjects: &[Name],
        effort: Effort,
        results: &'a mut Results,
    ) -> Self {
        let engines = world.caches().len();
        let contenders = subjects.iter().filter_map(|name| Contender::new(*name, engines)).collect();
        Self { workload, world, contenders, effort, results }
    }

    /// Everything, in an order in which later measurements find what they need.
    pub(crate) fn run(mut self) {
        self.fill();
        self.check_now(exactness::AFTER_FILL);
        self.churn();
        self.mixed();
        self.check_now(exactness::AFTER_CHURN);
        self.lookups();
        let next = self.world.churn(self.short_round());
        self.natural_mix(&next);
        self.beside_writer(next);
        self.check_beside_writer();
        // Last, because some subjects do not recover from it.
        self.check_holes();
        self.removal();
    }

    /// Says on standard error what is being done.
    fn announce(&self, what: &str) {
        eprintln!("{}: {what}", self.workload);
    }

    /// Applies a slice to all subjects.
    fn apply_to_all(&mut self, slice: &Slice) {
        for contender in &mut self.contenders {
            contender.apply(slice, &self.world.blocks);
        }
    }

    /// Block operations of a short round.
    fn short_round(&self) -> usize {
        self.effort.short_round.min(self.world.resident() / 2)
    }

    /// The subjects' numbers, in the order of a round.
    fn order(&self, round: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.contenders.len()).collect();
        let count = order.len().max(1);
        order.rotate_left(round % count);
        order
    }

    fn contents(&self, prompts: &[Vec<BlockId>]) -> Vec<Vec<u64>> {
        prompts.iter().map(|prompt| self.world.blocks.contents(prompt)).collect()
    }
}
