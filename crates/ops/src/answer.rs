//! What came of a question.

use serde::Serialize;
use serde_json::Value;

/// What came of asking one backend.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// In one word.
    pub meaning: Meaning,
    /// In one sentence. What engines write is cut short in it and freed of control characters.
    pub why: String,
    /// What was asked last: `POST /flush_cache`, `gRPC FlushCache`; absent if nothing was.
    pub asked: Option<String>,
    /// Whether any of the request may have left.
    pub sent: bool,
    /// Whether the engine may still do it, or may have done it, although it did not say so.
    pub open: bool,
    /// What the engine said of itself, for verbs that ask for that.
    pub detail: Option<Value>,
}

/// What an answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Meaning {
    /// The engine took it.
    Accepted {
        /// Whether it also says that it did it. Without, only the stream of events can tell.
        proves: bool,
        /// For which ranks that holds.
        covers: Covers,
    },
    /// The engine is busy, or does not want to.
    Refused,
    /// It cannot be asked that, or not like that. Nothing happened.
    Unsupported,
    /// It could not be asked, or says that it failed.
    Failed,
    /// It did not answer in time.
    Timeout,
    /// It answered something that says neither yes nor no.
    Unknown,
}

impl Meaning {
    /// The name used in answers and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted { .. } => "accepted",
            Self::Refused => "refused",
            Self::Unsupported => "unsupported",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Unknown => "unknown",
        }
    }
}

/// For which ranks of a backend its answer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Covers {
    /// All of them.
    Backend,
    /// The first. The others were asked too, and nobody says what came of it.
    FirstRank,
}

/// The longest text of an engine that is shown.
const MAX_TEXT: usize = 240;

/// An engine's own words, fit to be shown.
pub(crate) fn quote(text: &str) -> String {
    let mut shown = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        let room = MAX_TEXT.saturating_sub(shown.len());
        if room <= word.len() {
            let cut = (0..=room).rev().find(|&at| word.is_char_boundary(at)).unwrap_or(0);
            shown.push_str(&word[..cut]);
            shown.push('…');
            break;
        }
        shown.push_str(word);
        shown.push(' ');
    }
    shown.trim_end().to_owned()
}

/// What one exchange means, before it is known which one it was.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Read {
    pub(crate) meaning: Meaning,
    pub(crate) why: String,
    pub(crate) open: bool,
    pub(crate) detail: Option<Value>,
}

impl Read {
    /// An answer that leaves nothing open.
    pub(crate) fn closed(meaning: Meaning, why: impl Into<String>) -> Self {
        Self { meaning, why: why.into(), open: false, detail: None }
    }

    /// No answer, or none that tells: it may have happened all the same.
    pub(crate) fn open(meaning: Meaning, why: impl Into<String>) -> Self {
        Self { open: true, ..Self::closed(meaning, why) }
    }

    pub(crate) fn with(mut self, detail: Value) -> Self {
        self.detail = Some(detail);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_words_are_shown_without_control_characters_and_cut_short() {
        assert_eq!(quote("Flush failed.\nNot  idle\u{1b}[31m\u{0}!"), "Flush failed. Not idle [31m !");
        assert_eq!(quote(""), "");
        for text in ["é".repeat(1000), "word ".repeat(1000), "x".repeat(MAX_TEXT + 1)] {
            let shown = quote(&text);
            assert!(shown.len() <= MAX_TEXT + '…'.len_utf8() && shown.ends_with('…'), "{shown}");
        }
    }
}
