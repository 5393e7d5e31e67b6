//! Reads the recorded sessions.

use std::path::Path;

use serde::Deserialize;

/// One line of a recording. Fields that a kind of line lacks are empty.
#[derive(Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) topic: String,
    #[serde(default)]
    pub(crate) seq_hex: String,
    #[serde(default)]
    pub(crate) payload_hex: String,
    pub(crate) frames_hex: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) n_frames: usize,
    #[serde(default)]
    pub(crate) step: u64,
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    pub(crate) cached_tokens: Option<usize>,
    pub(crate) cache_salt: Option<String>,
}

impl Line {
    pub(crate) fn is(&self, kind: &str) -> bool {
        self.kind == kind
    }

    pub(crate) fn payload(&self) -> Vec<u8> {
        bytes(&self.payload_hex)
    }

    /// The frames as the socket delivered them.
    pub(crate) fn frames(&self) -> Vec<Vec<u8>> {
        let (sequence, payload) = (bytes(&self.seq_hex), self.payload());
        let topic = self.topic.as_bytes().to_vec();
        let frames = match &self.frames_hex {
            Some(head) => head.iter().map(|frame| bytes(frame)).chain([payload]).collect(),
            None if self.is("live") => vec![topic, sequence, payload],
            None => vec![Vec::new(), topic, sequence, payload],
        };
        assert!(self.is("truth") || frames.len() == self.n_frames, "{self:?}");
        frames
    }
}

/// The lines of a recording, in order.
pub(crate) fn lines(name: &str) -> Vec<Line> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}
