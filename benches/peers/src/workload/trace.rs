//! Recorded load: Mooncake's conversation trace.
//!
//! A line is a request. `hash_ids` names its prompt in pieces of 512 tokens, so that equal ids are equal
//! prompts up to there. Answers are not named: their blocks are new.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use rustc_hash::FxHashMap;
use serde::Deserialize;

use super::blocks::{BLOCK_TOKENS, BlockId, Blocks};
use super::fleet::{Fleet, Turn};

/// Blocks in one piece of the trace.
const PIECE_BLOCKS: usize = 512 / BLOCK_TOKENS;

/// Requests that are remembered when they are over, whose blocks may still be cached.
const ENDED_MAX: usize = 4096;

#[derive(Debug, Deserialize)]
struct Line {
    output_length: usize,
    hash_ids: Vec<u32>,
}

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadTrace {
    #[error("cannot read the trace: {0}")]
    Read(#[from] io::Error),
    #[error("line {line} of the trace is not a request: {error}")]
    Line { line: usize, error: serde_json::Error },
}

/// Requests in the order of the trace.
#[derive(Debug)]
pub(crate) struct Trace {
    lines: VecDeque<Line>,
    /// The first block of each piece that has been seen.
    pieces: FxHashMap<u32, BlockId>,
    ended: VecDeque<Vec<BlockId>>,
}

impl Trace {
    pub(crate) fn read(path: &Path) -> Result<Self, BadTrace> {
        let mut lines = VecDeque::new();
        for (number, text) in BufReader::new(File::open(path)?).lines().enumerate() {
            let line =
                serde_json::from_str(&text?).map_err(|error| BadTrace::Line { line: number + 1, error })?;
            lines.push_back(line);
        }
        Ok(Self { lines, pieces: FxHashMap::default(), ended: VecDeque::new() })
    }

    /// The next request, unless the trace is over or no engine has room for it.
    pub(crate) fn next(&mut self, fleet: &Fleet, blocks: &mut Blocks) -> Option<Turn> {
        let line = self.lines.front()?;
        let answer = line.output_length / BLOCK_TOKENS;
        let length = line.hash_ids.len() * PIECE_BLOCKS + answer;
        let mut chain = Vec::with_capacity(length);
        for piece in &line.hash_ids {
            let first = *self.pieces.entry(*piece).or_insert_with(|| blocks.make(PIECE_BLOCKS));
            chain.extend(first..first + PIECE_BLOCKS as BlockId);
        }
        let prompt = chain.len();
        let engine = fleet.holder_of_half(&chain, length).or_else(|| fleet.least_loaded(length))?;
        let first = blocks.make(answer);
        chain.extend(first..first + answer as BlockId);
        self.lines.pop_front();
        Some(Turn { engine, chain, prompt, conversation: 0 })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lines.is_empty()
    }

    /// A request is over.
    pub(crate) fn end(&mut self, turn: Turn) {
        self.ended.push_back(turn.chain);
        if self.ended.len() > ENDED_MAX {
            self.ended.pop_front();
        }
    }

    /// Prompts of requests that are over and may still be cached.
    pub(crate) fn chains(&self) -> impl Iterator<Item = &[BlockId]> {
        self.ended.iter().map(|chain| &chain[..])
    }
}
