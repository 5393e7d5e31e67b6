//! What a batch did to the state, in full: what subscribers are sent.
//!
//! A change says what the engine announced **and** what that made of the state (`copies` after it). So a
//! replica sets what it receives; it never counts, heals or guesses by itself.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Continuity, Epoch, Marks, Reason, Resumption, StateDigest, Tier, TrustState};
use kvplane_wire::OwnedExtraKey;

use crate::state::{Attributes, Chain, ExtraKeys, Parent, Place, Wide, keys_cost};
use crate::tokens::Tokens;

/// Why blocks are said to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreCause {
    /// The engine announced them.
    Announced,
    /// A store that builds on them proves it, or somebody else who heard the engine: a request's report, a
    /// peer's dump.
    Proven,
    /// They were held before, or are announced next by their hashes alone; what comes before them is known,
    /// and so is their content.
    Attached,
}

/// How a store's hashes lie on its tokens.
pub use kvplane_wire::Layout;

/// One block of a store, as it is said.
#[derive(Debug, Clone)]
pub struct StoredParts {
    /// The engine's hash.
    pub hash: u64,
    /// The whole digest, if it was sent as bytes.
    pub wide: Option<Wide>,
    /// Copies in the place after this.
    pub copies: u32,
    /// The block before it; `None` when unknown.
    pub parent: Option<Parent>,
    /// Its tokens; `None` when the store does not say which are its own.
    pub tokens: Option<Tokens>,
    /// Where its tokens lie in the store's, in positions; `None` when the store does not say.
    pub first_position: Option<u32>,
    /// Its content hash, once every block before it is known.
    pub content: Option<u64>,
    /// Its extra keys.
    pub extra_keys: Option<ExtraKeys>,
}

/// One block of a store, as it is kept: entries are mostly made of these.
#[derive(Debug, Clone)]
pub struct StoredBlock {
    /// The engine's hash.
    pub hash: u64,
    before: u64,
    content: u64,
    tokens: Tokens,
    wide: Option<Wide>,
    extra_keys: Option<ExtraKeys>,
    /// Copies in the place after this.
    pub copies: u32,
    first_position: u32,
    known: Known,
}

/// What a store says of a block. Options of numbers would take twice their room.
#[derive(Debug, Clone, Copy)]
struct Known(u8);

impl Known {
    const PARENT: u8 = 1;
    const FIRST_OF_PROMPT: u8 = 2;
    const TOKENS: u8 = 4;
    const FIRST_POSITION: u8 = 8;
    const CONTENT: u8 = 16;

    fn has(self, what: u8) -> bool {
        self.0 & what != 0
    }
}

const _: () = assert!(size_of::<StoredBlock>() == 64);

impl From<StoredParts> for StoredBlock {
    fn from(parts: StoredParts) -> Self {
        let StoredParts { hash, wide, copies, parent, tokens, first_position, content, extra_keys } = parts;
        let flag = |is: bool, what: u8| if is { what } else { 0 };
        let known = flag(parent.is_some(), Known::PARENT)
            | flag(parent == Some(Parent::Root), Known::FIRST_OF_PROMPT)
            | flag(tokens.is_some(), Known::TOKENS)
            | flag(first_position.is_some(), Known::FIRST_POSITION)
            | flag(content.is_some(), Known::CONTENT);
        let before = match parent {
            Some(Parent::Block(hash)) => hash,
            Some(Parent::Root) | None => 0,
        };
        Self {
            hash,
            before,
            content: content.unwrap_or_default(),
            tokens: tokens.unwrap_or_default(),
            wide,
            extra_keys,
            copies,
            first_position: first_position.unwrap_or_default(),
            known: Known(known),
        }
    }
}

impl StoredBlock {
    /// The whole digest, if it was sent as bytes.
    pub fn wide(&self) -> Option<&Wide> {
        self.wide.as_ref()
    }

    /// The block before it; `None` when unknown.
    pub fn parent(&self) -> Option<Parent> {
        let parent =
            if self.known.has(Known::FIRST_OF_PROMPT) { Parent::Root } else { Parent::Block(self.before) };
        self.known.has(Known::PARENT).then_some(parent)
    }

    /// Its tokens; `None` when the store does not say which are its own.
    pub fn tokens(&self) -> Option<&Tokens> {
        self.known.has(Known::TOKENS).then_some(&self.tokens)
    }

    /// Where its tokens lie in the store's, in positions; `None` when the store does not say.
    pub fn first_position(&self) -> Option<u32> {
        self.known.has(Known::FIRST_POSITION).then_some(self.first_position)
    }

    /// Its content hash, once every block before it is known.
    pub fn content(&self) -> Option<u64> {
        self.known.has(Known::CONTENT).then_some(self.content)
    }

    /// Its extra keys.
    pub fn extra_keys(&self) -> Option<&ExtraKeys> {
        self.extra_keys.as_ref()
    }

    fn drop_tokens(&mut self) {
        self.tokens = Tokens::default();
        self.known.0 &= !Known::TOKENS;
    }

    /// An estimate of what keeping its parts costs, their wire form included.
    fn cost(&self) -> usize {
        let tokens = self.tokens.heap_len() + 3 * self.tokens.len();
        let wide = self.wide.as_ref().map_or(0, |digest| 16 + 2 * digest.len());
        tokens + wide + self.extra_keys.as_deref().map_or(0, |keys| 2 * keys_cost(keys))
    }
}

fn hashes_cost(elsewhere: &[(Arc<Place>, Vec<u64>)]) -> usize {
    elsewhere.iter().map(|(_, hashes)| 32 + 16 * hashes.len()).sum()
}

/// Blocks became resident, or got another copy.
#[derive(Debug, Clone)]
pub struct StoredChange {
    /// Why we say so.
    pub cause: StoreCause,
    /// Where.
    pub place: Arc<Place>,
    /// The blocks.
    pub blocks: Vec<StoredBlock>,
    /// How the engine's hashes lay on its tokens.
    pub layout: Layout,
    /// Tokens per block.
    pub block_size: u32,
    /// The engine's `parent_block_hash`.
    pub parent: Option<u64>,
    /// All tokens of a sparse store: the engine did not say which blocks they belong to.
    pub span: Option<Arc<[u32]>>,
    /// Adapter and salt.
    pub attributes: Arc<Attributes>,
    /// Attribution.
    pub session_id: Option<Box<str>>,
}

/// Gives back what a list has room for beyond what is in it, where that is much: entries are kept for long.
pub(crate) fn fit<T>(list: &mut Vec<T>) {
    if list.capacity() - list.len() > list.len() / 4 {
        list.shrink_to_fit();
    }
}

/// One block of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedBlock {
    /// The engine's hash.
    pub hash: u64,
    /// Copies left in the place after this.
    pub copies: u32,
}

/// One thing that happened.
#[derive(Debug, Clone)]
pub enum Change {
    /// Blocks became resident, or got another copy.
    Stored(StoredChange),
    /// Copies went away.
    Removed {
        /// Where.
        place: Arc<Place>,
        /// Of which blocks.
        blocks: Vec<RemovedBlock>,
    },
    /// The engine cleared these places.
    Cleared {
        /// Which.
        places: Vec<Arc<Place>>,
        /// What of that lay outside of the device, for protocols whose clear means the device alone.
        elsewhere: Vec<(Arc<Place>, Vec<u64>)>,
    },
    /// kvplane lost track and dropped everything it knew to be resident.
    Dropped {
        /// Why.
        reason: Reason,
        /// What lay outside of the device, for protocols whose clear means the device alone.
        elsewhere: Vec<(Arc<Place>, Vec<u64>)>,
    },
}

impl Change {
    /// Lets go of tokens that are not to be kept.
    pub(crate) fn drop_tokens(&mut self) {
        if let Self::Stored(stored) = self {
            stored.blocks.iter_mut().for_each(StoredBlock::drop_tokens);
            stored.span = None;
        }
    }
}

/// A block as a consumer that knows no groups sees it: everything that it needs to place it by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibleBlock {
    /// The engine's hash.
    pub hash: u64,
    /// Our hash of its content.
    pub content: u64,
    /// Its tokens; none in entries of a journal that keeps none there.
    pub tokens: Tokens,
    /// Tokens per block.
    pub block_size: u32,
    /// Adapter and salt.
    pub attributes: Arc<Attributes>,
    /// Its extra keys.
    pub extra_keys: Option<ExtraKeys>,
}

impl VisibleBlock {
    pub(crate) fn new(hash: u64, chain: &Chain) -> Self {
        Self {
            hash,
            content: chain.content,
            tokens: chain.tokens.clone(),
            block_size: chain.block_size,
            attributes: chain.attributes.clone(),
            extra_keys: chain.extra_keys.clone(),
        }
    }

    /// Whether it is more than its tokens, its adapter and its salt: an image or a prompt embedding is part
    /// of it, or a key that has no name.
    pub fn has_further_keys(&self) -> bool {
        let keys = self.extra_keys.iter().flat_map(|keys| keys.iter().map(OwnedExtraKey::as_block_key));
        self.attributes.names().further_keys(keys).next().is_some()
    }
}

/// A change of residency as a consumer that counts no copies and knows no groups sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transition {
    /// Blocks are in a tier that were not. Consecutive: each is the parent of the next.
    Stored {
        /// Which tier.
        tier: Tier,
        /// The block before the first; `None` at the start of a prompt.
        parent: Option<u64>,
        /// The blocks.
        blocks: Vec<VisibleBlock>,
    },
    /// Blocks are no longer in a tier.
    Removed {
        /// Which tier.
        tier: Tier,
        /// The blocks.
        hashes: Vec<u64>,
    },
    /// Nothing is resident any more.
    Cleared,
}

impl Transition {
    /// Lets go of tokens that are not to be kept.
    pub(crate) fn drop_tokens(&mut self) {
        if let Self::Stored { blocks, .. } = self {
            for block in blocks {
                block.tokens = Tokens::default();
            }
        }
    }
}

/// The protocols that stream entries. Each keeps its wire form of an entry beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// kvplane.v1.
    Kvplane,
    /// SMG's `SubscribeKvEvents`.
    Smg,
    /// The batches of a vLLM, over `ZeroMQ`.
    Vllm,
    /// The same for listeners that count no copies.
    VllmPresence,
}

impl Protocol {
    const ALL: [Self; 4] = [Self::Kvplane, Self::Smg, Self::Vllm, Self::VllmPresence];
}

/// An entry's wire forms, one per protocol. Most entries are asked for none: then it takes next to nothing.
#[derive(Debug, Default)]
pub(crate) struct Encodings(OnceLock<Box<[OnceLock<Bytes>; Protocol::ALL.len()]>>);

/// One item of the journal: a batch, or something that kvplane itself did to the state.
#[derive(Debug)]
pub struct Entry {
    /// The life it belongs to.
    pub epoch: Epoch,
    /// Its number.
    pub sequence: u64,
    /// The engine's own number of the batch; `None` for what kvplane did itself.
    pub engine_sequence: Option<u64>,
    /// Digest of the batch as the engine sent it, where it is known.
    pub engine_digest: Option<u128>,
    /// The publisher's wall clock, seconds.
    pub timestamp: f64,
    /// What happened, in order.
    pub changes: Vec<Change>,
    /// The trust after it, where it changed.
    pub trust: Option<TrustState>,
    /// From where on everything is known, sent with the trust.
    pub known_from: Option<u64>,
    /// Where the stream stands after it, where that changed.
    pub continuity: Option<Continuity>,
    /// Digest of the resident state after it.
    pub digest: StateDigest,
    /// How old the proof was that the engine is there when this was recorded; `None` before the first proof.
    pub age: Option<Duration>,
    /// The number of the first transition; the others follow without a gap.
    pub first_event_id: u64,
    /// What consumers that count nothing see of it.
    pub transitions: Vec<Transition>,
    /// What the stream needs to go on from a boundary, where that changed. It goes before `marks`.
    pub resumption: Option<Arc<Resumption>>,
    /// Which other groups hold main blocks after all transitions: each block's marks as they are now. A block
    /// that no tier holds any more has none, and is not named.
    pub marks: Vec<(u64, Marks)>,
    /// From here on the main group holds blocks whose tokens are not known: a peer's protocol cannot carry
    /// them.
    pub untranslatable: bool,
    pub(crate) cost: usize,
    pub(crate) encodings: Encodings,
}

impl Entry {
    /// The entry's wire form for one protocol: encoded by the first who asks, shared by all.
    pub fn encoded(&self, protocol: Protocol, encode: impl FnOnce(&Entry) -> Bytes) -> Bytes {
        let forms = self.encodings.0.get_or_init(Box::default);
        forms[protocol as usize].get_or_init(|| encode(self)).clone()
    }

    /// The entry's wire form for one protocol, if anybody has asked for it.
    pub fn encoding(&self, protocol: Protocol) -> Option<Bytes> {
        self.encodings.0.get()?[protocol as usize].get().cloned()
    }

    /// About how many bytes it takes.
    pub fn cost(&self) -> usize {
        self.cost
    }

    /// The number after its last transition.
    pub fn next_event_id(&self) -> u64 {
        self.first_event_id + self.transitions.len() as u64
    }

    /// An estimate of what keeping it costs, its wire form included.
    pub(crate) fn estimate(changes: &[Change], transitions: &[Transition]) -> usize {
        const BASE: usize = 256;
        let changes: usize = changes
            .iter()
            .map(|change| match change {
                Change::Stored(stored) => {
                    let tokens: usize = stored.blocks.iter().map(StoredBlock::cost).sum();
                    let names = stored.session_id.as_ref().map_or(0, |id| id.len())
                        + stored.attributes.text_len()
                        + stored.place.text_len();
                    let span = stored.span.as_ref().map_or(0, |span| 8 * span.len());
                    160 + stored.blocks.len() * (std::mem::size_of::<StoredBlock>() + 40)
                        + tokens
                        + span
                        + 2 * names
                }
                Change::Removed { blocks, .. } => 64 + blocks.len() * 32,
                Change::Cleared { places, elsewhere } => {
                    let names: usize = places.iter().map(|place| 16 + place.text_len()).sum();
                    64 + names + hashes_cost(elsewhere)
                }
                Change::Dropped { elsewhere, .. } => 64 + hashes_cost(elsewhere),
            })
            .sum();
        let transitions: usize = transitions
            .iter()
            .map(|transition| match transition {
                Transition::Stored { blocks, .. } => {
                    64 + blocks.capacity() * std::mem::size_of::<VisibleBlock>()
                }
                Transition::Removed { hashes, .. } => 64 + hashes.len() * 8,
                Transition::Cleared => 64,
            })
            .sum();
        BASE + changes + transitions
    }
}
