//! What makes equal tokens different blocks: names that separate whole prompts, and keys of single blocks.
//!
//! Engines repeat the names among a block's keys. vLLM gives a block's keys as a list in this order: the
//! adapter's name in every block, the items that cover it, the cache salt in a prompt's first block, the
//! digest of prompt embeddings.

use std::ops::Range;

use crate::dynamo::{dynamo_image, dynamo_salt};
use crate::{BlockKey, Namespace};

/// What separates all blocks of a prompt from those of other prompts with the same tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Names<'a> {
    /// The adapter's name.
    pub lora_name: Option<&'a str>,
    /// The adapter's number in its engine. Counts only without a name.
    pub lora_id: Option<i64>,
    /// Cache salt.
    pub cache_salt: Option<&'a str>,
}

impl<'a> Names<'a> {
    /// The names, folded. Where only the adapter's number is known (vLLM before 0.14), `lora_id:<n>` stands
    /// in for its name: blocks of an adapter are never plain ones.
    pub fn namespace(self) -> Namespace {
        match (self.lora_name, self.lora_id) {
            (None | Some(""), Some(id)) => Namespace::new(Some(&format!("lora_id:{id}")), self.cache_salt),
            (name, _) => Namespace::new(name, self.cache_salt),
        }
    }

    /// The same with the cache salt that is among the keys of a prompt's first block, unless there is one:
    /// what Dynamo marked as a salt, or else the first text that is neither the adapter's name nor an image
    /// that Dynamo marked. A salt may be equal to the adapter's name; then the text is there twice.
    #[must_use]
    pub fn with_salt_among<'k: 'a>(self, first_block: impl IntoIterator<Item = BlockKey<'k>>) -> Self {
        if self.cache_salt.is_some() {
            return self;
        }
        let (mut marked, mut first) = (None, None);
        for key in self.further_keys(first_block) {
            let BlockKey::Text(text) = key else { continue };
            marked = marked.or_else(|| dynamo_salt(text));
            first = first.or_else(|| dynamo_image(text).is_none().then_some(text));
        }
        Self { cache_salt: marked.or(first), ..self }
    }

    /// The keys of a block that are no names: a text that is equal to the adapter's name, and one that is
    /// equal to the salt, with Dynamo's mark or without, are left out once.
    pub fn further_keys<'k>(
        self,
        keys: impl IntoIterator<Item = BlockKey<'k>>,
    ) -> impl Iterator<Item = BlockKey<'k>> {
        let mut names = [self.lora_name, self.cache_salt];
        keys.into_iter().filter(move |key| {
            let BlockKey::Text(text) = key else { return true };
            let [adapter, salt] = &mut names;
            let is_salt = |salt: &str| salt == *text || dynamo_salt(text) == Some(salt);
            let named = if *adapter == Some(*text) {
                Some(adapter)
            } else {
                salt.is_some_and(is_salt).then_some(salt)
            };
            named.map(Option::take).is_none()
        })
    }
}

/// An image, audio clip or other item in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultimodalItem {
    /// Its identity: in vLLM the digest of its content, or the user's own.
    pub id: Box<str>,
    /// The position of its first token in the prompt.
    pub offset: u64,
    /// How many positions it takes.
    pub length: u64,
}

impl MultimodalItem {
    /// Where it ends.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }

    /// The keys of the block at these positions, as vLLM makes them: one for every item that covers a part of
    /// it, with the item's beginning relative to the block's. Items are in the order of their positions and
    /// do not overlap.
    pub fn keys_of(items: &[Self], block: Range<u64>) -> impl Iterator<Item = BlockKey<'_>> {
        let first = items.partition_point(|item| item.end() <= block.start);
        items[first..].iter().take_while(move |item| item.offset < block.end).map(move |item| {
            let offset = item.offset.cast_signed().wrapping_sub(block.start.cast_signed());
            BlockKey::Multimodal { id: &item.id, offset }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<'k>(texts: &[&'k str]) -> Vec<BlockKey<'k>> {
        texts.iter().map(|text| BlockKey::Text(text)).collect()
    }

    #[test]
    fn an_adapter_is_known_by_its_name_and_by_its_number_without_one() {
        let of = |lora_name, lora_id| Names { lora_name, lora_id, cache_salt: None }.namespace();
        assert_eq!(of(Some("a"), Some(1)), Namespace::new(Some("a"), None));
        assert_eq!(of(Some("a"), Some(1)), of(Some("a"), Some(2)));
        assert_eq!(of(None, Some(3)), Namespace::new(Some("lora_id:3"), None));
        assert_eq!(of(Some(""), Some(3)), of(None, Some(3)));
        assert_ne!(of(None, Some(0)), Namespace::PLAIN);
        assert_eq!(of(None, None), Namespace::PLAIN);
    }

    #[test]
    fn a_salt_is_found_behind_the_adapter_and_the_items() {
        let image = BlockKey::Multimodal { id: "image", offset: 0 };
        let salt = |lora_name, keys: &[BlockKey<'static>]| {
            Names { lora_name, ..Names::default() }.with_salt_among(keys.iter().copied()).cache_salt
        };
        assert_eq!(salt(None, &[]), None);
        assert_eq!(salt(None, &[image, BlockKey::Text("s")]), Some("s"));
        assert_eq!(salt(Some("a"), &texts(&["a"])), None);
        assert_eq!(salt(Some("a"), &[BlockKey::Text("a"), image, BlockKey::Text("s")]), Some("s"));
        assert_eq!(
            salt(Some("a"), &texts(&["a", "a"])),
            Some("a"),
            "a salt that is equal to the adapter's name"
        );
        let given = Names { cache_salt: Some("given"), ..Names::default() };
        assert_eq!(given.with_salt_among(texts(&["other"])), given);
    }

    #[test]
    fn a_salt_that_dynamo_marked_is_the_salt() {
        let mark = format!("{:064}", 0);
        let of = |lora_name, keys: &[BlockKey<'_>]| {
            let names = Names { lora_name, ..Names::default() }.with_salt_among(keys.iter().copied());
            (names.cache_salt.map(str::to_owned), names.further_keys(keys.iter().copied()).count())
        };
        let salt = |text: &str| Some(text.to_owned());
        assert_eq!(of(None, &texts(&["dynamo-cache-salt:s"])), (salt("s"), 0));
        assert_eq!(of(None, &texts(&["other", "dynamo-cache-salt:s"])), (salt("s"), 1));
        assert_eq!(of(None, &[BlockKey::Text(&mark)]), (None, 1), "an image is no salt");
        assert_eq!(of(Some("a"), &texts(&["a", "dynamo-cache-salt:a"])), (salt("a"), 0));
        assert_eq!(of(None, &texts(&["dynamo-cache-salt:"])), (salt("dynamo-cache-salt:"), 0));
        let given = Names { cache_salt: Some("s"), ..Names::default() };
        assert_eq!(given.further_keys(texts(&["dynamo-cache-salt:s", "dynamo-cache-salt:t"])).count(), 1);
    }

    #[test]
    fn names_are_left_out_once() {
        let names = Names { lora_name: Some("a"), lora_id: Some(1), cache_salt: Some("s") };
        let further =
            |names: Names<'_>, keys: &[&'static str]| names.further_keys(texts(keys)).collect::<Vec<_>>();
        assert_eq!(further(names, &["a", "s"]), []);
        assert_eq!(further(names, &["a"]), []);
        assert_eq!(further(names, &["a", "x", "s", "s"]), texts(&["x", "s"]));
        let same = Names { cache_salt: Some("a"), ..names };
        assert_eq!(further(same, &["a", "a"]), []);
        let unsalted = Names { cache_salt: None, ..names };
        assert_eq!(further(unsalted, &["a", "a"]), texts(&["a"]));
    }

    #[test]
    fn an_item_is_a_key_of_every_block_that_it_covers() {
        let item = |id: &str, offset, length| MultimodalItem { id: id.into(), offset, length };
        let items = [item("a", 2, 3), item("b", 5, 1), item("c", 12, 8)];
        let keys = |block| {
            let keys = MultimodalItem::keys_of(&items, block);
            keys.map(|key| match key {
                BlockKey::Multimodal { id, offset } => (id.to_owned(), offset),
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>()
        };
        let key = |id: &str, offset| (id.to_owned(), offset);
        assert_eq!(keys(0..2), []);
        assert_eq!(keys(0..4), [key("a", 2)]);
        assert_eq!(keys(4..8), [key("a", -2), key("b", 1)]);
        assert_eq!(keys(8..12), []);
        assert_eq!(keys(12..16), [key("c", 0)]);
        assert_eq!(keys(16..20), [key("c", -4)]);
        assert_eq!(keys(20..24), []);
    }
}
