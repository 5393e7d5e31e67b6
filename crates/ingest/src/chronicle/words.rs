//! What happens to a stream, said to somebody who has not read the design.

use kvplane_core::{Continuity, EngineId, Trouble, Trust};
use kvplane_stream::{Happening, PassedOver};

use super::{Mood, Said};
use crate::spec::Origin;

/// Engines that a remark names; of the others it has the number.
const NAMED_MAX: usize = 4;

impl Said {
    /// That a stream stands where it should, or is on its way there: every stream tells so when it begins.
    pub(super) fn is_routine(&self) -> bool {
        matches!(self.topic, "continuity" | "trust" | "source") && self.mood != Mood::Bad
    }

    /// Something that happened.
    pub fn new(topic: &'static str, mood: Mood, words: impl Into<String>) -> Self {
        Self { topic, mood, words: words.into() }
    }

    pub(crate) fn added(engines: &[&EngineId], origin: Origin) -> Self {
        let by = match origin {
            Origin::Config => "as configured",
            Origin::Api => "through the API",
            Origin::Register => "because it registered",
            Origin::Upstream => "from the upstream plane",
            Origin::Kubernetes => "from the Kubernetes cluster",
        };
        Self::new("members", Mood::Plain, format!("added {by}: {}", named(engines)))
    }

    pub(crate) fn removed(engines: &[&EngineId]) -> Self {
        let words = format!("removed: {}. Its blocks are no longer counted", named(engines));
        Self::new("members", Mood::Plain, words)
    }

    /// Something keeps a source from being heard.
    pub(crate) fn trouble(trouble: Trouble) -> Self {
        let mood = if trouble == Trouble::Discovering { Mood::Plain } else { Mood::Bad };
        Self::new("source", mood, trouble.words())
    }

    /// It does not any more.
    pub(crate) fn trouble_over(trouble: Trouble) -> Self {
        Self::new("source", Mood::Good, format!("resolved: {}", trouble.words()))
    }

    pub(crate) fn of(happening: &Happening) -> Self {
        match happening {
            Happening::Continuity(continuity) => {
                let (mood, words) = match continuity {
                    Continuity::Connecting => (Mood::Plain, "not reached yet"),
                    Continuity::Recovering => (Mood::Plain, "asking the engine for missed events"),
                    Continuity::Live => (Mood::Good, "live, no gaps"),
                    Continuity::Down => {
                        (Mood::Bad, "unreachable for too long: not credited until it is back")
                    }
                };
                Self::new("continuity", mood, words)
            }
            Happening::Trust(Trust::Exact, _) => {
                Self::new("trust", Mood::Good, "exact: in sync with the engine")
            }
            Happening::Trust(trust, reason) => {
                let why = reason.map_or("", kvplane_core::Reason::words);
                // Somebody ordered it.
                let mood =
                    if *reason == Some(kvplane_core::Reason::Flushing) { Mood::Plain } else { Mood::Bad };
                Self::new("trust", mood, format!("{trust}: {why}"))
            }
            Happening::Epoch(epoch, cause) => {
                let verdict = if cause.proven() { "restart proven" } else { "restart assumed" };
                let words = format!(
                    "{verdict}: {}. Its earlier blocks are no longer counted (epoch {epoch})",
                    cause.as_str()
                );
                Self::new("epoch", if cause.proven() { Mood::Plain } else { Mood::Bad }, words)
            }
            Happening::CaughtUp { batches, gaps_filled: 0 } => {
                let words = format!("caught up: {} replayed", counted(*batches, "batch"));
                Self::new("continuity", Mood::Good, words)
            }
            Happening::CaughtUp { batches, .. } => {
                let words =
                    format!("gap repaired: {} replayed, nothing lost", counted(*batches, "missing batch"));
                Self::new("gap", Mood::Good, words)
            }
            Happening::Lost(reason) => Self::new("gap", Mood::Bad, format!("data loss: {}", reason.words())),
            Happening::UnprovenFlush => Self::new(
                "flush",
                Mood::Bad,
                "flush not confirmed by the event stream in time; known blocks dropped",
            ),
            Happening::ForeignReplay => Self::new(
                "replay",
                Mood::Bad,
                "the replay address belongs to another publisher; replay requests stopped",
            ),
            Happening::ForeignRank(rank) => Self::new(
                "events",
                Mood::Bad,
                format!(
                    "batches name rank {rank} and are recorded as this rank's: check the engine's configured ranks"
                ),
            ),
            Happening::PassedOver(PassedOver { kind, reason, .. }) => {
                Self::new("events", Mood::Bad, format!("event skipped ({kind}): {reason}"))
            }
            Happening::Void(misfit) => {
                Self::new("mirror", Mood::Bad, format!("out of sync until the next snapshot: {misfit}"))
            }
            Happening::Misdirected(kind) => Self::new(
                "defect",
                Mood::Bad,
                format!(
                    "ignored an input of a {kind} source, which this stream does not have; please report it"
                ),
            ),
            Happening::Undecodable { reason, .. } => {
                Self::new("events", Mood::Bad, format!("a batch cannot be decoded: {reason}"))
            }
        }
    }
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "es" })
}

fn named(engines: &[&EngineId]) -> String {
    let names: Vec<_> = engines.iter().take(NAMED_MAX).map(|id| id.as_str()).collect();
    match engines.len() - names.len() {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_that_is_filled_is_distinguished_from_a_late_join() {
        let said = |batches, gaps_filled| Said::of(&Happening::CaughtUp { batches, gaps_filled });
        assert_eq!(said(7, 0).words, "caught up: 7 batches replayed");
        let repaired = said(1, 1);
        assert_eq!((repaired.topic, repaired.mood), ("gap", Mood::Good));
        assert_eq!(repaired.words, "gap repaired: 1 missing batch replayed, nothing lost");
    }

    #[test]
    fn of_many_engines_the_first_are_named() {
        let ids: Vec<_> = (0..6).map(|at| EngineId::new(&format!("e{at}"))).collect();
        let ids: Vec<_> = ids.iter().collect();
        assert_eq!(Said::added(&ids, Origin::Config).words, "added as configured: e0, e1, e2, e3 and 2 more");
        assert_eq!(Said::removed(&ids[..1]).words, "removed: e0. Its blocks are no longer counted");
    }
}
