//! The wire shapes that engines have had, as one table.

use std::fmt;
use std::str::FromStr;

use kvplane_core::EngineKind;

use crate::field::Field;

/// A wire shape, named by the engine and the first release that had it.
///
/// | profile | batch | events | stored fields | removed fields | replay reply |
/// |---|---|---|---|---|---|
/// | vllm-0.9.0 | no rank | arrays | to `lora_id` | hashes | no topic |
/// | vllm-0.10.2 | rank | arrays | + `medium` | + `medium` | no topic |
/// | vllm-0.14 | rank | arrays | + `lora_name` | same | no topic |
/// | vllm-0.17 | rank | arrays | + `extra_keys` | same | no topic |
/// | vllm-0.20 | rank | arrays | + `group_idx` | + `group_idx` | no topic |
/// | vllm-0.22 | rank | arrays | + spec kind and window | same | no topic |
/// | vllm-0.24 | rank | maps | same | same | no topic |
/// | vllm-0.26 | rank | maps | + `locality` | + `locality` | topic |
/// | vllm-0.29 | rank | maps | + `ownership` | + `ownership` | topic |
/// | vllm-0.32 | rank | maps | + `session_id` (since 0.30) | same | topic |
/// | sglang-0.4.6 | no rank | arrays | to `lora_id` | hashes | no topic |
/// | sglang-0.4.7 | rank | arrays | same | same | no topic |
/// | sglang-0.5.9 | rank | arrays | + `medium` | + `medium` | no topic |
/// | sglang-0.5.18 | rank | arrays | + a map with the salt, where there is one | same | no topic |
/// | sglang-0.5.20 | rank | maps | + `cache_salt`, `session_id` instead of the map | same | no topic |
/// | sglang-0.5.22 | rank | maps | + `lora_name` | same | topic |
/// | tokenspeed-0.1.1 | rank | arrays | to `block_size` | hashes | no topic |
/// | trtllm-zmq | rank | maps | to `lora_name`, `mm_keys` | + `medium` | topic |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// 0.9.0.
    Vllm0_9,
    /// 0.10.2 to 0.13.
    Vllm0_10,
    /// 0.14 to 0.16.
    Vllm0_14,
    /// 0.17 to 0.19.
    Vllm0_17,
    /// 0.20 and 0.21.
    Vllm0_20,
    /// 0.22 and 0.23: the last with arrays.
    Vllm0_22,
    /// 0.24 and 0.25: the first with maps.
    Vllm0_24,
    /// 0.26 to 0.28.
    Vllm0_26,
    /// 0.29.
    Vllm0_29,
    /// 0.30 to 0.32.
    Vllm0_32,
    /// 0.4.6.
    Sglang0_4_6,
    /// 0.4.7 to 0.5.8.
    Sglang0_4_7,
    /// 0.5.9 to 0.5.17.
    Sglang0_5_9,
    /// 0.5.18 and 0.5.19: the last with arrays.
    Sglang0_5_18,
    /// 0.5.20 and 0.5.21: the first with maps.
    Sglang0_5_20,
    /// 0.5.22 and 0.5.23.
    Sglang0_5_22,
    /// 0.1.1.
    Tokenspeed0_1_1,
    /// TensorRT-LLM's push mode.
    TrtllmZmq,
}

/// A name that no profile has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown engine profile {0:?}")]
pub struct UnknownProfile(pub String);

/// What a profile's engine writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// The profile's own name, then those of later releases with the same shape.
    names: &'static [&'static str],
    engine: EngineKind,
    pub(super) batch_has_rank: bool,
    pub(super) events_are_maps: bool,
    replay_has_topic: bool,
    /// The fields of a store behind its tag, in the order of declaration.
    pub(crate) stored: &'static [Declared],
    /// The same for a removal.
    pub(crate) removed: &'static [Declared],
}

/// A field of an engine's struct.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Declared {
    pub(crate) field: Field,
    /// Left out where it has no value. Without, nil stands in its place.
    pub(crate) omitted_when_nil: bool,
}

const fn always(field: Field) -> Declared {
    Declared { field, omitted_when_nil: false }
}

const fn when_set(field: Field) -> Declared {
    Declared { field, omitted_when_nil: true }
}

const fn first(count: usize, fields: &'static [Declared]) -> &'static [Declared] {
    fields.split_at(count).0
}

/// What every engine's store begins with, and vLLM's arrays go on with.
const STORED_ARRAY: &[Declared] = &[
    always(Field::Hashes),
    always(Field::Parent),
    always(Field::Tokens),
    always(Field::BlockSize),
    always(Field::LoraId),
    always(Field::Medium),
    always(Field::LoraName),
    always(Field::ExtraKeys),
    always(Field::Group),
    always(Field::SpecKind),
    always(Field::SlidingWindow),
];

const REMOVED_ARRAY: &[Declared] = &[always(Field::Hashes), always(Field::Medium), always(Field::Group)];

const VLLM_STORED_MAP: &[Declared] = &[
    always(Field::Hashes),
    always(Field::Parent),
    always(Field::Tokens),
    always(Field::BlockSize),
    always(Field::LoraId),
    always(Field::Medium),
    always(Field::LoraName),
    when_set(Field::ExtraKeys),
    when_set(Field::Group),
    when_set(Field::SpecKind),
    when_set(Field::SlidingWindow),
    when_set(Field::Locality),
    when_set(Field::Ownership),
    when_set(Field::SessionId),
    // No vLLM's own.
    when_set(Field::CacheSalt),
];

const VLLM_REMOVED_MAP: &[Declared] = &[
    always(Field::Hashes),
    always(Field::Medium),
    when_set(Field::Group),
    when_set(Field::Locality),
    when_set(Field::Ownership),
];

const SGLANG_STORED_ARRAY: &[Declared] = &[
    always(Field::Hashes),
    always(Field::Parent),
    always(Field::Tokens),
    always(Field::BlockSize),
    always(Field::LoraId),
    always(Field::Medium),
    when_set(Field::Metadata),
];

const SGLANG_STORED_MAP: &[Declared] = &[
    always(Field::Hashes),
    always(Field::Parent),
    always(Field::Tokens),
    always(Field::BlockSize),
    always(Field::LoraId),
    when_set(Field::Medium),
    when_set(Field::CacheSalt),
    when_set(Field::SessionId),
    when_set(Field::LoraName),
];

const SGLANG_REMOVED_MAP: &[Declared] = &[always(Field::Hashes), when_set(Field::Medium)];

const TRTLLM_STORED: &[Declared] = &[
    always(Field::Hashes),
    always(Field::Parent),
    always(Field::Tokens),
    always(Field::BlockSize),
    always(Field::LoraId),
    always(Field::Medium),
    always(Field::LoraName),
    when_set(Field::MultimodalKeys),
];

/// vLLM's first shape: every row below says how it differs from one above it.
const VLLM_0_9: Shape = Shape {
    names: &["vllm-0.9.0"],
    engine: EngineKind::Vllm,
    batch_has_rank: false,
    events_are_maps: false,
    replay_has_topic: false,
    stored: first(5, STORED_ARRAY),
    removed: first(1, REMOVED_ARRAY),
};

const VLLM_0_10: Shape = Shape {
    names: &["vllm-0.10.2"],
    batch_has_rank: true,
    stored: first(6, STORED_ARRAY),
    removed: first(2, REMOVED_ARRAY),
    ..VLLM_0_9
};

const VLLM_0_22: Shape =
    Shape { names: &["vllm-0.22"], stored: STORED_ARRAY, removed: REMOVED_ARRAY, ..VLLM_0_10 };

const VLLM_0_24: Shape = Shape {
    names: &["vllm-0.24"],
    events_are_maps: true,
    stored: first(11, VLLM_STORED_MAP),
    removed: first(3, VLLM_REMOVED_MAP),
    ..VLLM_0_22
};

/// What kvplane itself publishes: the newest vLLM's, and salts.
pub(super) const REPUBLISHED: Shape = Shape {
    names: &["kvplane"],
    replay_has_topic: true,
    stored: VLLM_STORED_MAP,
    removed: VLLM_REMOVED_MAP,
    ..VLLM_0_24
};

const SGLANG_0_4_7: Shape =
    Shape { names: &["sglang-0.4.7"], engine: EngineKind::Sglang, batch_has_rank: true, ..VLLM_0_9 };

const SGLANG_0_5_9: Shape = Shape {
    names: &["sglang-0.5.9", "sglang-0.5.17"],
    stored: first(6, SGLANG_STORED_ARRAY),
    removed: first(2, REMOVED_ARRAY),
    ..SGLANG_0_4_7
};

const SGLANG_0_5_20: Shape = Shape {
    names: &["sglang-0.5.20", "sglang-0.5.21"],
    events_are_maps: true,
    stored: first(8, SGLANG_STORED_MAP),
    removed: SGLANG_REMOVED_MAP,
    ..SGLANG_0_5_9
};

/// By profile, in the order of [`Profile::ALL`].
static SHAPES: [Shape; Profile::ALL.len()] = [
    VLLM_0_9,
    VLLM_0_10,
    Shape { names: &["vllm-0.14"], stored: first(7, STORED_ARRAY), ..VLLM_0_10 },
    Shape { names: &["vllm-0.17"], stored: first(8, STORED_ARRAY), ..VLLM_0_10 },
    Shape { names: &["vllm-0.20"], stored: first(9, STORED_ARRAY), ..VLLM_0_22 },
    VLLM_0_22,
    VLLM_0_24,
    Shape {
        names: &["vllm-0.26"],
        replay_has_topic: true,
        stored: first(12, VLLM_STORED_MAP),
        removed: first(4, VLLM_REMOVED_MAP),
        ..VLLM_0_24
    },
    Shape {
        names: &["vllm-0.29"],
        replay_has_topic: true,
        stored: first(13, VLLM_STORED_MAP),
        removed: VLLM_REMOVED_MAP,
        ..VLLM_0_24
    },
    Shape {
        names: &["vllm-0.32", "vllm-0.30", "vllm-0.31"],
        replay_has_topic: true,
        stored: first(14, VLLM_STORED_MAP),
        removed: VLLM_REMOVED_MAP,
        ..VLLM_0_24
    },
    Shape { names: &["sglang-0.4.6"], batch_has_rank: false, ..SGLANG_0_4_7 },
    SGLANG_0_4_7,
    SGLANG_0_5_9,
    Shape { names: &["sglang-0.5.18", "sglang-0.5.19"], stored: SGLANG_STORED_ARRAY, ..SGLANG_0_5_9 },
    SGLANG_0_5_20,
    Shape {
        names: &["sglang-0.5.22", "sglang-0.5.23"],
        replay_has_topic: true,
        stored: SGLANG_STORED_MAP,
        ..SGLANG_0_5_20
    },
    Shape {
        names: &["tokenspeed-0.1.1", "tokenspeed"],
        engine: EngineKind::Tokenspeed,
        stored: first(4, STORED_ARRAY),
        ..SGLANG_0_4_7
    },
    Shape {
        names: &["trtllm-zmq"],
        engine: EngineKind::Trtllm,
        replay_has_topic: true,
        stored: TRTLLM_STORED,
        removed: first(2, VLLM_REMOVED_MAP),
        ..VLLM_0_24
    },
];

impl Profile {
    /// Every profile: engine by engine, oldest first.
    pub const ALL: [Profile; 18] = [
        Profile::Vllm0_9,
        Profile::Vllm0_10,
        Profile::Vllm0_14,
        Profile::Vllm0_17,
        Profile::Vllm0_20,
        Profile::Vllm0_22,
        Profile::Vllm0_24,
        Profile::Vllm0_26,
        Profile::Vllm0_29,
        Profile::Vllm0_32,
        Profile::Sglang0_4_6,
        Profile::Sglang0_4_7,
        Profile::Sglang0_5_9,
        Profile::Sglang0_5_18,
        Profile::Sglang0_5_20,
        Profile::Sglang0_5_22,
        Profile::Tokenspeed0_1_1,
        Profile::TrtllmZmq,
    ];

    /// The name, as in configuration and logs.
    pub fn as_str(self) -> &'static str {
        self.shape().names[0]
    }

    /// Which software speaks like this.
    pub fn engine(self) -> EngineKind {
        self.shape().engine
    }

    /// Whether this is the same engine's shape, of the same release or a later one.
    pub fn is_at_least(self, earlier: Profile) -> bool {
        self.engine() == earlier.engine() && self as usize >= earlier as usize
    }

    /// Whether a replay reply has a topic frame before the sequence.
    pub fn replay_has_topic(self) -> bool {
        self.shape().replay_has_topic
    }

    /// Whether events are maps rather than arrays.
    pub fn events_are_maps(self) -> bool {
        self.shape().events_are_maps
    }

    /// Whether a batch has a third element.
    pub fn batch_has_rank(self) -> bool {
        self.shape().batch_has_rank
    }

    pub(crate) fn shape(self) -> &'static Shape {
        &SHAPES[self as usize]
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    /// A profile by its name, or by that of a later release with the same shape. A bare version is vLLM's.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let is_version = name.starts_with(|first: char| first.is_ascii_digit());
        let full = if is_version { format!("vllm-{name}") } else { name.to_owned() };
        let found = Self::ALL.into_iter().find(|profile| profile.shape().names.contains(&full.as_str()));
        found.ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}
