//! What can be asked of an engine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvplane_core::PlaneId;
use serde::Serialize;

/// An operation, with what it takes.
#[derive(Debug, Clone, PartialEq)]
pub enum Verb {
    /// Forget the cached prefixes.
    Flush(Flush),
    /// Begin to profile.
    StartProfile(Profile),
    /// End profiling and write what was recorded.
    StopProfile,
    /// What the engine says of itself.
    Info,
    /// How busy its ranks are.
    Loads,
    /// Whether it is well.
    Health,
    /// One token for a short prompt: an idle vLLM publishes its clear only with the next step.
    Nudge {
        /// The model, as the engine serves it.
        model: String,
        /// The rank that is to compute it, where a server has several and would choose one by itself.
        rank: Option<u32>,
    },
}

impl Verb {
    /// Which one it is.
    pub fn name(&self) -> VerbName {
        match self {
            Self::Flush(_) => VerbName::Flush,
            Self::StartProfile(_) => VerbName::StartProfile,
            Self::StopProfile => VerbName::StopProfile,
            Self::Info => VerbName::Info,
            Self::Loads => VerbName::Loads,
            Self::Health => VerbName::Health,
            Self::Nudge { .. } => VerbName::Nudge,
        }
    }

    /// How long a backend may take in all: what the engine itself waits for, and some room for the way.
    pub fn usual_deadline(&self) -> Duration {
        /// Engines ask their schedulers first, which answer between steps.
        const ROOM: Duration = Duration::from_secs(10);
        /// Traces are written before the answer, which takes minutes; SMG's servicers allow as much.
        const TRACES: Duration = Duration::from_mins(10);
        match self {
            Self::Flush(flush) => flush.timeout.saturating_add(ROOM),
            Self::StopProfile => TRACES + ROOM,
            Self::StartProfile(_) | Self::Nudge { .. } => ROOM * 3,
            Self::Info | Self::Loads | Self::Health => ROOM,
        }
    }
}

/// The name of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerbName {
    /// [`Verb::Flush`].
    Flush,
    /// [`Verb::StartProfile`].
    StartProfile,
    /// [`Verb::StopProfile`].
    StopProfile,
    /// [`Verb::Info`].
    Info,
    /// [`Verb::Loads`].
    Loads,
    /// [`Verb::Health`].
    Health,
    /// [`Verb::Nudge`].
    Nudge,
}

impl VerbName {
    /// Every name.
    pub const ALL: [Self; 7] = [
        Self::Flush,
        Self::StartProfile,
        Self::StopProfile,
        Self::Info,
        Self::Loads,
        Self::Health,
        Self::Nudge,
    ];

    /// As text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flush => "flush",
            Self::StartProfile => "start_profile",
            Self::StopProfile => "stop_profile",
            Self::Info => "info",
            Self::Loads => "loads",
            Self::Health => "health",
            Self::Nudge => "nudge",
        }
    }

    /// Whether it changes the engine: then a question without an answer may have had its effect all the same.
    pub fn changes(self) -> bool {
        matches!(self, Self::Flush | Self::StartProfile | Self::StopProfile | Self::Nudge)
    }
}

impl fmt::Display for VerbName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a cache is to be flushed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flush {
    /// How long to wait for a busy engine. Zero: it is asked once. Engines that cannot wait by themselves are
    /// asked again.
    pub timeout: Duration,
    /// Running requests lose what they hold and are computed again.
    pub reset_running: bool,
    /// The tiers behind the device are flushed too.
    pub reset_external: bool,
}

/// How to profile: the options of any engine. An engine that does not accept an option that is set here is
/// not asked at all.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Tells this recording from every other.
    pub id: ProfileId,
    /// The folder for traces, on the engine's machine.
    pub output_dir: Option<String>,
    /// Put before the names of traces.
    pub prefix: Option<String>,
    /// Steps to let pass first (`SGLang`'s `start_step`, vLLM's `delay_iterations`).
    pub start_step: Option<u32>,
    /// Steps to record; absent: until it is stopped (`SGLang`'s `num_steps`, vLLM's `max_iterations`).
    pub num_steps: Option<u32>,
    /// What to record, as the engine names it: `CPU`, `GPU`, `MEM`, `RPD`.
    pub activities: Vec<String>,
    /// With the places in the source.
    pub with_stack: Option<bool>,
    /// With the shapes of inputs.
    pub record_shapes: Option<bool>,
    /// Prefill and decode apart.
    pub by_stage: bool,
    /// Only these stages.
    pub stages: Vec<String>,
    /// One trace of all ranks.
    pub merge: bool,
}

impl Profile {
    /// The engine's defaults.
    pub fn new(id: ProfileId) -> Self {
        Self {
            id,
            output_dir: None,
            prefix: None,
            start_step: None,
            num_steps: None,
            activities: Vec::new(),
            with_stack: None,
            record_shapes: None,
            by_stage: false,
            stages: Vec::new(),
            merge: false,
        }
    }
}

/// The identity of one recording. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProfileId(Arc<str>);

impl ProfileId {
    /// As text: safe as a part of a file's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The recording of one backend among several that were asked together: their traces may land in one
    /// folder.
    #[must_use]
    pub fn of_backend(&self, number: usize) -> Self {
        Self(format!("{}-{number}", self.0).into())
    }
}

impl fmt::Display for ProfileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Gives out ids that no other plane, no other run of this one and no other recording has: the plane's own
/// identity, and a number that rises. A clock would not do: two recordings can begin in one tick.
#[derive(Debug)]
pub struct ProfileIds {
    plane: PlaneId,
    next: AtomicU64,
}

impl ProfileIds {
    /// Ids of this plane.
    pub fn new(plane: PlaneId) -> Self {
        Self { plane, next: AtomicU64::new(1) }
    }

    /// One that was not given out before.
    pub fn mint(&self) -> ProfileId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        ProfileId(format!("kvp-{}-{number}", self.plane).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_recordings_share_an_id() {
        let ids = [ProfileIds::new(PlaneId::from_bits(1)), ProfileIds::new(PlaneId::from_bits(2))];
        let mut seen = std::collections::HashSet::new();
        for ids in &ids {
            for _ in 0..100 {
                let id = ids.mint();
                assert!(id.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'));
                assert!((0..3).all(|number| seen.insert(id.of_backend(number))));
            }
        }
    }
}
