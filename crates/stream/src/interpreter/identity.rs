//! Whether a hash stands for the same block as before.

use std::sync::Arc;

use kvplane_core::Tier;
use kvplane_wire::{ExtraKey, OwnedExtraKey, Stored};

use super::Interpreter;
use crate::ledger::Ledger;
use crate::state::{Attributes, Chain, Parent};

/// What a store says of one of its blocks.
pub(super) struct Said<'a, 'f> {
    pub(super) parent: Parent,
    pub(super) tokens: &'a [u32],
    pub(super) attributes: &'a Arc<Attributes>,
    pub(super) keys: &'a [ExtraKey<'f>],
    /// Its hash shows a namespace that the store does not name.
    pub(super) hidden: bool,
}

impl Interpreter {
    /// Whether a store says of a block what is known of it: what comes before it, its tokens, and all that
    /// separates equal tokens.
    pub(super) fn is_same(
        &self,
        ledger: &Ledger,
        known: &Chain,
        said: &Said<'_, '_>,
        stored: &Stored<'_>,
    ) -> bool {
        if known.parent() != said.parent || !known.has_tokens(said.tokens) {
            return false;
        }
        let cold = Tier::of(stored.medium, stored.locality) != Tier::Device;
        if cold && !self.options.semantics.cold_stores_name_keys && !stored.names_keys() {
            // It leaves out salts and images.
            return true;
        }
        let (ours, theirs) = (&known.attributes, said.attributes);
        let same_adapter = ours.lora_name == theirs.lora_name && ours.lora_id == theirs.lora_id;
        let same_salt = ours.cache_salt == theirs.cache_salt
            || theirs.cache_salt.is_none() && ours.cache_salt == salt_before(ledger, known);
        let same_keys =
            said.hidden || are_same_keys(known.extra_keys.as_deref().unwrap_or_default(), said.keys);
        same_adapter && same_salt && same_keys
    }
}

/// The salt that a block has from what comes before it.
fn salt_before(ledger: &Ledger, chain: &Chain) -> Option<Box<str>> {
    let Parent::Block(parent) = chain.parent() else { return None };
    let parent = ledger.state().attached_chain(ledger.state().find(parent)?)?;
    parent.attributes.cache_salt.clone()
}

fn are_same_keys(known: &[OwnedExtraKey], said: &[ExtraKey<'_>]) -> bool {
    let is_same = |(known, said): (&OwnedExtraKey, &ExtraKey<'_>)| match (known, said) {
        (OwnedExtraKey::Text(known), ExtraKey::Text(said)) => known == said,
        (OwnedExtraKey::Bytes(known), ExtraKey::Bytes(said) | ExtraKey::Other(said)) => known == said,
        (OwnedExtraKey::Integer(known), ExtraKey::Integer(said)) => known == said,
        (OwnedExtraKey::Multimodal(known, at), ExtraKey::Multimodal { id, offset }) => {
            known == id && at == offset
        }
        _ => false,
    };
    known.len() == said.len() && known.iter().zip(said).all(is_same)
}
