//! What a block is: its tokens, what came before it, and the hash that compares between engines.

use std::sync::Arc;

use kvplane_core::{ContentHasher, Names};
use kvplane_wire::{ExtraKey, OwnedExtraKey};
use smallvec::SmallVec;

use super::memory::{allocation, slot_cost};
use super::{Refusal, SlotId, State};
use crate::persist::{Damaged, Persist, Source, persist, persist_enum};
use crate::tokens::Tokens;

/// Block sizes at which one block may be known: more than any engine has groups of different sizes.
const MAX_CHAINS: usize = 16;

/// What comes before a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// Nothing: it begins a prompt.
    Root,
    /// The block with this hash.
    Block(u64),
}

persist_enum!(Parent { Root = 0, Block(hash) = 1 });

/// A block's extra keys, as sent. Behind a thin pointer: nearly no block has any, and every block has room
/// for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraKeys(Arc<Box<[OwnedExtraKey]>>);

persist!(ExtraKeys(_));

impl std::ops::Deref for ExtraKeys {
    type Target = [OwnedExtraKey];

    fn deref(&self) -> &[OwnedExtraKey] {
        &self.0
    }
}

impl FromIterator<OwnedExtraKey> for ExtraKeys {
    fn from_iter<I: IntoIterator<Item = OwnedExtraKey>>(keys: I) -> Self {
        Self(Arc::new(keys.into_iter().collect()))
    }
}

/// What blocks of one store have in common. Shared, since most blocks of a stream have the same.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// Numeric adapter id.
    pub lora_id: Option<i64>,
    /// Adapter name.
    pub lora_name: Option<Box<str>>,
    /// Cache salt: sent, found among block 0's extra keys, or inherited.
    pub cache_salt: Option<Box<str>>,
    /// Tokens are bigrams: two ids per position.
    pub bigrams: bool,
}

persist!(Attributes { lora_id, lora_name, cache_salt, bigrams });

impl Attributes {
    /// Whether nothing separates such blocks from others with the same tokens.
    pub(super) fn is_plain(&self) -> bool {
        self.lora_id.is_none() && self.text_len() == 0 && !self.bigrams
    }

    /// Bytes of its names.
    pub(crate) fn text_len(&self) -> usize {
        [&self.lora_name, &self.cache_salt].into_iter().flatten().map(|name| name.len()).sum()
    }

    /// Estimated bytes of what is shared by all blocks that have it.
    pub(super) fn cost(&self) -> usize {
        let names = [&self.lora_name, &self.cache_salt];
        let texts = names.into_iter().flatten().map(|name| allocation(name.len()));
        allocation(std::mem::size_of::<Self>() + 16) + texts.sum::<usize>()
    }

    /// What separates equal tokens.
    pub fn names(&self) -> Names<'_> {
        Names {
            lora_name: self.lora_name.as_deref(),
            lora_id: self.lora_id,
            cache_salt: self.cache_salt.as_deref(),
        }
    }
}

/// What a block is, at one block size.
#[derive(Debug, Clone)]
pub struct Chain {
    /// Our hash of the content; known once attached, since a salt is inherited.
    pub content: u64,
    /// The block before, if it is not the first of a prompt; see [`Self::parent`].
    before: u64,
    /// The block's tokens; none where only its content is known.
    pub tokens: Tokens,
    /// Adapter and salt.
    pub attributes: Arc<Attributes>,
    /// Extra keys, as sent.
    pub extra_keys: Option<ExtraKeys>,
    /// Tokens per block.
    pub block_size: u32,
    begins_prompt: bool,
    /// Every block before this one is known, up to the start of the prompt.
    pub attached: bool,
    /// Its tokens were known and are not kept: [`Self::content`] stands for them.
    pub(crate) dropped: bool,
}

/// What a chain is, in one byte where it is saved.
const ATTACHED: u8 = 1;
const DROPPED: u8 = 2;

impl Persist for Chain {
    fn save(&self, out: &mut Vec<u8>) {
        let Self {
            content,
            before: _,
            tokens,
            attributes,
            extra_keys,
            block_size,
            begins_prompt: _,
            attached,
            dropped,
        } = self;
        block_size.save(out);
        self.parent().save(out);
        tokens.save(out);
        attributes.save(out);
        extra_keys.save(out);
        (u8::from(*attached) * ATTACHED + u8::from(*dropped) * DROPPED).save(out);
        content.save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let (block_size, parent, tokens) = (u32::load(from)?, Parent::load(from)?, Tokens::load(from)?);
        let mut chain = Self::new((block_size, parent), tokens, Persist::load(from)?, Persist::load(from)?);
        let is: u8 = Persist::load(from)?;
        (chain.attached, chain.dropped) = (is & ATTACHED != 0, is & DROPPED != 0);
        if is > ATTACHED + DROPPED || (chain.dropped && !(chain.attached && chain.tokens.is_empty())) {
            return Err(Damaged("a block's tokens are neither kept nor dropped"));
        }
        chain.content = Persist::load(from)?;
        Ok(chain)
    }
}

impl Chain {
    /// What a block is, before it is known whether all that comes before it is.
    pub(crate) fn new(
        (block_size, parent): (u32, Parent),
        tokens: impl Into<Tokens>,
        attributes: Arc<Attributes>,
        extra_keys: Option<ExtraKeys>,
    ) -> Self {
        let (begins_prompt, before) = match parent {
            Parent::Root => (true, 0),
            Parent::Block(hash) => (false, hash),
        };
        Self {
            content: 0,
            before,
            tokens: tokens.into(),
            attributes,
            extra_keys,
            block_size,
            begins_prompt,
            attached: false,
            dropped: false,
        }
    }

    /// What comes before.
    pub fn parent(&self) -> Parent {
        if self.begins_prompt { Parent::Root } else { Parent::Block(self.before) }
    }

    /// Estimated bytes of its own allocations.
    pub(super) fn cost(&self) -> usize {
        let keys = self.extra_keys.as_deref().map_or(0, keys_cost);
        allocation(self.tokens.heap_len()) + keys
    }

    /// Whether its tokens were never said.
    pub(crate) fn lacks_tokens(&self) -> bool {
        self.tokens.is_empty() && !self.dropped
    }

    /// Its tokens; `None` where only the content is known.
    pub(crate) fn known_tokens(&self) -> Option<Tokens> {
        (!self.tokens.is_empty()).then(|| self.tokens.clone())
    }

    /// Whether these are its tokens, as far as that is known: by what they hash to where they are not kept.
    pub(crate) fn has_tokens(&self, tokens: &[u32]) -> bool {
        if !self.dropped {
            return self.tokens == *tokens;
        }
        self.hash_of(tokens, &mut ContentHasher::default()) == self.content
    }

    /// Lets go of tokens that nobody may ask for. What they say is in the hash of the content by now.
    pub(super) fn drop_tokens(&mut self) {
        self.dropped |= !self.tokens.is_empty();
        self.tokens = Tokens::default();
    }

    /// The hash of what its tokens, names and keys say.
    pub(super) fn hash_with(&self, hasher: &mut ContentHasher) -> u64 {
        self.hash_of(&self.tokens.unpacked(), hasher)
    }

    fn hash_of(&self, tokens: &[u32], hasher: &mut ContentHasher) -> u64 {
        let names = self.attributes.names();
        match &self.extra_keys {
            None => hasher.plain(tokens, names.namespace()),
            Some(keys) => {
                let further = names.further_keys(keys.iter().map(OwnedExtraKey::as_block_key));
                hasher.keyed(tokens, further, names.namespace())
            }
        }
    }
}

/// Estimated bytes of a block's extra keys.
pub(crate) fn keys_cost(keys: &[OwnedExtraKey]) -> usize {
    let texts = keys.iter().map(|key| match key {
        OwnedExtraKey::Text(text) | OwnedExtraKey::Multimodal(text, _) => allocation(text.len()),
        OwnedExtraKey::Bytes(bytes) => allocation(bytes.len()),
        OwnedExtraKey::Integer(_) => 0,
    });
    allocation(32) + allocation(std::mem::size_of_val(keys)) + texts.sum::<usize>()
}

/// Which blocks are sent to consumers that know one block size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VisibleSize {
    /// All: there is one size.
    Any,
    /// Those of the main group's size; none while that is not known.
    Only(Option<u32>),
}

/// A block that waited and is attached now, and the size of the chain that waited.
pub(crate) type Attached = (SlotId, u32);

impl State {
    /// The chain of a block that is sent to consumers that know one block size: it reaches the start of its
    /// prompt.
    pub(crate) fn visible_chain(&self, slot: SlotId, size: VisibleSize) -> Option<&Chain> {
        match size {
            VisibleSize::Any => self.attached_chain(slot),
            VisibleSize::Only(size) => self.chain(slot, size?).filter(|chain| chain.attached),
        }
    }

    /// The chain of a block at a block size, if known.
    pub(crate) fn chain(&self, slot: SlotId, block_size: u32) -> Option<&Chain> {
        self.slots[slot as usize].chains.iter().find(|chain| chain.block_size == block_size)
    }

    /// The sizes at which what comes before a block is known.
    pub(crate) fn attached_sizes(&self, slot: SlotId) -> SmallVec<[u32; 2]> {
        let chains = self.slots[slot as usize].chains.iter();
        chains.filter(|chain| chain.attached).map(|chain| chain.block_size).collect()
    }

    /// A chain that reaches the start of its prompt, if the block has one.
    pub(crate) fn attached_chain(&self, slot: SlotId) -> Option<&Chain> {
        self.slots[slot as usize].chains.iter().find(|chain| chain.attached)
    }

    /// Records what a block is, unless that is known. Blocks that waited for it are attached; their slots are
    /// appended to `attached`, parents first.
    pub(crate) fn define(
        &mut self,
        slot: SlotId,
        mut chain: Chain,
        attached: &mut Vec<Attached>,
    ) -> Result<(), Refusal> {
        chain.attached = false;
        if self.slots[slot as usize].chains.len() >= MAX_CHAINS {
            return Err(Refusal::Budget);
        }
        let parent = match chain.parent() {
            Parent::Root => None,
            Parent::Block(hash) => {
                let parent = self.find(hash).filter(|&parent| self.attached_chain(parent).is_some());
                if parent.is_none() {
                    return self.wait_for(hash, slot, chain);
                }
                parent
            }
        };
        let was_attached = self.attached_chain(slot).is_some();
        let at = self.add_chain(slot, chain);
        self.attach_one(slot, at, parent);
        if !was_attached && self.waiting.len() > 0 {
            self.attach_waiting(slot, attached);
        }
        Ok(())
    }

    /// Records what a block is, as another plane says: whether it is attached, and to what content, is taken
    /// from there, since that plane may know ancestors that are not known here. Blocks that waited for it are
    /// attached.
    pub(crate) fn define_mirrored(
        &mut self,
        slot: SlotId,
        mut new: Chain,
        attached: &mut Vec<Attached>,
    ) -> Result<(), Refusal> {
        let chains = &self.slots[slot as usize].chains;
        let known = chains.iter().position(|chain| chain.block_size == new.block_size);
        if let Some(at) = known.filter(|&at| chains[at].attached || !new.attached) {
            if chains[at].lacks_tokens() && !new.tokens.is_empty() {
                self.fill(slot, new);
            }
            return Ok(());
        }
        if known.is_none() && chains.len() >= MAX_CHAINS {
            return Err(Refusal::Budget);
        }
        let parent = match new.parent() {
            Parent::Root => None,
            Parent::Block(hash) if !new.attached => return self.wait_for(hash, slot, new),
            // An ancestor that is not known here has a place all the same, so that children are counted.
            Parent::Block(hash) => Some(self.slot_for(hash)?),
        };
        let was_attached = self.attached_chain(slot).is_some();
        if !self.limits.keep_tokens && new.attached {
            new.drop_tokens();
        }
        let content = new.content;
        let at = if let Some(at) = known {
            self.touch(slot);
            self.attributes.keep(&mut new.attributes);
            self.own += new.cost();
            let old = std::mem::replace(&mut self.slots[slot as usize].chains[at], new);
            self.own -= old.cost();
            self.attributes.release(&old.attributes);
            if let Parent::Block(parent) = old.parent() {
                self.waiting.remove(parent, slot, old.block_size);
            }
            at
        } else {
            self.add_chain(slot, new)
        };
        self.link(slot, at, parent);
        self.slots[slot as usize].chains[at].content = content;
        if !was_attached && self.waiting.len() > 0 {
            self.attach_waiting(slot, attached);
        }
        Ok(())
    }

    /// The block before is not known: a block waits for it.
    fn wait_for(&mut self, parent: u64, slot: SlotId, chain: Chain) -> Result<(), Refusal> {
        if self.waiting.len() >= self.limits.max_waiting {
            return Err(Refusal::Waiting);
        }
        self.waiting.add(parent, slot, chain.block_size);
        self.add_chain(slot, chain);
        Ok(())
    }

    /// Notes what a block is; returns which of its chains that is.
    fn add_chain(&mut self, slot: SlotId, mut chain: Chain) -> usize {
        self.touch(slot);
        self.note_changed(slot);
        self.attributes.keep(&mut chain.attributes);
        let (places, slot) = (&mut self.places, &mut self.slots[slot as usize]);
        self.own -= slot_cost(slot);
        if slot.chains.is_empty() {
            // Until now there was only its hash.
            slot.holdings.retain(|holding| places.is_current(holding));
            slot.holdings.iter().for_each(|holding| places.join(holding.place));
        }
        slot.chains.push(chain);
        self.own += slot_cost(slot);
        slot.chains.len() - 1
    }

    /// Attaches everything that waited for a block, and for that, and so on.
    fn attach_waiting(&mut self, slot: SlotId, attached: &mut Vec<Attached>) {
        let mut open = vec![slot];
        while let Some(parent) = open.pop() {
            let hash = self.slots[parent as usize].hash;
            for (child, size) in self.waiting.take(hash) {
                let chains = &self.slots[child as usize].chains;
                let waits = |chain: &Chain| !chain.attached && chain.block_size == size;
                let Some(at) = chains.iter().position(waits) else { continue };
                let was_attached = chains.iter().any(|chain| chain.attached);
                self.touch(child);
                self.attach_one(child, at, Some(parent));
                attached.push((child, size));
                if !was_attached {
                    open.push(child);
                }
            }
        }
    }

    /// The chain's parent is attached (or it begins a prompt): so is it. Its salt is known now, and with it
    /// its hash.
    fn attach_one(&mut self, slot: SlotId, at: usize, parent: Option<SlotId>) {
        self.link(slot, at, parent);
        let chain = &mut self.slots[slot as usize].chains[at];
        chain.content = chain.hash_with(&mut self.hasher);
        if !self.limits.keep_tokens {
            self.own -= chain.cost();
            chain.drop_tokens();
            self.own += chain.cost();
        }
    }

    /// Marks a chain as attached to its parent, and lets it inherit.
    fn link(&mut self, slot: SlotId, at: usize, parent: Option<SlotId>) {
        let mut inherited = None;
        if let Some(parent) = parent {
            self.touch(parent);
            self.may_have_cycles |= self.slots[slot as usize].children > 0;
            self.slots[parent as usize].children += 1;
            inherited = self.attached_chain(parent).map(|chain| chain.attributes.clone());
        }
        let chain = &mut self.slots[slot as usize].chains[at];
        if let Some(inherited) = inherited {
            let own = chain.attributes.clone();
            inherit_salt(&mut chain.attributes, &inherited);
            if !Arc::ptr_eq(&own, &chain.attributes) {
                self.attributes.keep(&mut chain.attributes);
                self.attributes.release(&own);
            }
        }
        chain.attached = true;
        self.note_changed(slot);
    }

    /// The blocks before a block, nearest first, as far as `wanted`; fewer where its prompt begins earlier,
    /// or where they are not known.
    pub(crate) fn ancestors(&self, slot: SlotId, block_size: u32, wanted: usize) -> Vec<SlotId> {
        let mut found = Vec::new();
        let mut at = slot;
        while found.len() < wanted {
            let Some(Parent::Block(parent)) = self.chain(at, block_size).map(Chain::parent) else {
                break;
            };
            let Some(parent) = self.find(parent) else { break };
            found.push(parent);
            at = parent;
        }
        found
    }

    /// Forgets what waits for blocks that are not known, where nothing is held any more. What is known up to
    /// the start of its prompt stays.
    pub(crate) fn stop_waiting_at_all(&mut self) {
        for (slot, _) in self.waiting.take_all() {
            self.touch(slot);
            let slot_ref = &mut self.slots[slot as usize];
            self.own -= slot_cost(slot_ref);
            slot_ref.chains.retain(|chain| {
                if !chain.attached {
                    self.attributes.release(&chain.attributes);
                }
                chain.attached
            });
            self.own += slot_cost(slot_ref);
            self.release(slot);
        }
    }

    /// Walks up from a block to the start of its prompt and collects the ancestors that `place` does not
    /// hold, nearest first. Stops early where the rest is known to be held. `budget` bounds the walk over a
    /// whole batch.
    pub(crate) fn missing_ancestors(
        &mut self,
        from: u64,
        place: super::PlaceId,
        block_size: u32,
        budget: &mut u32,
        missing: &mut Vec<SlotId>,
    ) {
        let version = self.hole_version;
        let mut next = Some(from);
        let mut walked: Vec<SlotId> = Vec::new();
        while let Some(hash) = next.take() {
            let Some(id) = self.find(hash) else { return };
            if self.slots[id as usize].intact == version {
                break;
            }
            if *budget == 0 {
                return;
            }
            *budget -= 1;
            let Some(chain) = self.chain(id, block_size).filter(|chain| chain.attached) else { return };
            next = match chain.parent() {
                Parent::Block(parent) => Some(parent),
                Parent::Root => None,
            };
            if self.copies(id, place) == 0 {
                missing.push(id);
            }
            walked.push(id);
        }
        for id in walked {
            self.slots[id as usize].intact = version;
        }
    }
}

/// A block has the salt of what it builds on: vLLM sends it with a prompt's first block alone.
pub(super) fn inherit_salt(own: &mut Arc<Attributes>, parents: &Arc<Attributes>) {
    if own.cache_salt.is_some() || parents.cache_salt.is_none() {
        return;
    }
    let same_adapter = own.lora_name == parents.lora_name && own.lora_id == parents.lora_id;
    *own = if same_adapter && own.bigrams == parents.bigrams {
        parents.clone()
    } else {
        Arc::new(Attributes {
            lora_id: own.lora_id,
            lora_name: own.lora_name.clone(),
            cache_salt: parents.cache_salt.clone(),
            bigrams: own.bigrams,
        })
    };
}

/// Takes a block's extra keys out of the frame.
pub(crate) fn own_keys(keys: &[ExtraKey<'_>]) -> Option<ExtraKeys> {
    if keys.is_empty() {
        return None;
    }
    let own = keys.iter().map(|key| match key {
        ExtraKey::Text(text) => OwnedExtraKey::Text((*text).to_owned()),
        ExtraKey::Bytes(bytes) | ExtraKey::Other(bytes) => OwnedExtraKey::Bytes(bytes.to_vec()),
        ExtraKey::Integer(number) => OwnedExtraKey::Integer(*number),
        ExtraKey::Multimodal { id, offset } => OwnedExtraKey::Multimodal((*id).to_owned(), *offset),
    });
    Some(own.collect())
}
