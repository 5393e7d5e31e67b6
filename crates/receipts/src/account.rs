//! Where each token went.

use kvplane_core::Trust;

use crate::cause::{Cause, Losses};
use crate::receipt::{Decided, Delivered};
use crate::replay::{Replay, Traced};

/// A request's account, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Account {
    /// Never seen before: nobody could have had them.
    pub workload: u64,
    /// What was lost, by cause.
    pub losses: Losses,
    /// What was delivered beyond the prediction.
    pub gained: u64,
    /// The prediction was exact, and the engine's announcements do not explain what was delivered.
    pub drift: Option<Drift>,
}

/// How prediction and delivery disagree, although both were to be exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drift {
    /// Blocks that were held were not used, and no announcement says that they went.
    LostUnannounced {
        /// The first block that was not used, counted from 0.
        block: u64,
    },
    /// Blocks that were not held were used, and no announcement says that they came.
    GainedUnannounced {
        /// The first such block.
        block: u64,
    },
}

impl Drift {
    /// Its name in findings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LostUnannounced { .. } => "lost_unannounced",
            Self::GainedUnannounced { .. } => "gained_unannounced",
        }
    }

    /// Where it begins.
    pub fn block(self) -> u64 {
        match self {
            Self::LostUnannounced { block } | Self::GainedUnannounced { block } => block,
        }
    }
}

impl Account {
    /// What came before the request was sent: known at the decision.
    pub fn at_decision(decided: &Decided) -> Self {
        let &Decided { prompt, ceiling, fleet_main, fleet, eligible, predicted, .. } = decided;
        let main = fleet_main.max(fleet);
        let ceiling = ceiling.max(main).min(prompt.max(main));
        let mut losses = Losses::default();
        losses.add(Cause::Capacity, ceiling - main);
        losses.add(Cause::NotResumable, main - fleet);
        losses.add(Cause::Eligibility, fleet.saturating_sub(eligible));
        losses.add(Cause::Load, eligible.saturating_sub(predicted));
        Self { workload: prompt.saturating_sub(ceiling), losses, gained: 0, drift: None }
    }

    /// The whole account.
    pub fn settle(decided: &Decided, delivered: &Delivered, replay: &Replay) -> Self {
        let mut account = Self::at_decision(decided);
        let (predicted, cached) = (decided.predicted, delivered.cached);
        if predicted > cached {
            let (cause, drift) = cause(decided, delivered, replay);
            account.losses.add(cause, predicted - cached);
            account.drift = drift;
        } else if cached > predicted {
            account.gained = cached - predicted;
            if served_elsewhere(decided, delivered).is_none() && decided.trust == Trust::Exact {
                account.drift = unannounced(decided, cached, replay);
            }
        }
        account
    }
}

/// Whether somebody else than the chosen one served, or another prompt was served.
fn served_elsewhere(decided: &Decided, delivered: &Delivered) -> Option<Cause> {
    let chosen = decided.candidates.first()?;
    if delivered.engine.as_ref().is_some_and(|engine| *engine != chosen.engine) {
        return Some(Cause::WrongEndpoint);
    }
    if delivered.rank.is_some_and(|rank| rank != chosen.rank) {
        return Some(Cause::WrongRank);
    }
    // A decision without tokens counted none.
    let counted = delivered.prompt.filter(|_| decided.prompt > 0);
    counted.is_some_and(|prompt| prompt != decided.prompt).then_some(Cause::WrongTokens)
}

/// Why less was delivered than predicted.
fn cause(decided: &Decided, delivered: &Delivered, replay: &Replay) -> (Cause, Option<Drift>) {
    if let Some(cause) = served_elsewhere(decided, delivered) {
        return (cause, None);
    }
    if matches!(replay, Replay::NewLife) {
        return (Cause::Restart, None);
    }
    let unexplained = if decided.trust == Trust::Exact { Cause::Unknown } else { Cause::NotExact };
    let Replay::Whole(happenings) = replay else { return (unexplained, None) };
    let Some(block) = delivered.cached.checked_div(u64::from(decided.block_size)) else {
        return (unexplained, None);
    };
    let Some(&missing) = decided.contents.get(block as usize) else { return (unexplained, None) };
    let traced = Traced::of(happenings, &[missing]);
    // What the stream shows to be gone is gone, whatever the prediction was worth.
    if traced.went(missing) {
        return (Cause::EvictedBetween, None);
    }
    if unexplained == Cause::NotExact {
        return (Cause::NotExact, None);
    }
    // An engine that computes a block announces it. Where it did not, its blocks are not distinguished here,
    // and nothing is proven.
    let drift = traced.came(missing).then_some(Drift::LostUnannounced { block });
    (Cause::Unknown, drift)
}

/// The first block that was used, not predicted and not announced.
fn unannounced(decided: &Decided, cached: u64, replay: &Replay) -> Option<Drift> {
    let Replay::Whole(happenings) = replay else { return None };
    let size = u64::from(decided.block_size);
    let (from, to) = (decided.predicted.checked_div(size)?, cached.checked_div(size)?);
    let gained = decided.contents.get(from as usize..to as usize)?;
    let traced = Traced::of(happenings, gained);
    let at = gained.iter().position(|content| !traced.came(*content))?;
    Some(Drift::GainedUnannounced { block: from + at as u64 })
}

#[cfg(test)]
mod tests;
