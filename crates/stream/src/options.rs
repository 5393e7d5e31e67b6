//! The rules of a journal: its bounds, and what an engine's events mean.

use kvplane_core::EngineKind;

use crate::persist::{persist, persist_enum};
use crate::state::Limits;

/// What a second store of a held hash means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Duplicates {
    /// Another physical copy: it takes as many removals.
    #[default]
    Count,
    /// The same copy, announced again.
    Presence,
}

persist_enum!(Duplicates { Count = 0, Presence = 1 });

/// What a clear empties.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClearScope {
    /// The device for sure; what other tiers keep is not said (vLLM).
    #[default]
    Device,
    /// Every tier (`SGLang`, and whatever is relayed as one cache).
    Everything,
}

persist_enum!(ClearScope { Device = 0, Everything = 1 });

/// What an engine's events mean where engines differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent habits, not one state in disguise")]
pub struct Semantics {
    /// What a clear empties.
    pub clears: ClearScope,
    /// Every life begins with a clear, which is the sign of no flush (`SGLang`).
    pub starts_with_clear: bool,
    /// A flush may be announced by the removal of all blocks, without a clear (`TokenSpeed`).
    pub flushes_by_removals: bool,
    /// The last block of a prompt may be stored before it is full (TensorRT-LLM): only blocks of the stream's
    /// size are sent to consumers that know one block size.
    pub partial_blocks: bool,
    /// A block is held once (a radix tree): a second store of a held hash is another block with the same
    /// hash.
    pub held_once: bool,
    /// Hashes are a chain that can be computed again (`SGLang` since 0.5.6); older releases hash a page's
    /// tokens alone.
    pub sglang_hashes: bool,
    /// A group is named by its attention window (TensorRT-LLM): the largest window is the main one.
    pub windows: bool,
    /// Stores of the tiers behind the device name all that their blocks are made of. vLLM's leave out salts
    /// and images.
    pub cold_stores_name_keys: bool,
}

persist!(Semantics {
    clears,
    starts_with_clear,
    flushes_by_removals,
    partial_blocks,
    held_once,
    sglang_hashes,
    windows,
    cold_stores_name_keys,
});

impl Semantics {
    /// Those of a kind of engine.
    pub fn of(kind: EngineKind) -> Self {
        match kind {
            EngineKind::Vllm => Self::default(),
            EngineKind::Sglang => Self {
                sglang_hashes: true,
                starts_with_clear: true,
                flushes_by_removals: false,
                ..Self::of(EngineKind::Tokenspeed)
            },
            EngineKind::Tokenspeed => Self { held_once: true, ..Self::of(EngineKind::Grpc) },
            EngineKind::Grpc | EngineKind::Kvplane => Self {
                clears: ClearScope::Everything,
                flushes_by_removals: true,
                cold_stores_name_keys: true,
                ..Self::default()
            },
            EngineKind::Trtllm => {
                Self { partial_blocks: true, held_once: true, windows: true, ..Self::of(EngineKind::Grpc) }
            }
        }
    }
}

/// The bounds and rules of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not one state in disguise")]
pub struct JournalOptions {
    /// Batches in the replay window.
    pub max_batches: usize,
    /// Bytes in the replay window.
    pub max_bytes: usize,
    /// The live state's own bounds.
    pub state: Limits,
    /// What a second store means.
    pub duplicates: Duplicates,
    /// The configured block size; blocks of another are a contradiction.
    pub block_size: Option<u32>,
    /// What the engine's events mean.
    pub semantics: Semantics,
    /// They come through a relay, which may leave some out.
    pub relayed: bool,
    /// The engine has no other rank: it may be one of a larger whole, and name its number there.
    pub sole_rank: bool,
    /// The engine gives up the last block that it finds, as vLLM with EAGLE does.
    pub eagle: bool,
    /// The engine has no tier behind its device: the operator says so. No event does.
    pub device_only: bool,
    /// Tokens that a tier behind the device gives back at once, where the operator says so.
    pub offload_chunk: Option<u32>,
    /// Nobody follows the stream as a replica, and nobody asks entries for tokens: they keep transitions
    /// alone, by hashes alone. The state and snapshots of it have all.
    pub transitions_only: bool,
}

persist!(JournalOptions {
    max_batches,
    max_bytes,
    state,
    duplicates,
    block_size,
    semantics,
    relayed,
    sole_rank,
    eagle,
    device_only,
    offload_chunk,
    transitions_only,
});

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            max_batches: 10_000,
            max_bytes: 64 << 20,
            state: Limits::default(),
            duplicates: Duplicates::Count,
            block_size: None,
            semantics: Semantics::default(),
            relayed: false,
            sole_rank: false,
            eagle: false,
            device_only: false,
            offload_chunk: None,
            transitions_only: false,
        }
    }
}
