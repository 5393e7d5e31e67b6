//! What a batch did to the state, in full: what subscribers are sent.
//!
//! A change says what the engine announced **and** what that made of the state (`copies` after it). So a
//! replica sets what it receives; it never counts, heals or guesses by itself.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{Continuity, Epoch, Marks, Reason, Resumption, StateDigest, Tier, TrustState};
use kvplane_wire::OwnedExtraKey;

use crate::state::{Attributes, Chain, ExtraKeys, Parent, Place, keys_cost};

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

/// One block of a store.
#[derive(Debug, Clone)]
pub struct StoredBlock {
    /// The engine's hash.
    pub hash: u64,
    /// The whole digest, if it was sent as bytes.
    pub wide: Option<Arc<[u8]>>,
    /// Copies in the place after this.
    pub copies: u32,
    /// The block before it; `None` when unknown.
    pub parent: Option<Parent>,
    /// Its tokens; `None` when the store does not say which are its own.
    pub tokens: Option<Arc<[u32]>>,
    /// Where its tokens lie in the store's, in positions; `None` when the store does not say.
    pub first_position: Option<u32>,
    /// Its content hash, once every block before it is known.
    pub content: Option<u64>,
    /// Its extra keys.
    pub extra_keys: Option<ExtraKeys>,
}

impl StoredBlock {
    /// An estimate of what keeping its parts costs, their wire form included.
    fn cost(&self) -> usize {
        let tokens = self.tokens.as_ref().map_or(0, |tokens| 16 + 8 * tokens.len());
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

/// A block as a consumer that knows no groups sees it: everything that it needs to place it by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibleBlock {
    /// The engine's hash.
    pub hash: u64,
    /// Our hash of its content.
    pub content: u64,
    /// Its tokens; none in entries of a journal that keeps none there.
    pub tokens: Arc<[u32]>,
    /// Tokens per block.
    pub block_size: u32,
    /// Adapter and salt.
    pub attributes: Arc<Attributes>,
    /// Its extra keys.
    pub extra_keys: Option<ExtraKeys>,
}

impl VisibleBlock {
    pub(crate) fn new(hash: u64, chain: &Chain) -> Self {
        Self::with_tokens(hash, chain, &chain.tokens)
    }

    /// The same with other tokens than the chain's.
    pub(crate) fn with_tokens(hash: u64, chain: &Chain, tokens: &Arc<[u32]>) -> Self {
        Self {
            hash,
            content: chain.content,
            tokens: tokens.clone(),
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
