//! What happens to a stream, said to somebody who has not read the design.

use kvplane_core::{Continuity, Trust};
use kvplane_stream::{Happening, PassedOver};

use super::{Mood, Said};

impl Said {
    fn new(topic: &'static str, mood: Mood, words: impl Into<String>) -> Self {
        Self { topic, mood, words: words.into() }
    }

    pub(crate) fn of(happening: &Happening) -> Self {
        match happening {
            Happening::Standing(standing) => {
                let (mood, words) = match standing {
                    Continuity::Connecting => (Mood::Plain, "not reached yet"),
                    Continuity::Recovering => (Mood::Plain, "asking the engine for what was missed"),
                    Continuity::Live => (Mood::Good, "following, nothing is missing between batches"),
                    Continuity::Down => {
                        (Mood::Bad, "out of reach for too long: not credited until it is back")
                    }
                };
                Self::new("continuity", mood, words)
            }
            Happening::Trust(Trust::Exact, _) => {
                Self::new("trust", Mood::Good, "exact: what is shown is what the engine holds")
            }
            Happening::Trust(trust, reason) => {
                let why = reason.map_or("", kvplane_core::Reason::words);
                Self::new("trust", Mood::Bad, format!("{trust}: {why}"))
            }
            Happening::Epoch(epoch, cause) => {
                let verdict = if cause.proven() { "restart proven" } else { "a new life is assumed" };
                let words = format!(
                    "{verdict}: {}. What it held before does not count any more (epoch {epoch})",
                    cause.as_str()
                );
                Self::new("epoch", if cause.proven() { Mood::Plain } else { Mood::Bad }, words)
            }
            Happening::CaughtUp(batches) => {
                Self::new("continuity", Mood::Good, format!("caught up: {batches} batches were replayed"))
            }
            Happening::Lost(reason) => Self::new(
                "gap",
                Mood::Bad,
                format!("batches are lost for good, what was held is forgotten: {}", reason.words()),
            ),
            Happening::UnprovenFlush => Self::new(
                "flush",
                Mood::Bad,
                "the engine accepted a flush, and its stream did not show it in time: what was held is forgotten",
            ),
            Happening::ForeignReplay => Self::new(
                "replay",
                Mood::Bad,
                "the replay address answers with another publisher's batches: it is asked no more",
            ),
            Happening::ForeignRank(rank) => Self::new(
                "events",
                Mood::Bad,
                format!(
                    "batches name rank {rank}, and are recorded as this rank's: is the engine's rank configured?"
                ),
            ),
            Happening::PassedOver(PassedOver { kind, reason, .. }) => {
                Self::new("events", Mood::Bad, format!("an announcement was passed over ({kind}): {reason}"))
            }
            Happening::Void(misfit) => {
                Self::new("mirror", Mood::Bad, format!("void until a snapshot comes: {misfit}"))
            }
            Happening::Undecodable { reason, .. } => {
                Self::new("events", Mood::Bad, format!("a batch cannot be decoded: {reason}"))
            }
        }
    }
}
