//! What is asked of the fleet: requests, each with the blocks of its prompt.

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
pub fn read_mooncake(name: &str, text: &str, speed: f64) -> Result<Workload, TraceError> {
    let mut requests = Vec::new();
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
            session: None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_and_a_bad_line_is_named() {
        let good = r#"{"timestamp": 3000, "input_length": 1200, "output_length": 5, "hash_ids": [7, 8, 9]}"#;
        let workload = read_mooncake("t", good, 1.5).unwrap();
        assert_eq!(workload.requests[0].start, Start::At(2.0));
        assert_eq!(workload.requests[0].blocks, [7, 8], "the last block is not full");
        let short = r#"{"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [7]}"#;
        let both = format!("{good}\n{short}");
        assert!(matches!(read_mooncake("t", &both, 1.0), Err(TraceError::Blocks { line: 2, blocks: 1, .. })));
        assert!(matches!(read_mooncake("t", "no", 1.0), Err(TraceError::Line { line: 1, .. })));
        assert!(matches!(read_mooncake("t", "\n", 1.0), Err(TraceError::Empty)));
    }
}
