//! What is known of an operation so far: its plan, and the last report of every rank.

use std::collections::HashMap;

use anyhow::{Context as _, bail};
use kvplane_proto::kvplane::v1::progress::Item;
use kvplane_proto::kvplane::v1::{Phase, Plan, PlannedRank, Progress, RankReport, Summary, Verdict};

use crate::output::word;

/// An operation under way.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// The operation's name in the plane's log.
    pub(super) operation: String,
    pub(super) verb: String,
    pub(super) backends: u32,
    /// In the order of the plan.
    pub(super) ranks: Vec<Rank>,
    pub(super) summary: Option<Summary>,
    places: HashMap<(String, u32), usize>,
}

/// A rank that was selected.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) planned: PlannedRank,
    /// The last one that came.
    pub(super) report: Option<RankReport>,
}

/// How far a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    /// Nothing was reported of it yet.
    Waiting,
    Asking,
    Proving,
    Over(Verdict),
}

impl Standing {
    /// In the order in which people count them: what is good, what is not, what is still to come.
    const ALL: [Self; 10] = [
        Self::Over(Verdict::Proven),
        Self::Over(Verdict::Done),
        Self::Over(Verdict::Refused),
        Self::Over(Verdict::Unsupported),
        Self::Over(Verdict::Failed),
        Self::Over(Verdict::Timeout),
        Self::Over(Verdict::Unknown),
        Self::Proving,
        Self::Asking,
        Self::Waiting,
    ];

    pub(super) fn name(self) -> String {
        match self {
            Self::Waiting => "waiting".to_owned(),
            Self::Asking => "asking".to_owned(),
            Self::Proving => "proving".to_owned(),
            Self::Over(verdict) => word(verdict.as_str_name()),
        }
    }

    /// The only two verdicts that an operation is made for.
    pub(super) fn is_fine(self) -> bool {
        matches!(self, Self::Over(Verdict::Proven | Verdict::Done))
    }

    pub(super) fn is_over(self) -> bool {
        matches!(self, Self::Over(_))
    }
}

impl Rank {
    /// `engine/rank`, as everywhere.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.planned.engine, self.planned.rank)
    }

    pub(super) fn standing(&self) -> Standing {
        let Some(report) = &self.report else { return Standing::Waiting };
        match report.phase() {
            Phase::Unspecified | Phase::Asking => Standing::Asking,
            Phase::Proving => Standing::Proving,
            Phase::Over => Standing::Over(match report.verdict() {
                // A newer plane may have words that this release does not know.
                Verdict::Unspecified => Verdict::Unknown,
                verdict => verdict,
            }),
        }
    }
}

impl Course {
    /// Takes what the plane says. Returns the rank that it is about.
    pub(super) fn take(&mut self, progress: Progress) -> anyhow::Result<Option<usize>> {
        match progress.item.context(
            "kvplane sent a report that this release does not know: use the same release as the server",
        )? {
            Item::Plan(plan) => {
                self.plan(plan);
                Ok(None)
            }
            Item::Rank(report) => {
                let place = self.places.get(&(report.engine.clone(), report.rank)).copied();
                let Some(place) = place else {
                    bail!("kvplane reported on {}/{}, which is not in its plan", report.engine, report.rank);
                };
                self.ranks[place].report = Some(report);
                Ok(Some(place))
            }
            Item::Summary(summary) => {
                self.summary = Some(summary);
                Ok(None)
            }
        }
    }

    fn plan(&mut self, plan: Plan) {
        self.operation = plan.operation;
        self.verb = plan.verb;
        self.backends = plan.backends;
        self.ranks = plan.ranks.into_iter().map(|planned| Rank { planned, report: None }).collect();
        let named = self.ranks.iter().enumerate();
        self.places =
            named.map(|(place, rank)| ((rank.planned.engine.clone(), rank.planned.rank), place)).collect();
    }

    /// How many ranks stand how. What nobody is at is left out.
    pub(super) fn counts(&self) -> Vec<(Standing, usize)> {
        let mut counts: HashMap<Standing, usize> = HashMap::new();
        for rank in &self.ranks {
            *counts.entry(rank.standing()).or_default() += 1;
        }
        Standing::ALL.into_iter().filter_map(|standing| Some((standing, *counts.get(&standing)?))).collect()
    }

    /// The counts, in words.
    pub(super) fn counted(&self) -> String {
        let words = self.counts().into_iter().map(|(standing, count)| format!("{count} {}", standing.name()));
        words.collect::<Vec<_>>().join(", ")
    }

    /// Whether the engine may still do it, or may have done it, and nobody knows.
    pub(super) fn is_open(&self, rank: &Rank) -> bool {
        match rank.standing() {
            Standing::Waiting => false,
            // A question changes nothing, whether it is answered or not.
            Standing::Asking | Standing::Proving => !["info", "loads", "health"].contains(&&*self.verb),
            Standing::Over(_) => rank.report.as_ref().is_some_and(|report| report.may_still_complete),
        }
    }

    /// How many such ranks there are.
    pub(super) fn open(&self) -> usize {
        self.ranks.iter().filter(|rank| self.is_open(rank)).count()
    }

    pub(super) fn fine(&self) -> usize {
        self.ranks.iter().filter(|rank| rank.standing().is_fine()).count()
    }
}
