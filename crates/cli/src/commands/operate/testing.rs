//! Operations for tests.

use kvplane_proto::kvplane::v1::progress::Item;
use kvplane_proto::kvplane::v1::{Phase, Plan, PlannedRank, Progress, RankReport, Verdict};

use super::course::Course;

/// A flush of so many engines, before anything was told of them.
pub(super) fn planned(engines: u32) -> Course {
    let ranks = (0..engines).map(|number| PlannedRank {
        engine: format!("e{number}"),
        rank: 0,
        model: "llama".to_owned(),
        kind: "sglang".to_owned(),
        call: "POST /flush_cache".to_owned(),
        unsupported: String::new(),
    });
    let plan = Plan {
        operation: "op-1".to_owned(),
        verb: "flush".to_owned(),
        ranks: ranks.collect(),
        backends: engines,
    };
    let mut course = Course::default();
    course.take(Progress { item: Some(Item::Plan(plan)) }).unwrap();
    course
}

/// A report of one of them.
pub(super) fn reported(engine: u32, phase: Phase, verdict: Verdict, why: &str) -> Progress {
    let report = RankReport {
        engine: format!("e{engine}"),
        phase: phase.into(),
        verdict: verdict.into(),
        why: why.to_owned(),
        ..RankReport::default()
    };
    Progress { item: Some(Item::Rank(report)) }
}
