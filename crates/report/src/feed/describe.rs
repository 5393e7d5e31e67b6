//! What is said of a block: everything about it but its tokens. The last place that sees those.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvplane_core::{ContentHasher, Namespace};
use kvplane_stream::VisibleBlock;

use crate::sink::Withheld;

/// Names of adapters that an engine knows by their numbers alone.
pub type AdapterNames = BTreeMap<i64, Arc<str>>;

/// Longer names are not reported: a server would refuse the whole message.
const MAX_ADAPTER_BYTES: usize = 1_024;

/// A block without its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Described<'b> {
    /// The engine's hash.
    pub(super) hash: u64,
    /// What its tokens hash to, adapter left out. Nothing where the block is withheld: what builds on it is
    /// too.
    pub(super) content: u64,
    /// Tokens in it.
    pub(super) size: u32,
    /// Its adapter, empty for none; or why it is withheld.
    pub(super) adapter: Result<&'b str, Withheld>,
}

impl<'b> Described<'b> {
    pub(super) fn new(block: &'b VisibleBlock, names: &'b AdapterNames) -> Self {
        let adapter = adapter(block, names);
        let content = match adapter {
            Ok("") => block.content,
            // Its content has the adapter in it; a fingerprint has not.
            Ok(_) => ContentHasher::default().plain(&block.tokens.unpacked(), Namespace::PLAIN),
            Err(_) => 0,
        };
        Self { hash: block.hash, content, size: block.block_size, adapter }
    }
}

fn adapter<'b>(block: &'b VisibleBlock, names: &'b AdapterNames) -> Result<&'b str, Withheld> {
    let attributes = &block.attributes;
    if attributes.cache_salt.as_deref().is_some_and(|salt| !salt.is_empty()) {
        return Err(Withheld::Salted);
    }
    if block.has_further_keys() {
        return Err(Withheld::Keyed);
    }
    if attributes.bigrams {
        return Err(Withheld::Bigrams);
    }
    if block.tokens.len() != block.block_size as usize {
        return Err(Withheld::Partial);
    }
    let name = match (attributes.lora_name.as_deref().unwrap_or_default(), attributes.lora_id) {
        ("", Some(number)) => names.get(&number).ok_or(Withheld::UnnamedAdapter)?,
        (name, _) => name,
    };
    if name.len() > MAX_ADAPTER_BYTES { Err(Withheld::LongAdapter) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvplane_stream::Attributes;

    fn block(attributes: Attributes, tokens: &[u32]) -> VisibleBlock {
        let content = ContentHasher::default().plain(tokens, attributes.names().namespace());
        VisibleBlock {
            hash: 1,
            content,
            tokens: tokens.into(),
            block_size: 4,
            attributes: Arc::new(attributes),
            extra_keys: None,
        }
    }

    fn said(attributes: Attributes) -> Result<String, Withheld> {
        let names = AdapterNames::from([(3, Arc::from("three"))]);
        Described::new(&block(attributes, &[1, 2, 3, 4]), &names).adapter.map(str::to_owned)
    }

    #[test]
    fn what_a_fingerprint_cannot_say_is_withheld() {
        let plain = Attributes::default;
        assert_eq!(said(plain()), Ok(String::new()));
        assert_eq!(said(Attributes { lora_name: Some("a".into()), ..plain() }), Ok("a".into()));
        assert_eq!(said(Attributes { lora_id: Some(3), ..plain() }), Ok("three".into()));
        assert_eq!(said(Attributes { lora_id: Some(4), ..plain() }), Err(Withheld::UnnamedAdapter));
        let named = |bytes| said(Attributes { lora_name: Some("a".repeat(bytes).into()), ..plain() });
        assert_eq!(named(1_024).map(|name| name.len()), Ok(1_024));
        assert_eq!(named(1_025), Err(Withheld::LongAdapter));
        assert_eq!(said(Attributes { cache_salt: Some("s".into()), ..plain() }), Err(Withheld::Salted));
        assert_eq!(said(Attributes { cache_salt: Some("".into()), ..plain() }), Ok(String::new()));
        assert_eq!(said(Attributes { bigrams: true, ..plain() }), Err(Withheld::Bigrams));
        let partial = block(plain(), &[1, 2, 3]);
        assert_eq!(Described::new(&partial, &AdapterNames::new()).adapter, Err(Withheld::Partial));
    }

    #[test]
    fn an_adapter_is_no_part_of_a_fingerprint() {
        let names = AdapterNames::new();
        let plain = block(Attributes::default(), &[1, 2, 3, 4]);
        let adapted =
            block(Attributes { lora_name: Some("a".into()), ..Attributes::default() }, &[1, 2, 3, 4]);
        assert_ne!(plain.content, adapted.content);
        assert_eq!(Described::new(&plain, &names).content, Described::new(&adapted, &names).content);
    }
}
