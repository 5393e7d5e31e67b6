//! Who holds how much of a prompt: what is asked, checked once for every protocol.

use kvplane_core::{MultimodalItem, Names, PublicError, Trust};
use kvplane_wire::OwnedExtraKey;

use crate::Catalog;
use crate::answer::Answer;
use crate::ask::Listing;
use crate::prompt::{Prompt, PromptKeys};

// What to do about fields that do not go together.
const LEAVE_IT_OUT: &str = "leave it out";
const LEAVE_ONE_OUT: &str = "leave out one of the two";

/// Characters of a caller's word that an error repeats.
const SHOWN: usize = 64;

/// Streams that an answer lists where the question does not say how many.
pub const DEFAULT_LIMIT: usize = 32;

/// A question as it came in. Reused from request to request: lists keep their room.
#[derive(Debug, Default)]
pub struct Question {
    /// Whose streams are asked.
    pub model: Option<String>,
    /// The whole prompt.
    pub token_ids: Option<Vec<u32>>,
    /// Or hashes of its blocks, from the first on.
    pub block_hashes: Option<Vec<u64>>,
    /// Each hash is of the whole prefix that ends with its block.
    pub chained: Option<bool>,
    /// Tokens per block, beside hashes or extra keys.
    pub block_size: Option<u32>,
    /// The prompt's adapter.
    pub lora_name: Option<String>,
    /// Its number, where it has no name.
    pub lora_id: Option<i64>,
    /// The prompt's salt.
    pub cache_salt: Option<String>,
    /// One list per block.
    pub extra_keys: Option<Vec<Vec<OwnedExtraKey>>>,
    /// What else the prompt is made of: in order, without overlap.
    pub multimodal: Option<Vec<MultimodalItem>>,
    /// Each group of a cache is asked for.
    pub groups: Option<bool>,
    /// The greatest number of streams to list; [`DEFAULT_LIMIT`] when absent.
    pub limit: Option<u32>,
    /// List only streams that hold at least this number of tokens.
    pub min_tokens: Option<u64>,
    /// Every stream is listed, also those that hold nothing.
    pub all: Option<bool>,
    /// An empty list, kept for the next question.
    pub token_room: Vec<u32>,
    /// An empty list, kept for the next question.
    pub hash_room: Vec<u64>,
}

/// Whom a question may credit, and how long it may be.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// What a stream's word must be worth.
    pub credit: &'a [Trust],
    /// Elements of a list.
    pub max_tokens: usize,
}

impl Question {
    /// Checks the question, asks the streams of its model, and hands the answer to `read`.
    pub fn ask<R>(
        &self,
        catalog: &Catalog,
        Asking { credit, max_tokens }: Asking<'_>,
        read: impl FnOnce(&Answer<'_>) -> R,
    ) -> Result<R, PublicError> {
        let known = || match &catalog.models()[..] {
            [] => "no models yet: add an engine with `kvplane engines add`".to_owned(),
            models => format!("known models: {}", models.join(", ")),
        };
        // An engine may be configured without a model; otherwise an empty name is none.
        let missing = || PublicError::field("model", "is missing").with_next(known());
        let unknown = |model: &str| {
            let shown: String = model.chars().take(SHOWN).collect();
            PublicError::field("model", format!("{shown:?} is not known")).with_next(known())
        };
        let model = self.model.as_deref().ok_or_else(missing)?;
        let prompt = self.prompt(max_tokens)?;
        let listing = self.listing()?;
        let roster = catalog.model(model);
        let roster = roster.ok_or_else(|| if model.is_empty() { missing() } else { unknown(model) })?;
        Ok(if self.groups == Some(true) {
            roster.ask_by_group(&prompt, credit, listing, read)
        } else {
            roster.ask_for(&prompt, credit, listing, read)
        })
    }

    /// Which streams are to be listed.
    fn listing(&self) -> Result<Listing, PublicError> {
        if self.all != Some(true) {
            let limit = self.limit.map_or(DEFAULT_LIMIT, |limit| limit as usize);
            let min_tokens = self.min_tokens.unwrap_or(0);
            return Ok(Listing { limit: Some(limit), min_tokens, empty: false });
        }
        for (field, given) in [("limit", self.limit.is_some()), ("min_tokens", self.min_tokens.is_some())] {
            if given {
                return Err(PublicError::field(field, "and all exclude each other").with_next(LEAVE_ONE_OUT));
            }
        }
        Ok(Listing::ALL)
    }

    fn prompt(&self, max_tokens: usize) -> Result<Prompt<'_>, PublicError> {
        match (&self.token_ids, &self.block_hashes) {
            (Some(_), Some(_)) => Err(PublicError::field("token_ids", "and block_hashes exclude each other")
                .with_next(LEAVE_ONE_OUT)),
            (None, None) => Err(PublicError::field("token_ids", "is missing")
                .with_next("give token_ids, or block_hashes with block_size")),
            (Some(ids), None) => {
                if self.chained.is_some() {
                    return Err(PublicError::field("chained", "goes with block_hashes, not with token_ids")
                        .with_next(LEAVE_IT_OUT));
                }
                check_length("token_ids", ids.len(), max_tokens)?;
                self.tokens(ids)
            }
            (None, Some(hashes)) => {
                let block_size = self.block_size_beside("block_hashes")?;
                for (field, given) in [
                    ("lora_name", self.lora_name.is_some()),
                    ("lora_id", self.lora_id.is_some()),
                    ("cache_salt", self.cache_salt.is_some()),
                    ("extra_keys", self.extra_keys.is_some()),
                    ("multimodal", self.multimodal.is_some()),
                ] {
                    if given {
                        return Err(PublicError::field(field, "is part of block_hashes already")
                            .with_next(LEAVE_IT_OUT));
                    }
                }
                check_length("block_hashes", hashes.len(), max_tokens)?;
                let chained = self.chained.unwrap_or(false);
                Ok(Prompt::Hashes { hashes, chained, block_size: Some(block_size) })
            }
        }
    }

    /// A prompt of tokens, with whatever else its blocks are made of.
    fn tokens<'a>(&'a self, ids: &'a [u32]) -> Result<Prompt<'a>, PublicError> {
        let names = self.names();
        match (&self.extra_keys, &self.multimodal) {
            (Some(_), Some(_)) => Err(PublicError::field("multimodal", "and extra_keys exclude each other")
                .with_next(LEAVE_ONE_OUT)),
            (Some(lists), None) => {
                let block_size = self.block_size_beside("extra_keys")?;
                check_lists(lists.len(), ids.len(), block_size)?;
                let first = lists.first().into_iter().flatten().map(OwnedExtraKey::as_block_key);
                let names = names.with_salt_among(first);
                Ok(Prompt::Keyed { ids, names, keys: PromptKeys::Blocks { block_size, lists } })
            }
            (None, _) if self.block_size.is_some() => Err(PublicError::field(
                "block_size",
                "goes with block_hashes or extra_keys, not with token_ids alone",
            )
            .with_next(LEAVE_IT_OUT)),
            (None, Some(items)) => {
                check_items(items, ids.len())?;
                Ok(Prompt::Keyed { ids, names, keys: PromptKeys::Items(items) })
            }
            (None, None) => Ok(Prompt::Tokens { ids, namespace: names.namespace() }),
        }
    }

    fn block_size_beside(&self, field: &str) -> Result<u32, PublicError> {
        match self.block_size {
            Some(0) => Err(PublicError::field("block_size", "must not be 0")),
            Some(size) => Ok(size),
            None => Err(PublicError::field("block_size", format!("is missing beside {field}"))
                .with_next("give the tokens of a block")),
        }
    }

    /// What separates its tokens from equal ones.
    pub fn names(&self) -> Names<'_> {
        Names {
            lora_name: self.lora_name.as_deref(),
            lora_id: self.lora_id,
            cache_salt: self.cache_salt.as_deref(),
        }
    }

    /// Empties the question but keeps the room of its lists.
    pub fn clear(&mut self) {
        let (token_room, hash_room) = (self.token_room(), self.hash_room());
        *self = Self { token_room, hash_room, ..Self::default() };
    }

    /// Gives back what a large question took.
    pub fn forget_beyond(&mut self, elements: usize) {
        self.clear();
        self.token_room.shrink_to(elements);
        self.hash_room.shrink_to(elements);
    }

    /// An empty list with room.
    pub fn token_room(&mut self) -> Vec<u32> {
        let mut room = self.token_ids.take().unwrap_or_else(|| std::mem::take(&mut self.token_room));
        room.clear();
        room
    }

    /// An empty list with room.
    pub fn hash_room(&mut self) -> Vec<u64> {
        let mut room = self.block_hashes.take().unwrap_or_else(|| std::mem::take(&mut self.hash_room));
        room.clear();
        room
    }

    /// Sets the list that was read, or only gives its room back.
    pub fn set_token_ids(&mut self, ids: Vec<u32>, given: bool) {
        if given { self.token_ids = Some(ids) } else { self.token_room = ids }
    }

    /// Sets the list that was read, or only gives its room back.
    pub fn set_block_hashes(&mut self, hashes: Vec<u64>, given: bool) {
        if given { self.block_hashes = Some(hashes) } else { self.hash_room = hashes }
    }
}

/// Every whole block has a list of keys. One that is not full may have, or not: it is asked for by nobody.
fn check_lists(lists: usize, tokens: usize, block_size: u32) -> Result<(), PublicError> {
    let size = block_size as usize;
    let (whole, begun) = (tokens / size, tokens.div_ceil(size));
    if (whole..=begun).contains(&lists) {
        return Ok(());
    }
    let message =
        format!("has {lists} lists for a prompt of {whole} blocks of {size}; one per block, or null");
    Err(PublicError::field("extra_keys", message))
}

/// Items follow one another within the prompt.
fn check_items(items: &[MultimodalItem], tokens: usize) -> Result<(), PublicError> {
    let mut from = 0;
    for (at, item) in items.iter().enumerate() {
        let wrong = if item.length == 0 {
            "has no length"
        } else if item.offset < from {
            "begins before the one in front of it ends"
        } else if item.end() > tokens as u64 {
            "goes on behind the end of the prompt"
        } else {
            from = item.end();
            continue;
        };
        return Err(PublicError::field("multimodal", format!("item {at} {wrong}")));
    }
    Ok(())
}

/// A list may be as long as the longest prompt. Parsers stop there.
pub fn check_length(field: &'static str, length: usize, max: usize) -> Result<(), PublicError> {
    if length > max {
        return Err(PublicError::field(field, format!("has more than {max} elements"))
            .with_next("ask about fewer, or raise query.max_tokens in the configuration"));
    }
    Ok(())
}
