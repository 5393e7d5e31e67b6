//! What came of an operation: a table and a line, or a JSON document; and the exit code.

use std::time::Duration;

use kvplane_proto::kvplane::v1::RankReport;
use serde_json::{Value, json};

use super::course::{Course, Rank, Standing};
use super::view::headline;
use crate::commands::Failure;
use crate::commands::page::aligned;
use crate::output::word;

/// The most that a table shows of what an engine says of itself: that may be a hundred kilobytes.
const DETAIL: usize = 160;

/// How an operation ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The plane has reported all of it.
    Complete,
    /// A dry run: the plane said what would be asked.
    DryRun,
    /// The plane stopped in the middle.
    BrokeOff(String),
    /// Somebody here ended it.
    Interrupted,
}

/// The exit code, and why it is not 0.
pub(super) fn verdict(course: &Course, ending: &Ending) -> Result<(), Failure> {
    let all = course.ranks.len();
    let fail = |code, words: String| Err(Failure { code, error: anyhow::anyhow!(words) });
    let partly = |fine: usize| if fine > 0 { 3 } else { 1 };
    match ending {
        Ending::DryRun => {
            match course.ranks.iter().filter(|rank| rank.planned.unsupported.is_empty()).count() {
                asked if asked == all && all > 0 => Ok(()),
                asked => fail(partly(asked), format!("{} of {all} ranks would be skipped", all - asked)),
            }
        }
        Ending::Complete => match course.fine() {
            fine if fine == all && all > 0 => Ok(()),
            fine => fail(partly(fine), format!("{} of {all} ranks are neither proven nor done", all - fine)),
        },
        Ending::BrokeOff(reason) => fail(partly(course.fine()), format!("the operation broke off: {reason}")),
        Ending::Interrupted if all == 0 => fail(130, "interrupted before kvplane answered".to_owned()),
        Ending::Interrupted => {
            let open = course.open();
            let log = format!("kvplane's log has the outcome of {}", course.operation);
            fail(130, format!("interrupted: {open} of {all} ranks may still complete; {log}"))
        }
    }
}

/// The table, and a line with the counts.
pub(super) fn table(course: &Course, ending: &Ending, took: Duration) -> String {
    if *ending == Ending::DryRun {
        return format!("{}{} would ask {} servers\n", plan_table(course), course.verb, course.backends);
    }
    // Those that are not fine are last, where people look first.
    let mut ranks: Vec<&Rank> = course.ranks.iter().collect();
    ranks.sort_by_key(|rank| !rank.standing().is_fine());
    let heads = ["ENGINE", "RANK", "KIND", "VERDICT", "CLEARED", "REMAINING", "PROFILE", "SECONDS", "WHY"];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(ranks.into_iter().map(|rank| row(course, rank)));
    // A column in which nobody has anything tells nothing.
    let columns: Vec<usize> =
        (0..heads.len()).filter(|&column| rows[1..].iter().any(|row| row[column] != "-")).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| columns.iter().map(|&column| row[column].clone()).collect()).collect();
    let open = match course.open() {
        0 => String::new(),
        open => format!("; {open} may still complete"),
    };
    format!("{}{}{open}\n", aligned(&rows), headline(course, took))
}

fn row(course: &Course, rank: &Rank) -> [String; 9] {
    let PlannedCells { engine, number, kind } = PlannedCells::of(rank);
    let report = rank.report.clone().unwrap_or_default();
    let standing = rank.standing();
    let seconds = report.answer_s + report.proof_s;
    [
        engine,
        number,
        kind,
        if standing.is_over() { standing.name() } else { "-".to_owned() },
        or_dash(report.tiers_cleared.join(", ")),
        or_dash(remaining(&report)),
        or_dash(report.profile_id.clone()),
        if standing.is_over() { format!("{seconds:.1}") } else { "-".to_owned() },
        or_dash(why(course, rank, &report)),
    ]
}

/// The columns that every table begins with.
struct PlannedCells {
    engine: String,
    number: String,
    kind: String,
}

impl PlannedCells {
    fn of(rank: &Rank) -> Self {
        let planned = &rank.planned;
        Self { engine: planned.engine.clone(), number: planned.rank.to_string(), kind: planned.kind.clone() }
    }
}

fn plan_table(course: &Course) -> String {
    let mut rows = vec![["ENGINE", "RANK", "KIND", "MODEL", "CALL"].map(str::to_owned)];
    for rank in &course.ranks {
        let PlannedCells { engine, number, kind } = PlannedCells::of(rank);
        let planned = &rank.planned;
        let call = if planned.unsupported.is_empty() {
            planned.call.clone()
        } else {
            format!("none: {}", planned.unsupported)
        };
        rows.push([engine, number, kind, or_dash(planned.model.clone()), call]);
    }
    aligned(&rows)
}

/// `host: 12 blocks`, where it is known how many.
fn remaining(report: &RankReport) -> String {
    let tiers = report.tiers_remaining.iter().map(|left| match left.blocks {
        Some(blocks) => format!("{} {blocks}", left.tier),
        None => format!("{} ?", left.tier),
    });
    tiers.collect::<Vec<_>>().join(", ")
}

/// The sentence; for an engine that returned details, those.
fn why(course: &Course, rank: &Rank, report: &RankReport) -> String {
    let sentence = match rank.standing() {
        Standing::Over(_) if !report.detail_json.is_empty() => cut_short(&report.detail_json),
        Standing::Over(_) => report.why.clone(),
        Standing::Waiting => "no report: not sent, unless just now".to_owned(),
        Standing::Asking => "request in progress".to_owned(),
        Standing::Proving => "the engine accepted it; kvplane keeps watching its stream".to_owned(),
    };
    if course.is_open(rank) { format!("{sentence} (may still complete)") } else { sentence }
}

fn cut_short(text: &str) -> String {
    let mut characters = text.chars();
    let shown: String = characters.by_ref().take(DETAIL).collect();
    if characters.next().is_some() { format!("{shown}…") } else { shown }
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// The whole of it as one document. Ranks are as in the plane's own JSON.
pub(super) fn document(course: &Course, ending: &Ending) -> Value {
    let ranks = course.ranks.iter().map(|rank| {
        let mut object = if *ending == Ending::DryRun { planned(rank) } else { reported(course, rank) };
        object["engine"] = json!(rank.planned.engine);
        object["rank"] = json!(rank.planned.rank);
        object["model"] = json!(rank.planned.model);
        object["kind"] = json!(rank.planned.kind);
        object
    });
    let summary = course.summary.as_ref().map(|summary| {
        json!({
            "verdicts": summary.verdicts,
            "outcome": word(summary.outcome().as_str_name()),
            "took_s": summary.took_s,
        })
    });
    json!({
        "operation": course.operation,
        "verb": course.verb,
        "backends": course.backends,
        "complete": matches!(ending, Ending::Complete | Ending::DryRun),
        "ranks": ranks.collect::<Vec<_>>(),
        "summary": summary,
    })
}

fn planned(rank: &Rank) -> Value {
    json!({ "call": rank.planned.call, "unsupported": rank.planned.unsupported })
}

fn reported(course: &Course, rank: &Rank) -> Value {
    let report = rank.report.clone().unwrap_or_default();
    let standing = rank.standing();
    let left = report.tiers_remaining.iter().map(|left| match left.blocks {
        Some(blocks) => json!({ "tier": left.tier, "blocks": blocks }),
        None => json!({ "tier": left.tier }),
    });
    let mut object = json!({
        "phase": if standing.is_over() { "over".to_owned() } else { standing.name() },
        "verdict": standing.is_over().then(|| standing.name()),
        "why": report.why,
        "asked": report.asked,
        "answer_s": report.answer_s,
        "proof_s": report.proof_s,
        "may_still_complete": course.is_open(rank),
        "tiers_cleared": report.tiers_cleared,
        "tiers_remaining": left.collect::<Vec<_>>(),
    });
    if let Ok(detail) = serde_json::from_str::<Value>(&report.detail_json) {
        object["detail"] = detail;
    }
    if !report.profile_id.is_empty() {
        object["profile_id"] = json!(report.profile_id);
    }
    object
}
