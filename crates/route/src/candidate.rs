//! Who could take a prompt, and why some may not.

use kvplane_core::Trust;

use crate::worker::Slot;

/// What an endpoint does with prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Prefill and decode.
    #[default]
    Both,
    /// Prefill alone.
    Prefill,
    /// Decode alone.
    Decode,
}

impl Role {
    /// Whether an endpoint with this role may be asked for `wanted`.
    pub fn serves(self, wanted: Self) -> bool {
        self == Self::Both || self == wanted
    }

    /// Its name in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Where a candidate's stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its state is credited.
    Credited,
    /// It may serve, and what it holds is not known.
    Unknown,
    /// It does not serve.
    Down,
}

/// One endpoint that could take the prompt.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// Who.
    pub worker: Slot,
    /// What it is expected to report as cached for this prompt, by its exact state.
    pub cached: u64,
    /// Tokens that it can go on from on the device, then with host memory, then with disk: each includes the
    /// ones before.
    pub tiers: [u64; 3],
    /// Tokens that its main group holds, whether or not the engine can go on from there.
    pub main: u64,
    /// What its word is worth.
    pub trust: Trust,
    /// Where its stream stands.
    pub standing: Standing,
    /// How old the proof is that it is there, in seconds; `None` where there is none yet.
    pub age: Option<f64>,
    /// Whether its source reports it as ready.
    pub ready: bool,
    /// What it does with prompts.
    pub role: Role,
}

/// Why a candidate is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// Its stream is down.
    Down,
    /// It does not take requests.
    NotReady,
    /// It has another role.
    Role,
    /// Too many requests wait or run there.
    OverCap,
    /// It gives no sign of life, and was already picked once since the last one.
    Silent,
    /// The caller does not want it.
    Excluded,
}

impl Skip {
    /// Every reason, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Down, Self::NotReady, Self::Role, Self::OverCap, Self::Silent, Self::Excluded];

    /// Its name in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::NotReady => "not_ready",
            Self::Role => "role",
            Self::OverCap => "over_cap",
            Self::Silent => "silent",
            Self::Excluded => "excluded",
        }
    }
}
