//! What became of an operation on one rank. No IO: what was heard is passed in.
//!
//! The engine's answer says what it wants to have done, the rank's stream shows what it did. Where both
//! speak, the stream counts: a flush that it shows is proven whatever the answer was.
//! `docs/reference/operations.md` has the table.

use kvplane_core::{Continuity, EngineKind, Tier};
use kvplane_ops::{Answer, Covers, Meaning, VerbName};
use kvplane_stream::{FlushOutcome, FlushReach, FlushSign};
use schemars::JsonSchema;
use serde::Serialize;

/// What became of it, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The rank's stream shows it.
    Proven,
    /// The engine says that it did it, and it cannot be proven here.
    Done,
    /// The engine is busy, or does not want to.
    Refused,
    /// It cannot be asked that.
    Unsupported,
    /// It could not be asked, or says that it failed.
    Failed,
    /// No answer in time; or an answer, and nothing on the stream in time.
    Timeout,
    /// The answer proves nothing.
    Unknown,
}

impl Verdict {
    pub(crate) const ALL: [Self; 7] = [
        Self::Proven,
        Self::Done,
        Self::Refused,
        Self::Unsupported,
        Self::Failed,
        Self::Timeout,
        Self::Unknown,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Unsupported => "unsupported",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it was done, as far as that can be known.
    pub(crate) fn is_good(self) -> bool {
        matches!(self, Self::Proven | Self::Done)
    }
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) verb: VerbName,
    /// A flush of all tiers, not of the device alone.
    pub(crate) all_tiers: bool,
}

/// What the plane knows of a rank whose stream was watched for a flush.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sight {
    pub(crate) outcome: FlushOutcome,
    pub(crate) kind: EngineKind,
    /// Where the stream stood when the watch ended.
    pub(crate) continuity: Continuity,
    /// Whether anything was known to be held when the watch began.
    pub(crate) held: bool,
    /// An earlier flush was accepted and never shown: the engine's word alone is worth nothing.
    pub(crate) doubted: bool,
    /// The verdict does not wait for the proof timeout, because the engine did not say yes. The stream is
    /// watched on.
    pub(crate) early: bool,
    /// What to say of a stream that shows nothing.
    pub(crate) hint: Option<String>,
}

/// A verdict, with its reasons.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ruling {
    pub(crate) verdict: Verdict,
    /// In one sentence.
    pub(crate) why: String,
    /// What the flush was seen to reach, if it was seen.
    pub(crate) reach: FlushReach,
    /// The engine may still do it, or may have done it.
    pub(crate) may_still_complete: bool,
}

/// Which of the ranks behind a server one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankPlace {
    /// It is the rank that answers for all, where one does.
    pub(crate) first: bool,
    /// There is no other.
    pub(crate) alone: bool,
}

/// Whether an engine's answer leaves open that a rank does what it was asked for: then its stream is watched
/// on.
///
/// A refusal of several ranks is one rank's word: over HTTP the first one's, over gRPC anybody's. Others may
/// have done it.
pub(crate) fn may_have_happened(answer: &Answer, rank: RankPlace) -> bool {
    let over_grpc = answer.asked.as_ref().is_some_and(|asked| asked.starts_with("gRPC"));
    let refused_by_another =
        answer.meaning == Meaning::Refused && answer.sent && !rank.alone && (over_grpc || !rank.first);
    answer.open || refused_by_another || matches!(answer.meaning, Meaning::Accepted { .. })
}

/// Whether the engine itself says that this rank did it. `first`: it is the rank that answers for all, where
/// one does.
pub(crate) fn reports_success(answer: &Answer, first: bool) -> bool {
    match answer.meaning {
        Meaning::Accepted { proves: true, covers: Covers::Backend } => true,
        Meaning::Accepted { proves: true, covers: Covers::FirstRank } => first,
        _ => false,
    }
}

/// What became of it. `sight` is absent where no stream was watched: it was no flush, or nothing can have
/// happened.
pub(crate) fn judge(wanted: Wanted, answer: &Answer, first: bool, sight: Option<&Sight>) -> Ruling {
    let reach = sight.and_then(|sight| match &sight.outcome {
        FlushOutcome::Proven { sign, reach } => Some((shown_by(*sign), reach_of_kind(sight.kind, reach))),
        FlushOutcome::Restarted { reach } => {
            Some(("the engine restarted after it had accepted, and its memory is empty", reach.clone()))
        }
        FlushOutcome::Unproven | FlushOutcome::Lost => None,
    });
    if let Some((shown, reach)) = reach {
        return judge_shown(wanted, reports_success(answer, first), shown, reach);
    }
    let (verdict, why) = match (answer.meaning, sight) {
        (Meaning::Accepted { .. }, Some(sight)) if reports_success(answer, first) => accepted(answer, sight),
        (Meaning::Accepted { .. }, None) if reports_success(answer, first) => {
            let profile = matches!(wanted.verb, VerbName::StartProfile | VerbName::StopProfile);
            let why = if profile { "; event streams do not show profiles" } else { "" };
            (Verdict::Done, format!("{}{why}", answer.why))
        }
        (Meaning::Accepted { proves: true, .. }, _) => {
            let why = format!("the answer is for the first rank, not for this one{}", unseen(sight));
            (Verdict::Unknown, why)
        }
        (meaning, _) => (by_answer(meaning), format!("{}{}", answer.why, unseen(sight))),
    };
    let changes_open =
        answer.open || (wanted.verb.changes() && matches!(answer.meaning, Meaning::Accepted { .. }));
    let unsettled = matches!(verdict, Verdict::Failed | Verdict::Timeout | Verdict::Unknown);
    Ruling { verdict, why, reach: FlushReach::default(), may_still_complete: changes_open && unsettled }
}

/// Behind a relay there is some engine, whose clear may have reached the device alone. What a stream forgets
/// to be safe is no proof.
fn reach_of_kind(kind: EngineKind, reach: &FlushReach) -> FlushReach {
    let mut reach = reach.clone();
    if kind == EngineKind::Grpc {
        let colder = reach.cleared.extract_if(.., |tier| *tier != Tier::Device);
        reach.remaining.extend(colder.map(|tier| (tier, None)));
    }
    reach
}

/// The stream shows it. What lies behind the device is another matter.
fn judge_shown(wanted: Wanted, success: bool, shown: &str, reach: FlushReach) -> Ruling {
    let (verdict, why) = if reach.remaining.is_empty() {
        (Verdict::Proven, shown.to_owned())
    } else {
        let remaining: Vec<_> = reach.remaining.iter().map(remains).collect();
        let remaining = remaining.join(", ");
        match (wanted.all_tiers, success) {
            (true, true) => {
                let why =
                    "the engine reports that other tiers were flushed too, which event streams cannot show";
                (Verdict::Done, format!("{shown}; {why}: {remaining}"))
            }
            (true, false) => {
                let why = "nothing shows that the other tiers were flushed";
                (Verdict::Unknown, format!("{shown}; {why}: {remaining}"))
            }
            // A flush means that nothing old is served, from whatever tier.
            (false, _) => {
                let why =
                    format!("only the device was flushed: {remaining}; reset_external flushes all tiers");
                (Verdict::Unknown, format!("{shown}; {why}"))
            }
        }
    };
    let may_still_complete = verdict == Verdict::Unknown && wanted.all_tiers;
    Ruling { verdict, why, reach, may_still_complete }
}

fn remains((tier, blocks): &(Tier, Option<u64>)) -> String {
    match blocks {
        Some(blocks) => format!("{tier} holds {blocks} blocks"),
        None => format!("{tier} may hold blocks"),
    }
}

fn shown_by(sign: FlushSign) -> &'static str {
    match sign {
        FlushSign::Clear => "its stream shows the clear",
        FlushSign::Removals => "its stream shows that every known block was removed",
        FlushSign::NothingHeld => "its stream is exact and holds nothing",
    }
}

/// The engine says that it did it, and the stream shows nothing.
fn accepted(answer: &Answer, sight: &Sight) -> (Verdict, String) {
    let said = &answer.why;
    if sight.outcome == FlushOutcome::Lost {
        let why = "batches of its stream were lost meanwhile, perhaps the confirmation too";
        return (Verdict::Done, format!("{said}; {why}"));
    }
    if sight.continuity != Continuity::Live {
        return (Verdict::Done, format!("{said}; its stream is not live ({})", sight.continuity));
    }
    if !sight.held && !sight.doubted && !publishes_clears(sight.kind) {
        let why = "no block was known, and engines of its kind publish no clear";
        return (Verdict::Done, format!("{said}; {why}"));
    }
    (Verdict::Timeout, format!("{said}{}", unseen(Some(sight))))
}

/// Engines that publish no clear show a flush by the removal of what they held.
fn publishes_clears(kind: EngineKind) -> bool {
    kind != EngineKind::Tokenspeed
}

fn by_answer(meaning: Meaning) -> Verdict {
    match meaning {
        Meaning::Accepted { .. } | Meaning::Unknown => Verdict::Unknown,
        Meaning::Refused => Verdict::Refused,
        Meaning::Unsupported => Verdict::Unsupported,
        Meaning::Failed => Verdict::Failed,
        Meaning::Timeout => Verdict::Timeout,
    }
}

fn unseen(sight: Option<&Sight>) -> String {
    let Some(sight) = sight else { return String::new() };
    let hint = sight.hint.as_ref().map_or_else(String::new, |hint| format!("; {hint}"));
    if sight.early {
        return "; not confirmed by its stream so far; still watching".to_owned();
    }
    format!("; not confirmed by its stream within the proof timeout{hint}")
}

#[cfg(test)]
mod tests;
