//! What makes equal tokens different blocks.

use kvplane_wire::OwnedExtraKey;
use serde::Deserialize;
use xxhash_rust::xxh3::xxh3_64;

/// What a request has besides its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Keys {
    /// Adapter name.
    pub lora: Option<String>,
    /// Cache salt.
    pub salt: Option<String>,
    /// Images, or whatever else stands behind placeholder tokens, in the order of the prompt.
    pub images: Vec<Image>,
    /// Digest of prompt embeddings; every block has the same here.
    pub embeddings: Option<Vec<u8>>,
}

/// An item that stands behind some tokens of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// What it is known by: equal for equal content.
    pub id: String,
    /// The first of its tokens.
    pub offset: usize,
    /// How many tokens it takes.
    pub length: usize,
}

impl Keys {
    /// The extra keys of a block in vLLM's order: the adapter, items with the distance from the block's start
    /// to theirs, the salt in the first block, and the digest of embeddings.
    pub fn of_block(&self, start: usize, end: usize) -> Vec<OwnedExtraKey> {
        let text = |text: &String| OwnedExtraKey::Text(text.clone());
        let image =
            |image: &Image| OwnedExtraKey::Multimodal(image.id.clone(), image.offset as i64 - start as i64);
        let lora = self.lora.iter().map(text);
        let images = self.images_in(start, end).map(image);
        let salt = self.salt.iter().filter(|_| start == 0).map(text);
        let embeddings = self.embeddings.iter().map(|digest| OwnedExtraKey::Bytes(digest.clone()));
        lora.chain(images).chain(salt).chain(embeddings).collect()
    }

    /// The items of a block as TensorRT-LLM lists them: with how much of each lies before the block.
    pub fn items_of_block(&self, start: usize, end: usize) -> Vec<OwnedExtraKey> {
        let item = |image: &Image| {
            OwnedExtraKey::Multimodal(image.id.clone(), start.saturating_sub(image.offset) as i64)
        };
        self.images_in(start, end).map(item).collect()
    }

    /// The prompt as `SGLang` caches it: what stands for an item is replaced by a value of its content, and
    /// tells all about it.
    pub fn padded(&self, prompt: &[u32]) -> Vec<u32> {
        /// Values are above every vocabulary.
        const FIRST_VALUE: u32 = 1_000_000;
        let mut tokens = prompt.to_vec();
        for image in &self.images {
            let value = FIRST_VALUE + (xxh3_64(image.id.as_bytes()) % (1 << 30)) as u32;
            tokens.iter_mut().skip(image.offset).take(image.length).for_each(|token| *token = value);
        }
        tokens
    }

    /// The rest of the keys, for an engine that has items in its tokens.
    pub(crate) fn without_images(mut self) -> Self {
        self.images.clear();
        self
    }

    fn images_in(&self, start: usize, end: usize) -> impl Iterator<Item = &Image> {
        self.images.iter().filter(move |image| image.offset < end && start < image.offset + image.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys {
            lora: Some("adapter".into()),
            salt: Some("salt".into()),
            images: vec![Image { id: "cat".into(), offset: 6, length: 5 }],
            embeddings: Some(vec![7; 32]),
        }
    }

    #[test]
    fn keys_of_a_block_are_what_it_has_in_its_own_place() {
        let text = |text: &str| OwnedExtraKey::Text(text.to_owned());
        let image = |offset| OwnedExtraKey::Multimodal("cat".into(), offset);
        let digest = OwnedExtraKey::Bytes(vec![7; 32]);
        assert_eq!(keys().of_block(0, 4), [text("adapter"), text("salt"), digest.clone()]);
        assert_eq!(keys().of_block(4, 8), [text("adapter"), image(2), digest.clone()]);
        assert_eq!(keys().of_block(8, 12), [text("adapter"), image(-2), digest.clone()]);
        assert_eq!(keys().of_block(12, 16), [text("adapter"), digest]);
        assert_eq!(keys().items_of_block(4, 8), [image(0)]);
        assert_eq!(keys().items_of_block(8, 12), [image(2)]);
    }

    #[test]
    fn a_padded_prompt_has_values_where_the_item_stands() {
        let padded = keys().padded(&[1; 12]);
        assert!(padded[..6].iter().chain(&padded[11..]).all(|token| *token == 1));
        assert!(padded[6..11].iter().all(|token| *token == padded[6] && *token >= 1_000_000));
        assert_eq!(Keys::default().padded(&[1, 2]), [1, 2]);
    }
}
