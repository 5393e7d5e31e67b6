//! SMG's `ChainIndex`.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;

use kv_index::{
    ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock, compute_request_content_hashes,
};

use super::staged::{Staged, Step};
use super::{Column, Reader, Subject};
use crate::workload::{BLOCK_TOKENS, Blocks, EngineHashes, Slice};

/// Engines that a `ChainIndex` can serve.
const ENGINES_MAX: usize = 1024;

pub(super) struct Chain {
    index: Arc<ChainIndex>,
    workers: Vec<u32>,
    /// By engine: which blocks it holds, and where they are in the index. Belongs to the writer.
    maps: Vec<ChainBlockMap>,
    staged: Staged<StoredBlock, SequenceHash>,
}

impl Chain {
    pub(super) fn new(engines: usize) -> Option<Self> {
        if engines > ENGINES_MAX {
            return None;
        }
        // As many as there are: room for more would cost memory and time.
        let index = ChainIndex::with_max_workers(engines);
        let names = (0..engines).map(|engine| format!("engine-{engine}"));
        let workers = names.map(|name| index.intern_worker(&name).ok()).collect::<Option<Vec<u32>>>()?;
        let maps = workers.iter().map(|_| ChainBlockMap::new()).collect();
        Some(Self { index: Arc::new(index), workers, maps, staged: Staged::default() })
    }

    fn asker(&self, column: Column) -> Asker {
        let engines = self.workers.len();
        let mut engine_of = vec![0; engines];
        for (engine, worker) in self.workers.iter().enumerate() {
            engine_of[*worker as usize] = engine;
        }
        Asker {
            index: self.index.clone(),
            by_map: column == Column::ChainIndexMap,
            prompts: Vec::new(),
            scores: Vec::with_capacity(engines),
            engine_of,
        }
    }
}

impl Subject for Chain {
    fn columns(&self) -> &'static [Column] {
        &[Column::ChainIndex, Column::ChainIndexMap]
    }

    fn stage(&mut self, slice: &Slice, blocks: &Blocks) {
        let hash = |engine, id| SequenceHash(EngineHashes::Equal.of(engine, id));
        let block = |engine, id| StoredBlock {
            seq_hash: hash(engine, id),
            content_hash: ContentHash(blocks.content(id)),
        };
        self.staged = Staged::new(slice, block, hash);
    }

    fn apply(&mut self, events: Range<usize>) {
        for step in &self.staged.steps[events] {
            match step {
                Step::Store { engine, parent, blocks } => {
                    let blocks = &self.staged.blocks[blocks.clone()];
                    let map = &mut self.maps[*engine as usize];
                    let stored =
                        self.index.apply_stored(self.workers[*engine as usize], blocks, *parent, map);
                    debug_assert!(stored.is_ok());
                }
                Step::Remove { engine, hashes } => {
                    let hashes = &self.staged.hashes[hashes.clone()];
                    let map = &mut self.maps[*engine as usize];
                    self.index.apply_removed(self.workers[*engine as usize], hashes, map);
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
        let map = std::mem::take(&mut self.maps[engine as usize]);
        self.index.remove_worker(self.workers[engine as usize], map);
    }
}

struct Asker {
    index: Arc<ChainIndex>,
    by_map: bool,
    prompts: Vec<Vec<ContentHash>>,
    /// The answer of `score_into`: (worker, blocks), reused from question to question.
    scores: Vec<(u32, u32)>,
    engine_of: Vec<usize>,
}

impl Asker {
    fn ask(index: &ChainIndex, by_map: bool, prompt: &[ContentHash], scores: &mut Vec<(u32, u32)>) {
        if by_map {
            black_box(&index.find_matches(prompt, false));
        } else {
            scores.clear();
            index.score_into(
                prompt,
                |content| content.0,
                false,
                |worker, blocks| scores.push((worker, blocks)),
            );
            black_box(&scores);
        }
    }
}

impl Reader for Asker {
    fn load(&mut self, prompts: &[Vec<u64>]) {
        self.prompts =
            prompts.iter().map(|prompt| prompt.iter().copied().map(ContentHash).collect()).collect();
    }

    fn lookup(&mut self, prompt: usize) {
        Self::ask(&self.index, self.by_map, &self.prompts[prompt], &mut self.scores);
    }

    fn lookup_tokens(&mut self, tokens: &[u32]) {
        // The faster of its two ways to hash a request; the other one takes a seed.
        let prompt = compute_request_content_hashes(tokens, BLOCK_TOKENS);
        Self::ask(&self.index, self.by_map, &prompt, &mut self.scores);
    }

    fn depths(&mut self, prompt: usize, depths: &mut [u32]) {
        depths.fill(0);
        let prompt = &self.prompts[prompt];
        let engine_of = &self.engine_of;
        if self.by_map {
            for (worker, blocks) in self.index.find_matches(prompt, false).scores {
                depths[engine_of[worker as usize]] = blocks;
            }
        } else {
            let report = |worker, blocks| depths[engine_of[worker as usize]] = blocks;
            self.index.score_into(prompt, |content| content.0, false, report);
        }
    }
}
