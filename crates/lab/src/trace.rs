//! What is asked of the fleet: requests, each with the blocks of its prompt.

use rustc_hash::FxHashMap;
use serde::Deserialize;

/// When a request arrives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    /// At this second.
    At(f64),
    /// This many seconds after that request is over: the next turn of a session.
    After(usize, f64),
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// When it arrives.
    pub start: Start,
    /// Whose conversation it is, where there is one.
    pub session: Option<u64>,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens that are generated.
    pub output: u64,
    /// Its whole blocks: each names the whole prefix that ends with it.
    pub blocks: Vec<u64>,
    /// Blocks that prompt and output fill together, beyond those of the prompt.
    pub filled: Vec<u64>,
}

/// Requests, and how large their blocks are.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Its name in the report.
    pub name: String,
    /// Tokens of a block.
    pub block: u64,
    /// A request starts after others that come before it here.
    pub requests: Vec<Request>,
}

/// A line of a trace that is not one.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Not a request.
    #[error(
        "line {line}: {error}; each line must be an object with timestamp, input_length, output_length and hash_ids"
    )]
    Line {
        /// Counted from 1.
        line: usize,
        /// Why.
        error: serde_json::Error,
    },
    /// A request that contradicts itself.
    #[error(
        "line {line}: {blocks} hash_ids do not cover input_length {tokens} in blocks of {MOONCAKE_BLOCK}"
    )]
    Blocks {
        /// Counted from 1.
        line: usize,
        /// Ids.
        blocks: usize,
        /// Tokens.
        tokens: u64,
    },
    /// No requests.
    #[error("the trace has no requests")]
    Empty,
}

const MOONCAKE_BLOCK: u64 = 512;

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// Reads a Mooncake trace: JSON lines, milliseconds, blocks of 512 tokens. `speed` divides the time between requests.
///
/// The trace does not name conversations. A request is taken for the next turn of an earlier one if it begins
/// with all whole blocks of that, which are two at least and half of its own, and is longer than that with
/// its answer.
pub fn read_mooncake(name: &str, text: &str, speed: f64) -> Result<Workload, TraceError> {
    let (mut requests, mut turns) = (Vec::new(), Turns::default());
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line_number = at + 1;
        let parsed: Result<Line, _> = serde_json::from_str(line);
        let Line { timestamp, input_length, output_length, hash_ids } =
            parsed.map_err(|error| TraceError::Line { line: line_number, error })?;
        let blocks = hash_ids.len();
        if blocks as u64 != input_length.div_ceil(MOONCAKE_BLOCK) {
            return Err(TraceError::Blocks { line: line_number, blocks, tokens: input_length });
        }
        let whole = (input_length / MOONCAKE_BLOCK) as usize;
        requests.push(Request {
            start: Start::At(timestamp / 1_000.0 / speed),
            session: Some(turns.session(&hash_ids[..whole], input_length, output_length)),
            prompt: input_length.max(1),
            output: output_length.max(1),
            blocks: hash_ids[..whole].to_vec(),
            filled: Vec::new(),
        });
    }
    if requests.is_empty() {
        return Err(TraceError::Empty);
    }
    Ok(Workload { name: name.to_owned(), block: MOONCAKE_BLOCK, requests })
}

/// Conversations so far.
#[derive(Default)]
struct Turns {
    /// By the last whole block of a prompt: its conversation, and the tokens of prompt and answer.
    last: FxHashMap<u64, (u64, u64)>,
    sessions: u64,
}

impl Turns {
    fn session(&mut self, blocks: &[u64], prompt: u64, output: u64) -> u64 {
        let long_enough = blocks.iter().enumerate().skip(1).filter(|(at, _)| (at + 1) * 2 >= blocks.len());
        let earlier =
            long_enough.rev().find_map(|(_, block)| self.last.get(block).filter(|last| last.1 < prompt));
        let session = earlier.map_or(self.sessions, |(session, _)| *session);
        self.sessions += u64::from(earlier.is_none());
        if let Some(block) = blocks.last() {
            self.last.insert(*block, (session, prompt + output));
        }
        session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_and_a_bad_line_is_named() {
        let good = r#"{"timestamp": 3000, "input_length": 1200, "output_length": 5, "hash_ids": [7, 8, 9]}"#;
        let workload = read_mooncake("t", good, 1.5).unwrap();
        assert_eq!(workload.requests[0].start, Start::At(2.0));
        assert_eq!(workload.requests[0].blocks, [7, 8], "the last block is not full");
        let line = |length: u64, ids: &[u64]| {
            format!(
                r#"{{"timestamp": 0, "input_length": {length}, "output_length": 9, "hash_ids": {ids:?}}}"#
            )
        };
        let turns = [
            line(1_100, &[1, 2, 3]),
            line(1_105, &[1, 2, 4]),
            line(1_600, &[1, 2, 5, 6]),
            line(600, &[1, 7]),
            line(2_100, &[1, 2, 5, 8, 9]),
            line(9_000, &(1..19).collect::<Vec<_>>()),
        ];
        let sessions = read_mooncake("t", &turns.join("\n"), 1.0).unwrap().requests;
        let sessions: Vec<_> = sessions.iter().map(|request| request.session.unwrap()).collect();
        assert_eq!(sessions, [0, 1, 1, 2, 1, 3], "the second is no longer than the first with its answer");
        let short = r#"{"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [7]}"#;
        let both = format!("{good}\n{short}");
        assert!(matches!(read_mooncake("t", &both, 1.0), Err(TraceError::Blocks { line: 2, blocks: 1, .. })));
        assert!(matches!(read_mooncake("t", "no", 1.0), Err(TraceError::Line { line: 1, .. })));
        assert!(matches!(read_mooncake("t", "\n", 1.0), Err(TraceError::Empty)));
    }
}
