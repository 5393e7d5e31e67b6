//! kvplane's own index.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;

use kvplane_core::{Marks, Namespace, Need, Resumption, Side, SpecKind, Tier, chain_hash};
use kvplane_index::{Answer, Block, Buffer, Depths, Index, Options, Prompt, Slot};

use super::staged::{Staged, Step};
use super::{Column, Reader, Subject};
use crate::workload::{BLOCK_TOKENS, BlockId, Blocks, EngineHashes, Kind, Slice};

/// Blocks that are reclaimed at a time when an engine has left.
const RECLAIM_BLOCKS: usize = 4096;

/// What the caches of engines are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caches {
    /// One tier and one group.
    Plain,
    /// Every block is on the device and, by an event of its own, on the host; it leaves both.
    TwoTiers,
    /// Two sliding groups beside the main one. Each lacks one block in a hundred, others on every engine.
    ThreeGroups,
}

/// Blocks that the sliding groups need before a boundary: windows of 128 and of 1,024 tokens.
const WINDOWS: [u32; 2] = [8, 64];
/// Of so many blocks, a sliding group lacks one.
const LACKING: u64 = 100;

/// What an engine with three groups needs.
fn three_groups() -> Resumption {
    let sliding = |blocks| Side {
        group: None,
        kind: SpecKind::Sliding,
        need: Need::Run { blocks, stride: 1, tail: false },
    };
    Resumption { sides: WINDOWS.map(sliding).to_vec(), ..Resumption::default() }
}

/// Which sliding groups of an engine hold a block.
fn marks(engine: u32, id: BlockId) -> Marks {
    let mut marks = Marks::default();
    for side in 0..WINDOWS.len() {
        let seed = u64::from(engine) << 8 | side as u64;
        if !chain_hash(Some(seed), u64::from(id)).is_multiple_of(LACKING) {
            marks.set(Tier::Device, Marks::whole(side));
        }
    }
    marks
}

pub(super) struct Kvplane {
    index: Arc<Index>,
    streams: Vec<Slot>,
    hashes: EngineHashes,
    caches: Caches,
    staged: Staged<Block, u64>,
    /// The marks of staged blocks, in their order, where there are several groups.
    marks: Vec<(u64, Marks)>,
}

impl Kvplane {
    pub(super) fn new(engines: usize, hashes: EngineHashes, caches: Caches) -> Self {
        let index = Index::new(&Options::default());
        let streams = (0..engines as u64).map(|engine| index.add_stream(engine)).collect();
        Self { index, streams, hashes, caches, staged: Staged::default(), marks: Vec::new() }
    }

    fn asker(&self, column: Column) -> Asker {
        let form = match column {
            Column::KvplaneDense => Form::Dense,
            Column::KvplaneChained => Form::Chained,
            Column::KvplaneGroups => Form::Groups,
            _ => Form::Strata,
        };
        Asker::new(&self.index, self.streams.len(), form)
    }
}

impl Subject for Kvplane {
    fn columns(&self) -> &'static [Column] {
        match (self.caches, self.hashes) {
            (Caches::TwoTiers, _) => &[Column::KvplaneTiers],
            (Caches::ThreeGroups, _) => &[Column::KvplaneGroups],
            (Caches::Plain, EngineHashes::Equal) => {
                &[Column::Kvplane, Column::KvplaneDense, Column::KvplaneChained]
            }
            (Caches::Plain, EngineHashes::Different) => &[Column::KvplaneOwnHashes],
        }
    }

    fn groups(&self) -> usize {
        if self.caches == Caches::ThreeGroups { 1 + WINDOWS.len() } else { 1 }
    }

    fn tiers(&self) -> usize {
        if self.caches == Caches::TwoTiers { 2 } else { 1 }
    }

    fn stage(&mut self, slice: &Slice, blocks: &Blocks) {
        let hashes = self.hashes;
        self.staged = Staged::new(
            slice,
            |engine, id| Block { hash: hashes.of(engine, id), content: blocks.content(id) },
            |engine, id| hashes.of(engine, id),
        );
        if self.caches == Caches::ThreeGroups {
            for event in slice.events.iter().filter(|event| matches!(event.kind, Kind::Store { .. })) {
                let engine = event.engine;
                let told = slice.blocks(event).iter().map(|&id| (hashes.of(engine, id), marks(engine, id)));
                self.marks.extend(told);
            }
        }
    }

    fn apply(&mut self, events: Range<usize>) {
        let tiers: &[Tier] =
            if self.caches == Caches::TwoTiers { &[Tier::Device, Tier::Host] } else { &[Tier::Device] };
        for step in &self.staged.steps[events] {
            match step {
                Step::Store { engine, parent, blocks: range } => {
                    let stream = self.streams[*engine as usize];
                    for tier in tiers {
                        let blocks = &self.staged.blocks[range.clone()];
                        let stored = self.index.store(stream, *tier, *parent, blocks);
                        debug_assert!(stored.is_ok());
                    }
                    if self.caches == Caches::ThreeGroups {
                        let marked = self.index.set_sides(stream, &self.marks[range.clone()]);
                        debug_assert!(marked.is_ok());
                    }
                }
                Step::Remove { engine, hashes } => {
                    let hashes = &self.staged.hashes[hashes.clone()];
                    for tier in tiers {
                        self.index.remove(self.streams[*engine as usize], *tier, hashes);
                    }
                }
            }
        }
    }

    fn unstage(&mut self) {
        self.staged = Staged::default();
        self.marks = Vec::new();
    }

    fn reader(&self, column: Column) -> Box<dyn Reader> {
        Box::new(self.asker(column))
    }

    fn remote_reader(&self, column: Column) -> Option<Box<dyn Reader + Send>> {
        Some(Box::new(self.asker(column)))
    }

    fn remove_engine(&mut self, engine: u32) {
        self.index.remove_stream(self.streams[engine as usize]);
        while self.index.reclaim(RECLAIM_BLOCKS) {}
    }
}

/// How an index is asked and answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// By hashes of blocks; the answer stays as it is, a few depths with those who hold as much.
    Strata,
    /// By hashes of blocks; the answer is spread out to a depth for each engine.
    Dense,
    /// By hashes of prefixes, where whoever asks has them.
    Chained,
    /// By hashes of blocks; the answer is from where each engine can go on.
    Groups,
}

struct Asker {
    reader: kvplane_index::Reader,
    form: Form,
    buffer: Buffer,
    prompts: Vec<Vec<u64>>,
    prompt: Prompt,
    depths: Vec<u32>,
    needs: Resumption,
    resumable: Vec<Depths>,
}

impl Asker {
    fn new(index: &Arc<Index>, engines: usize, form: Form) -> Self {
        Self {
            reader: index.reader(),
            form,
            buffer: Buffer::default(),
            prompts: Vec::new(),
            prompt: Prompt::new(Namespace::PLAIN, BLOCK_TOKENS as u32),
            // An engine that is asked for this has one tier, and so one lane.
            depths: vec![0; engines],
            needs: three_groups(),
            resumable: Vec::new(),
        }
    }
}

impl Reader for Asker {
    fn load(&mut self, prompts: &[Vec<u64>]) {
        self.prompts = match self.form {
            Form::Strata | Form::Dense | Form::Groups => prompts.to_vec(),
            Form::Chained => prompts.iter().map(|prompt| chained(prompt)).collect(),
        };
    }

    fn lookup(&mut self, prompt: usize) {
        let mut answer = ask(&mut self.reader, self.form, &self.prompts[prompt], &mut self.buffer);
        spread(&mut answer, self.form, &self.needs, &mut self.resumable, &mut self.depths);
        black_box((&answer, &self.depths));
    }

    fn lookup_tokens(&mut self, tokens: &[u32]) {
        self.prompt.restart(Namespace::PLAIN, BLOCK_TOKENS as u32);
        let mut answer = self.reader.query_tokens(&mut self.prompt, tokens, &mut self.buffer);
        spread(&mut answer, self.form, &self.needs, &mut self.resumable, &mut self.depths);
        black_box((&answer, &self.depths));
    }

    fn depths(&mut self, prompt: usize, depths: &mut [u32]) {
        let answer = ask(&mut self.reader, self.form, &self.prompts[prompt], &mut self.buffer);
        depths.fill(0);
        for found in answer.matches() {
            depths[found.owner as usize] = found.depths[Tier::Device as usize];
        }
    }
}

/// What is done with an answer.
fn spread(
    answer: &mut Answer<'_>,
    form: Form,
    needs: &Resumption,
    resumable: &mut Vec<Depths>,
    depths: &mut [u32],
) {
    match form {
        Form::Strata | Form::Chained => {}
        Form::Dense => answer.depths_into(depths),
        Form::Groups => {
            let matches = answer.matches();
            answer.resume(&matches, needs, None, resumable);
            black_box((&matches, &resumable));
        }
    }
}

fn ask<'a>(
    reader: &'a mut kvplane_index::Reader,
    form: Form,
    prompt: &[u64],
    buffer: &'a mut Buffer,
) -> Answer<'a> {
    match form {
        Form::Strata | Form::Dense | Form::Groups => reader.query(prompt, buffer),
        Form::Chained => reader.query_chained(prompt, buffer),
    }
}

fn chained(prompt: &[u64]) -> Vec<u64> {
    let mut last = None;
    let chain = prompt.iter().map(|content| {
        let prefix = chain_hash(last, *content);
        last = Some(prefix);
        prefix
    });
    chain.collect()
}
