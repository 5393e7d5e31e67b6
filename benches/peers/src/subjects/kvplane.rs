//! kvplane's own index.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Namespace, Tier, chain_hash};
use kvplane_index::{Answer, Block, Buffer, Index, Options, Prompt, Slot};

use super::staged::{Staged, Step};
use super::{Column, Reader, Saved, Subject};
use crate::clock::process_seconds;
use crate::workload::{BLOCK_TOKENS, Blocks, EngineHashes, Slice};

/// Blocks that are reclaimed at a time when an engine has left.
const RECLAIM_BLOCKS: usize = 4096;

pub(super) struct Kvplane {
    index: Arc<Index>,
    streams: Vec<Slot>,
    hashes: EngineHashes,
    staged: Staged<Block, u64>,
}

impl Kvplane {
    pub(super) fn new(engines: usize, hashes: EngineHashes) -> Self {
        let index = Index::new(&Options::default());
        let streams = (0..engines as u64).map(|engine| index.add_stream(engine)).collect();
        Self { index, streams, hashes, staged: Staged::default() }
    }

    fn asker(&self, column: Column) -> Asker {
        let form = match column {
            Column::KvplaneDense => Form::Dense,
            Column::KvplaneChained => Form::Chained,
            _ => Form::Strata,
        };
        Asker::new(&self.index, self.streams.len(), form)
    }
}

impl Subject for Kvplane {
    fn columns(&self) -> &'static [Column] {
        match self.hashes {
            EngineHashes::Equal => &[Column::Kvplane, Column::KvplaneDense, Column::KvplaneChained],
            EngineHashes::Different => &[Column::KvplaneOwnHashes],
        }
    }

    fn stage(&mut self, slice: &Slice, blocks: &Blocks) {
        let hashes = self.hashes;
        self.staged = Staged::new(
            slice,
            |engine, id| Block { hash: hashes.of(engine, id), content: blocks.content(id) },
            |engine, id| hashes.of(engine, id),
        );
    }

    fn apply(&mut self, events: Range<usize>) {
        for step in &self.staged.steps[events] {
            match step {
                Step::Store { engine, parent, blocks } => {
                    let blocks = &self.staged.blocks[blocks.clone()];
                    let stored =
                        self.index.store(self.streams[*engine as usize], Tier::Device, *parent, blocks);
                    debug_assert!(stored.is_ok());
                }
                Step::Remove { engine, hashes } => {
                    let hashes = &self.staged.hashes[hashes.clone()];
                    self.index.remove(self.streams[*engine as usize], Tier::Device, hashes);
                }
            }
        }
    }

    fn unstage(&mut self) {
        self.staged = Staged::default();
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

    fn save(&mut self) -> Option<Saved> {
        // A snapshot is of a sequence. Nobody counts here: everything so far is the first.
        for stream in &self.streams {
            self.index.mark(*stream, 1);
        }
        let (mut bytes, mut longest_hold) = (0, Duration::ZERO);
        let seconds = process_seconds(|| {
            for stream in &self.streams {
                let Some(snapshot) = self.index.snapshot(*stream) else { continue };
                bytes += snapshot.chunks.iter().map(Vec::len).sum::<usize>();
                longest_hold = longest_hold.max(snapshot.longest_hold);
            }
        });
        Some(Saved { seconds, bytes, longest_hold_seconds: Some(longest_hold.as_secs_f64()) })
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
}

struct Asker {
    reader: kvplane_index::Reader,
    form: Form,
    buffer: Buffer,
    prompts: Vec<Vec<u64>>,
    prompt: Prompt,
    depths: Vec<u32>,
}

impl Asker {
    fn new(index: &Arc<Index>, engines: usize, form: Form) -> Self {
        Self {
            reader: index.reader(),
            form,
            buffer: Buffer::default(),
            prompts: Vec::new(),
            prompt: Prompt::new(Namespace::PLAIN, BLOCK_TOKENS as u32),
            // Every engine has one tier here, and so one lane.
            depths: vec![0; engines],
        }
    }
}

impl Reader for Asker {
    fn load(&mut self, prompts: &[Vec<u64>]) {
        self.prompts = match self.form {
            Form::Strata | Form::Dense => prompts.to_vec(),
            Form::Chained => prompts.iter().map(|prompt| chained(prompt)).collect(),
        };
    }

    fn lookup(&mut self, prompt: usize) {
        let answer = ask(&mut self.reader, self.form, &self.prompts[prompt], &mut self.buffer);
        if self.form == Form::Dense {
            answer.depths_into(&mut self.depths);
        }
        black_box((&answer, &self.depths));
    }

    fn lookup_tokens(&mut self, tokens: &[u32]) {
        self.prompt.restart(Namespace::PLAIN, BLOCK_TOKENS as u32);
        let answer = self.reader.query_tokens(&mut self.prompt, tokens, &mut self.buffer);
        if self.form == Form::Dense {
            answer.depths_into(&mut self.depths);
        }
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

fn ask<'a>(
    reader: &'a mut kvplane_index::Reader,
    form: Form,
    prompt: &[u64],
    buffer: &'a mut Buffer,
) -> Answer<'a> {
    match form {
        Form::Strata | Form::Dense => reader.query(prompt, buffer),
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
