//! SMG's `Generate`, as far as a report about the engine's cache needs it: the tokens of a plain prompt, and
//! how many of them the engine had cached. Field numbers are those of `smg-grpc-proto` 0.4.28.
//!
//! ```text
//!                        vLLM                SGLang              TokenSpeed          TensorRT-LLM
//! GenerateRequest        2 tokenized         2 tokenized         2 tokenized         2 tokenized
//!                        4 sampling          4 sampling          3 sampling          3 sampling
//!                        9 rank              16 rank             12 rank             -
//! TokenizedInput         2* ids              2* ids              1* ids              2* ids
//! SamplingParams         15 n                17 n                15 n                1 beams, 2 n
//! GenerateResponse       2 complete          3 complete          3 complete          3 complete
//! GenerateComplete       2 finish_reason     2 finish_reason     2 finish_reason     3 finish_reason
//!                        3 prompt_tokens     3 prompt_tokens     3 prompt_tokens     5 prompt_tokens
//!                        5 cached_tokens     5 cached_tokens     5 cached_tokens     7 cached_tokens
//!                        8 index             11 index            9 index             2 index
//! ```
//!
//! A prompt is plain only if every field of its request is known to leave the identity of its blocks alone.
//! Adapters, salts, images, transferred blocks and whatever later contracts add are not on that list. Nothing
//! here keeps or prints what a message says.

#[cfg(test)]
mod tests;

use super::fields::{Fault, Fields};

/// Tokens that one prompt may have. Beyond any context length.
const MAX_TOKENS: usize = 1 << 22;

/// Whose messages they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GenerateService {
    /// `vllm.grpc.engine.VllmEngine`.
    Vllm,
    /// `sglang.grpc.scheduler.SglangScheduler`.
    Sglang,
    /// `tokenspeed.grpc.scheduler.TokenSpeedScheduler`.
    Tokenspeed,
    /// `trtllm.TrtllmService`.
    Trtllm,
}

/// A prompt of tokens and nothing else.
#[derive(Clone, PartialEq, Eq)]
pub struct PlainPrompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The data-parallel rank that the request names.
    pub rank: Option<u32>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completed {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Those of them that were cached.
    pub cached_tokens: u32,
    /// Which of several outputs it is, from 0.
    pub index: u32,
    /// It was generated to an end: neither aborted nor failed.
    pub served: bool,
}

/// Why a message is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// It does not parse, or a number is out of range.
    Malformed,
    /// It has a field that may change what its blocks are, or that is not known.
    NotPlain,
    /// It asks for more than one output.
    ManyOutputs,
}

/// The field numbers of one service.
struct Numbers {
    /// Fields of a request that do not change what its blocks are.
    request: &'static [u32],
    rank: Option<u32>,
    sampling: u32,
    ids: u32,
    text: u32,
    /// Fields of the sampling parameters that do not change what its blocks are.
    harmless: &'static [u32],
    outputs: &'static [u32],
    complete: u32,
    finish_reason: u32,
    prompt_tokens: u32,
    cached_tokens: u32,
    index: u32,
}

/// The same in all requests.
const TOKENIZED: u32 = 2;

const VLLM: Numbers = Numbers {
    // request_id, stream
    request: &[1, 5],
    rank: Some(9),
    sampling: 4,
    ids: 2,
    text: 1,
    // All but prompt_logprobs (23), for which the cache is not read, and truncate_prompt_tokens (27).
    harmless: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22, 24, 25, 26, 28],
    outputs: &[15],
    complete: 2,
    finish_reason: 2,
    prompt_tokens: 3,
    cached_tokens: 5,
    index: 8,
};

const SGLANG: Numbers = Numbers {
    // request_id, logprob and hidden state options, timestamp, log_metrics, stream, require_reasoning
    request: &[1, 5, 6, 7, 8, 9, 12, 13, 17, 18],
    rank: Some(16),
    sampling: 4,
    ids: 2,
    text: 1,
    // All but custom_params (23).
    harmless: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22],
    outputs: &[17],
    complete: 3,
    finish_reason: 2,
    prompt_tokens: 3,
    cached_tokens: 5,
    index: 11,
};

const TOKENSPEED: Numbers = Numbers {
    // request_id, logprob options, stream
    request: &[1, 4, 5, 6, 7, 8],
    rank: Some(12),
    sampling: 3,
    ids: 1,
    text: 2,
    // All but custom_params (21).
    harmless: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 22, 23],
    outputs: &[15],
    complete: 3,
    finish_reason: 2,
    prompt_tokens: 3,
    cached_tokens: 5,
    index: 9,
};

const TRTLLM: Numbers = Numbers {
    // request_id, output options, max_tokens, streaming, guided_decoding, arrival_time, stop and bad words
    request: &[1, 4, 5, 6, 11, 20, 21, 22, 23, 24, 25, 26],
    rank: None,
    sampling: 3,
    ids: 2,
    text: 1,
    // All but those of a search with several beams.
    harmless: &[3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 18, 19],
    outputs: &[1, 2],
    complete: 3,
    finish_reason: 3,
    prompt_tokens: 5,
    cached_tokens: 7,
    index: 2,
};

// === impl GenerateService ===

impl GenerateService {
    /// The prompt of a `GenerateRequest`, if it is plain and has one output.
    pub fn plain_prompt(self, message: &[u8]) -> Result<PlainPrompt, Unusable> {
        let numbers = self.numbers();
        let (mut tokens, mut rank) = (None, None);
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            if number == TOKENIZED {
                // Twice would be one message in two parts.
                if tokens.replace(numbers.tokens(value.bytes()?)?).is_some() {
                    return Err(Unusable::Malformed);
                }
            } else if number == numbers.sampling {
                numbers.check_sampling(value.bytes()?)?;
            } else if Some(number) == numbers.rank {
                rank = Some(value.number()?);
            } else if !numbers.request.contains(&number) {
                return Err(Unusable::NotPlain);
            }
        }
        let tokens = tokens.ok_or(Unusable::NotPlain)?;
        Ok(PlainPrompt { tokens, rank })
    }

    /// What the last message for an output says; `None` of other messages.
    pub fn completed(self, message: &[u8]) -> Result<Option<Completed>, Unusable> {
        let numbers = self.numbers();
        let mut complete = None;
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            if number == numbers.complete && complete.replace(numbers.completed(value.bytes()?)?).is_some() {
                return Err(Unusable::Malformed);
            }
        }
        Ok(complete)
    }

    fn numbers(self) -> &'static Numbers {
        match self {
            Self::Vllm => &VLLM,
            Self::Sglang => &SGLANG,
            Self::Tokenspeed => &TOKENSPEED,
            Self::Trtllm => &TRTLLM,
        }
    }
}

// === impl Numbers ===

impl Numbers {
    fn tokens(&self, message: &[u8]) -> Result<Vec<u32>, Unusable> {
        let mut tokens = Vec::new();
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            if number == self.ids {
                value.varints(|token| {
                    let token = u32::try_from(token).map_err(|_| Unusable::Malformed)?;
                    if tokens.len() == MAX_TOKENS {
                        return Err(Unusable::Malformed);
                    }
                    tokens.push(token);
                    Ok(())
                })?;
            } else if number != self.text {
                return Err(Unusable::NotPlain);
            }
        }
        Ok(tokens)
    }

    fn check_sampling(&self, message: &[u8]) -> Result<(), Unusable> {
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            if self.outputs.contains(&number) {
                if value.varint()? > 1 {
                    return Err(Unusable::ManyOutputs);
                }
            } else if !self.harmless.contains(&number) {
                return Err(Unusable::NotPlain);
            }
        }
        Ok(())
    }

    fn completed(&self, message: &[u8]) -> Result<Completed, Unusable> {
        let mut completed = Completed { prompt_tokens: 0, cached_tokens: 0, index: 0, served: false };
        let mut fields = Fields::of(message);
        while let Some((number, value)) = fields.next()? {
            if number == self.finish_reason {
                completed.served =
                    matches!(value.bytes()?, b"stop" | b"length" | b"tool_calls" | b"stop_word");
            } else if number == self.prompt_tokens {
                completed.prompt_tokens = value.number()?;
            } else if number == self.cached_tokens {
                completed.cached_tokens = value.number()?;
            } else if number == self.index {
                completed.index = value.number()?;
            }
        }
        Ok(completed)
    }
}

// === impl PlainPrompt ===

impl std::fmt::Debug for PlainPrompt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlainPrompt")
            .field("tokens", &self.tokens.len())
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

// === impl Unusable ===

impl From<Fault> for Unusable {
    fn from(_: Fault) -> Self {
        Self::Malformed
    }
}
