//! Who holds how much of a prompt: what is asked, checked once for every protocol.

use kvplane_core::{Namespace, PublicError};
use kvplane_ingest::{Answer, Prompt};

use crate::service::Shared;

/// A question as it came in. Reused from request to request: lists keep their room.
#[derive(Debug, Default)]
pub(crate) struct Question {
    pub(crate) model: Option<String>,
    pub(crate) token_ids: Option<Vec<u32>>,
    pub(crate) block_hashes: Option<Vec<u64>>,
    /// Each hash is of the whole prefix that ends with its block.
    pub(crate) chained: Option<bool>,
    pub(crate) block_size: Option<u32>,
    pub(crate) lora_name: Option<String>,
    pub(crate) cache_salt: Option<String>,
    /// Empty lists, kept for the next question.
    pub(crate) token_room: Vec<u32>,
    pub(crate) hash_room: Vec<u64>,
}

impl Question {
    /// Checks the question, asks the streams of its model, and hands the answer to `read`.
    pub(crate) fn ask<R>(
        &self,
        shared: &Shared,
        read: impl FnOnce(&Answer<'_>) -> R,
    ) -> Result<R, PublicError> {
        let catalog = shared.plane.catalog();
        let known = || match &catalog.models()[..] {
            [] => "there are no models".to_owned(),
            models => format!("known models: {}", models.join(", ")),
        };
        // An engine may be configured without a model; otherwise an empty name is none.
        let missing = || PublicError::field("model", format!("is missing; {}", known()));
        let unknown = || PublicError::field("model", format!("is not known; {}", known()));
        let model = self.model.as_deref().ok_or_else(missing)?;
        let prompt = self.prompt(shared.options.max_tokens)?;
        let roster = catalog.model(model);
        let roster = roster.ok_or_else(|| if model.is_empty() { missing() } else { unknown() })?;
        Ok(roster.ask(&prompt, &shared.options.credit, read))
    }

    fn prompt(&self, max_tokens: usize) -> Result<Prompt<'_>, PublicError> {
        match (&self.token_ids, &self.block_hashes) {
            (Some(_), Some(_)) => Err(PublicError::field("token_ids", "and block_hashes exclude each other")),
            (None, None) => Err(PublicError::field(
                "token_ids",
                "is missing; give token_ids, or block_hashes with block_size",
            )),
            (Some(ids), None) => {
                for (field, given) in
                    [("block_size", self.block_size.is_some()), ("chained", self.chained.is_some())]
                {
                    if given {
                        return Err(PublicError::field(field, "goes with block_hashes, not with token_ids"));
                    }
                }
                check_length("token_ids", ids.len(), max_tokens)?;
                Ok(Prompt::Tokens { ids, namespace: self.namespace() })
            }
            (None, Some(hashes)) => {
                let missing = || PublicError::field("block_size", "is missing beside block_hashes");
                let block_size = self.block_size.ok_or_else(missing)?;
                if block_size == 0 {
                    return Err(PublicError::field("block_size", "must not be 0"));
                }
                for (field, value) in [("lora_name", &self.lora_name), ("cache_salt", &self.cache_salt)] {
                    if value.is_some() {
                        return Err(PublicError::field(field, "is part of block_hashes already"));
                    }
                }
                check_length("block_hashes", hashes.len(), max_tokens)?;
                let chained = self.chained.unwrap_or(false);
                Ok(Prompt::Hashes { hashes, chained, block_size: Some(block_size) })
            }
        }
    }

    /// What separates its tokens from equal ones.
    pub(crate) fn namespace(&self) -> Namespace {
        Namespace::new(self.lora_name.as_deref(), self.cache_salt.as_deref())
    }

    /// Empties the question but keeps the room of its lists.
    pub(crate) fn clear(&mut self) {
        let (token_room, hash_room) = (self.token_room(), self.hash_room());
        *self = Self { token_room, hash_room, ..Self::default() };
    }

    /// Gives back what a large question took.
    pub(crate) fn forget_beyond(&mut self, elements: usize) {
        self.clear();
        self.token_room.shrink_to(elements);
        self.hash_room.shrink_to(elements);
    }

    /// An empty list with room.
    pub(crate) fn token_room(&mut self) -> Vec<u32> {
        let mut room = self.token_ids.take().unwrap_or_else(|| std::mem::take(&mut self.token_room));
        room.clear();
        room
    }

    /// An empty list with room.
    pub(crate) fn hash_room(&mut self) -> Vec<u64> {
        let mut room = self.block_hashes.take().unwrap_or_else(|| std::mem::take(&mut self.hash_room));
        room.clear();
        room
    }

    /// Sets the list that was read, or only gives its room back.
    pub(crate) fn set_token_ids(&mut self, ids: Vec<u32>, given: bool) {
        if given { self.token_ids = Some(ids) } else { self.token_room = ids }
    }

    /// Sets the list that was read, or only gives its room back.
    pub(crate) fn set_block_hashes(&mut self, hashes: Vec<u64>, given: bool) {
        if given { self.block_hashes = Some(hashes) } else { self.hash_room = hashes }
    }
}

/// A list may be as long as the longest prompt. Whoever reads one stops there.
pub(crate) fn check_length(field: &'static str, length: usize, max: usize) -> Result<(), PublicError> {
    if length > max {
        return Err(PublicError::field(field, format!("has more than {max} elements (query.max_tokens)")));
    }
    Ok(())
}
