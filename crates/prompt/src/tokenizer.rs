//! Tokenizers: fastokens where it computes what Hugging Face's does, and that one otherwise.

use std::fmt;
use std::path::Path;

use kvplane_transport::read_small_file;
use serde_json::Value;
use tokenizers::AddedToken;

use crate::LoadError;

/// The largest `tokenizer.json`. The largest in use has some 40 MB.
const MAX_FILE: u64 = 256 << 20;
/// Bytes of segments between special tokens, with their ids, that each tokenizer keeps. One segment may take
/// a 64th of it.
const SEGMENT_CACHE: usize = 64 << 20;

/// Whose code computes the ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Implementation {
    /// `fastokens`, compared with Hugging Face's over a fixed corpus when it was loaded.
    Fast,
    /// Hugging Face's `tokenizers`: slower, and no segment is kept.
    HuggingFace,
    /// None here: engines are asked.
    Engine,
}

impl Implementation {
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fastokens",
            Self::HuggingFace => "tokenizers",
            Self::Engine => "engine",
        }
    }
}

/// A vocabulary and the rules that go with it.
pub struct Tokenizer {
    inner: Inner,
}

enum Inner {
    Fast(Box<fastokens::Tokenizer>),
    HuggingFace(Box<tokenizers::Tokenizer>),
    Engine,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("implementation", &self.implementation()).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, and added tokens of the `tokenizer_config.json` beside it. Takes seconds for
    /// a large vocabulary.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let slow = reference(path)?;
        match fast(path, &slow) {
            Ok(fast) => Ok(Self { inner: Inner::Fast(Box::new(fast)) }),
            Err(reason) => {
                tracing::warn!(path = %path.display(), reason, "fast tokenizer not used");
                Ok(Self { inner: Inner::HuggingFace(Box::new(slow)) })
            }
        }
    }

    /// None: whoever has it is asked.
    pub(crate) fn of_engine() -> Self {
        Self { inner: Inner::Engine }
    }

    /// The same by Hugging Face's code, whatever the other does.
    pub fn load_reference(path: &Path) -> Result<Self, LoadError> {
        Ok(Self { inner: Inner::HuggingFace(Box::new(reference(path)?)) })
    }

    /// Whose code it is.
    pub fn implementation(&self) -> Implementation {
        match self.inner {
            Inner::Fast(_) => Implementation::Fast,
            Inner::HuggingFace(_) => Implementation::HuggingFace,
            Inner::Engine => Implementation::Engine,
        }
    }

    /// The ids of a text; with special tokens around it where the vocabulary says so. `None` is a defect of
    /// the tokenizer.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
        match &self.inner {
            Inner::Fast(fast) => fast.encode_with_special_tokens(text, add_special_tokens).ok(),
            Inner::HuggingFace(slow) => {
                let encoding = slow.encode_fast(text, add_special_tokens).ok()?;
                Some(encoding.get_ids().to_vec())
            }
            Inner::Engine => None,
        }
    }

    /// Segments taken from the cache, and segments that had to be computed.
    pub fn cached_segments(&self) -> (u64, u64) {
        match &self.inner {
            Inner::Fast(fast) => {
                fast.segment_cache_stats().map_or((0, 0), |stats| (stats.hits, stats.misses))
            }
            Inner::HuggingFace(_) | Inner::Engine => (0, 0),
        }
    }
}

fn reference(path: &Path) -> Result<tokenizers::Tokenizer, LoadError> {
    let bytes = read_small_file(path, MAX_FILE).map_err(|error| LoadError::new(path, error.to_string()))?;
    let not_one =
        |error: tokenizers::Error| LoadError::new(path, format!("is not a tokenizer.json: {error}"));
    let mut slow = tokenizers::Tokenizer::from_bytes(&bytes).map_err(not_one)?;
    // Requests are neither cut nor filled up, whatever the file says.
    slow.with_truncation(None).map_err(not_one)?;
    slow.with_padding(None);
    slow.add_tokens(added_tokens(path)).map_err(not_one)?;
    Ok(slow)
}

/// Tokens that only `tokenizer_config.json` declares, in the order of their ids. transformers adds them too.
fn added_tokens(tokenizer: &Path) -> Vec<AddedToken> {
    let path = tokenizer.with_file_name("tokenizer_config.json");
    let config: Value = match read_small_file(&path, MAX_FILE).map(|bytes| serde_json::from_slice(&bytes)) {
        Ok(Ok(config)) => config,
        _ => return Vec::new(),
    };
    let Some(declared) = config["added_tokens_decoder"].as_object() else { return Vec::new() };
    let mut tokens: Vec<(u32, AddedToken)> = Vec::new();
    for (id, token) in declared {
        if let (Ok(id), Ok(token)) = (id.parse(), serde_json::from_value(token.clone())) {
            tokens.push((id, token));
        }
    }
    tokens.sort_by_key(|(id, _)| *id);
    tokens.into_iter().map(|(_, token)| token).collect()
}

/// The fast implementation, if it supports the file and computes the same over the corpus.
fn fast(path: &Path, slow: &tokenizers::Tokenizer) -> Result<fastokens::Tokenizer, String> {
    let mut fast = fastokens::Tokenizer::from_file(path).map_err(|error| error.to_string())?;
    fast.set_truncation(None);
    fast.set_padding(None);
    let mut corpus: Vec<String> = CORPUS.iter().map(|text| (*text).to_owned()).collect();
    // Special tokens with text on both sides, as in every chat.
    let mut added: Vec<_> = slow.get_added_tokens_decoder().into_iter().collect();
    added.sort_by_key(|(id, _)| *id);
    for (_, token) in added.iter().take(64) {
        let token = &token.content;
        corpus.push(format!("user\n{token}Hello, world!{token}\n {token} x{token}{token}"));
    }
    corpus.push(CORPUS.concat());
    for (number, text) in corpus.iter().enumerate() {
        for special in [false, true] {
            let expected = slow.encode_fast(text.as_str(), special).map_err(|error| error.to_string())?;
            let computed =
                fast.encode_with_special_tokens(text, special).map_err(|error| error.to_string())?;
            if computed != expected.get_ids() {
                return Err(format!("ids differ for text {number} of the corpus"));
            }
        }
    }
    fast.enable_segment_cache(SEGMENT_CACHE);
    // Both paths have to agree, the one that fills the cache and the one that reads it.
    for text in corpus.iter().chain(&corpus) {
        let expected = slow.encode_fast(text.as_str(), false).map_err(|error| error.to_string())?;
        if fast.encode_with_special_tokens(text, false).ok().as_deref() != Some(expected.get_ids()) {
            return Err("ids from the cache differ".to_owned());
        }
    }
    Ok(fast)
}

/// Texts on which tokenizers have differed: scripts, numbers, white space, contractions, marks, invalid and
/// invisible characters.
const CORPUS: [&str; 20] = [
    "Hello, world! It's John's; they'll, we'd, I'M, DON'T.",
    "  leading and trailing   \t\n\n   \r\n x  \n",
    "1 12 123 1234 12345 1,234.567 0x1F 10^9 3.14e-10 ½ ² ⅷ ٣٤",
    "fn main() {\n    let x: Vec<u32> = vec![1, 2];\n\tprintln!(\"{x:?}\");\n}\n",
    "naïve café Straße Ångström ﬁ ﬀ Ⅻ e\u{301} a\u{30a}\u{323}",
    "Привет, мир! Как дела? Ёжик.",
    "你好，世界！今天天气怎么样？「引用」",
    "こんにちは世界。カタカナとひらがな、漢字。",
    "안녕하세요 세계",
    "مرحبا بالعالم ١٢٣",
    "שלום עולם",
    "नमस्ते दुनिया क्षत्रिय",
    "สวัสดีชาวโลก",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 \u{1f600}\u{fe0f}",
    "zero\u{200b}width \u{feff}bom nbsp\u{a0}here \u{2028}line \u{85}next \u{1c}fs \u{0}nul",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<|im_start|> <s> </s> <|endoftext|> [INST] <unk> <0x0A> ▁ Ġ Ċ",
    "{\"a\": [1, null, true], \"b\": {\"c\": \"d\\n\"}}",
    "https://example.com/a?b=c&d=%20#e user@example.com C:\\path",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \u{10fffd} \u{e000} ꙮ \u{1d165}",
];
