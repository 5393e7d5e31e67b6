//! The wire shapes that vLLM has had.

use std::fmt;
use std::str::FromStr;

/// A wire shape, named by the first vLLM release that had it.
///
/// | profile | batch | events | stored fields | removed fields | replay reply |
/// |---|---|---|---|---|---|
/// | 0.9.0 | no rank | arrays | to `lora_id` | hashes | no topic |
/// | 0.10.2 | rank | arrays | + `medium` | + `medium` | no topic |
/// | 0.14 | rank | arrays | + `lora_name` | same | no topic |
/// | 0.17 | rank | arrays | + `extra_keys` | same | no topic |
/// | 0.20 | rank | arrays | + `group_idx` | + `group_idx` | no topic |
/// | 0.22 | rank | arrays | + spec kind and window | same | no topic |
/// | 0.24 | rank | maps | same | same | no topic |
/// | 0.26 | rank | maps | + `locality` | + `locality` | topic |
/// | 0.29 | rank | maps | + `ownership` | + `ownership` | topic |
/// | 0.32 | rank | maps | + `session_id` (since 0.30) | same | topic |
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
}

/// A name that no profile has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown engine profile {0:?}")]
pub struct UnknownProfile(pub String);

impl Profile {
    /// Every profile, oldest first.
    pub const ALL: [Profile; 10] = [
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
    ];

    /// The name, as in configuration and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vllm0_9 => "vllm-0.9.0",
            Self::Vllm0_10 => "vllm-0.10.2",
            Self::Vllm0_14 => "vllm-0.14",
            Self::Vllm0_17 => "vllm-0.17",
            Self::Vllm0_20 => "vllm-0.20",
            Self::Vllm0_22 => "vllm-0.22",
            Self::Vllm0_24 => "vllm-0.24",
            Self::Vllm0_26 => "vllm-0.26",
            Self::Vllm0_29 => "vllm-0.29",
            Self::Vllm0_32 => "vllm-0.32",
        }
    }

    /// Whether a replay reply has a topic frame before the sequence.
    pub fn replay_has_topic(self) -> bool {
        self >= Self::Vllm0_26
    }

    /// Whether events are maps rather than arrays.
    pub fn events_are_maps(self) -> bool {
        self >= Self::Vllm0_24
    }

    /// Whether a batch has a third element.
    pub fn batch_has_rank(self) -> bool {
        self > Self::Vllm0_9
    }

    /// How many fields a store has, in the order of declaration and without the tag.
    pub(crate) fn stored_fields(self) -> usize {
        match self {
            Self::Vllm0_9 => 5,
            Self::Vllm0_10 => 6,
            Self::Vllm0_14 => 7,
            Self::Vllm0_17 => 8,
            Self::Vllm0_20 => 9,
            Self::Vllm0_22 | Self::Vllm0_24 => 11,
            Self::Vllm0_26 => 12,
            Self::Vllm0_29 => 13,
            Self::Vllm0_32 => 14,
        }
    }

    /// The same for a removal.
    pub(crate) fn removed_fields(self) -> usize {
        match self {
            Self::Vllm0_9 => 1,
            Self::Vllm0_10 | Self::Vllm0_14 | Self::Vllm0_17 => 2,
            Self::Vllm0_20 | Self::Vllm0_22 | Self::Vllm0_24 => 3,
            Self::Vllm0_26 => 4,
            Self::Vllm0_29 | Self::Vllm0_32 => 5,
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        // 0.30 brought the last field; 0.32 is the newest release with the same shape.
        let name = if matches!(name, "vllm-0.30" | "0.30") { "vllm-0.32" } else { name };
        let version = |name: &str| name.strip_prefix("vllm-").unwrap_or(name).to_owned();
        let found = Self::ALL.into_iter().find(|profile| version(profile.as_str()) == version(name));
        found.ok_or_else(|| UnknownProfile(name.to_owned()))
    }
}
