//! What an engine reports of a request, read from its response while it passes.
//!
//! Nothing of the body is kept but the object called `usage`, up to [`MAX_USAGE`] bytes.

#[cfg(any(test, feature = "checks"))]
pub(crate) mod checks;
mod rename;
mod walker;
mod withhold;

use memchr::memchr;
use serde::Deserialize;

pub use rename::{Rename, rename_model};
use walker::{Found, Walker};
pub use withhold::Withhold;

/// Bytes of a usage object; a longer one is not read.
const MAX_USAGE: usize = 4 << 10;

/// Tokens of a request, as far as the engine says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt. Absent where the API does not count cached ones among them.
    pub prompt: Option<u64>,
    /// Of those, the ones that came from a cache.
    pub cached: Option<u64>,
    /// Tokens that were generated.
    pub output: Option<u64>,
}

#[derive(Deserialize)]
struct UsageJson {
    prompt_tokens: Option<u64>,
    input_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    output_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    input_tokens_details: Option<Details>,
    /// Anthropic's; its `input_tokens` are without them.
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Usage {
    fn parse(object: &[u8]) -> Option<Self> {
        let json: UsageJson = serde_json::from_slice(object).ok()?;
        let anthropic = json.cache_read_input_tokens.is_some() || json.cache_creation_input_tokens.is_some();
        let details = json.prompt_tokens_details.or(json.input_tokens_details);
        Some(Self {
            prompt: json.prompt_tokens.or_else(|| json.input_tokens.filter(|_| !anthropic)),
            cached: details.and_then(|details| details.cached_tokens).or(json.cache_read_input_tokens),
            output: json.completion_tokens.or(json.output_tokens),
        })
    }

    /// What comes later is worth more; what it leaves out stays.
    fn update(&mut self, later: Self) {
        self.prompt = later.prompt.or(self.prompt);
        self.cached = later.cached.or(self.cached);
        self.output = later.output.or(self.output);
    }
}

/// How a body is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One document.
    Json,
    /// Server-sent events.
    Events,
}

impl Format {
    /// By the content type.
    pub fn of(content_type: &str) -> Option<Self> {
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        match kind {
            "text/event-stream" => Some(Self::Events),
            "application/json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// Where in a line of events the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// This many bytes of [`DATA`] were there, and nothing else.
    Name(usize),
    /// In the data.
    Data,
    /// In a line that is no data. `true`: it may still turn out to be empty.
    Other(bool),
}

const DATA: &[u8] = b"data:";

/// Reads bodies piece by piece.
#[derive(Debug)]
pub struct Scanner {
    format: Format,
    line: Line,
    walker: Walker,
    usage: Usage,
    /// Where models are, where somebody asks.
    marks: Option<Vec<Mark>>,
}

/// Where a model's text is in the piece that was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Its first quote.
    Begins { at: usize, outer: bool },
    /// Behind its last.
    Ends { at: usize },
    /// The event ended within it.
    Cut,
}

impl Scanner {
    /// For a body of this format.
    pub fn new(format: Format) -> Self {
        Self { format, line: Line::Name(0), walker: Walker::default(), usage: Usage::default(), marks: None }
    }

    /// One that says where models are.
    pub(crate) fn with_marks(format: Format) -> Self {
        Self { marks: Some(Vec::new()), ..Self::new(format) }
    }

    /// What was marked since the last time.
    pub(crate) fn take_marks(&mut self) -> Vec<Mark> {
        self.marks.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What was found up to here.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Reads the next piece. Takes time by its length alone.
    pub fn feed(&mut self, piece: &[u8]) {
        match self.format {
            Format::Json => self.walk(piece, 0),
            Format::Events => self.lines(piece),
        }
    }

    fn walk(&mut self, bytes: &[u8], from: usize) {
        let (usage, marks) = (&mut self.usage, &mut self.marks);
        self.walker.feed(bytes, from, |found| match (found, &mut *marks) {
            (Found::Usage(object), _) => {
                if let Some(found) = Usage::parse(object) {
                    usage.update(found);
                }
            }
            (Found::ModelBegins { at, outer }, Some(marks)) => marks.push(Mark::Begins { at, outer }),
            (Found::ModelEnds { at }, Some(marks)) => marks.push(Mark::Ends { at }),
            (Found::ModelBegins { .. } | Found::ModelEnds { .. }, None) => {}
        });
    }

    fn lines(&mut self, mut bytes: &[u8]) {
        let length = bytes.len();
        while let Some(&first) = bytes.first() {
            match self.line {
                Line::Name(_) | Line::Other(_) if first == b'\n' => {
                    // An empty line ends the event.
                    if matches!(self.line, Line::Name(0) | Line::Other(true)) {
                        if let Some(marks) = &mut self.marks
                            && self.walker.in_model()
                        {
                            marks.push(Mark::Cut);
                        }
                        self.walker = Walker::default();
                    }
                    self.line = Line::Name(0);
                    bytes = &bytes[1..];
                }
                Line::Name(known) => {
                    self.line = match first {
                        byte if DATA.get(known) == Some(&byte) && known + 1 == DATA.len() => Line::Data,
                        byte if DATA.get(known) == Some(&byte) => Line::Name(known + 1),
                        b'\r' if known == 0 => Line::Other(true),
                        _ => Line::Other(false),
                    };
                    bytes = &bytes[1..];
                }
                Line::Other(_) => {
                    self.line = Line::Other(false);
                    bytes = &bytes[memchr(b'\n', bytes).unwrap_or(bytes.len())..];
                }
                Line::Data => {
                    let end = memchr(b'\n', bytes);
                    self.walk(&bytes[..end.unwrap_or(bytes.len())], length - bytes.len());
                    let Some(end) = end else { return };
                    self.line = Line::Name(0);
                    bytes = &bytes[end + 1..];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
