//! What people look at first: open problems with their remedies, and what the plane is worth. `/v1/overview`,
//! and an event of `/v1/watch`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_doctor::{Finding, PlaneSeen, Severity, judge_plane};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::status::{self, Duplication, StatusPage};
use crate::value::ValueStatus;

/// How old an overview may be that is given again.
const FRESH: Duration = Duration::from_secs(2);
/// Subjects that a problem names; all are counted.
const NAMED: usize = 20;
/// Engines that are judged.
const MAX_ENGINES: usize = 10_000;

/// Findings of the doctor with the same code and remedy.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Problem {
    /// A code of `docs/reference/doctor.md`.
    code: &'static str,
    /// `error`, `warning` or `info`.
    severity: &'static str,
    /// What was seen of the first subject.
    seen: String,
    why: &'static str,
    /// What to do.
    todo: String,
    /// How many ranks or engines have it.
    count: usize,
    /// The first of them, as `engine/rank`, `engine` or a key of the configuration.
    subjects: Vec<String>,
}

/// The fleet in one look.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Overview {
    /// Errors first.
    problems: Vec<Problem>,
    queries: ValueStatus,
    duplication: Duplication,
}

/// The last overview, for everybody who asks within [`FRESH`].
#[derive(Debug)]
pub(crate) struct Overviews {
    status: Arc<StatusPage>,
    last: Mutex<Option<(Instant, Arc<str>)>>,
}

impl Overviews {
    pub(crate) fn new(status: Arc<StatusPage>) -> Self {
        Self { status, last: Mutex::default() }
    }

    /// As JSON. May take milliseconds: not for a thread that serves others.
    pub(crate) fn read(&self) -> Arc<str> {
        // Under the lock: other callers wait for the same one.
        let mut last = self.last.lock();
        if let Some((at, overview)) = &*last
            && at.elapsed() < FRESH
        {
            return overview.clone();
        }
        let overview: Arc<str> =
            serde_json::to_string(&Overview::of(&self.status)).unwrap_or_default().into();
        *last = Some((kvplane_runtime::now(), overview.clone()));
        overview
    }
}

impl Overview {
    fn of(page: &StatusPage) -> Self {
        let mut seen = PlaneSeen::looked_at_now("this plane".to_owned());
        seen.status = serde_json::to_value(page.read(None, Some(MAX_ENGINES))).unwrap_or_default();
        let engines = page.plane().engines();
        let described: Vec<_> = engines.iter().map(|engine| status::described(engine)).collect();
        seen.engines = json!({ "engines": described });
        Self {
            problems: grouped(judge_plane(&seen)),
            queries: page.queries(),
            duplication: Duplication::of(page.plane()),
        }
    }
}

/// One problem for each code and remedy; errors first, then what most have.
fn grouped(findings: Vec<Finding>) -> Vec<Problem> {
    let mut groups: BTreeMap<(std::cmp::Reverse<Severity>, &'static str, String), Vec<Finding>> =
        BTreeMap::new();
    for finding in findings {
        let subject = finding.subject.split('/').next().unwrap_or_default();
        // A remedy may name the engine.
        let remedy = finding.todo.replace(subject, "");
        let key = (std::cmp::Reverse(finding.severity), finding.code.as_str(), remedy);
        groups.entry(key).or_default().push(finding);
    }
    let problem = |findings: Vec<Finding>| {
        let first = findings.first()?;
        Some(Problem {
            code: first.code.as_str(),
            severity: first.severity.as_str(),
            seen: first.seen.clone(),
            why: first.why,
            todo: first.todo.clone(),
            count: findings.len(),
            subjects: findings.iter().take(NAMED).map(|finding| finding.subject.clone()).collect(),
        })
    };
    groups.into_values().filter_map(problem).collect()
}

#[cfg(test)]
mod tests {
    use kvplane_doctor::Code;

    use super::*;

    #[test]
    fn findings_with_one_remedy_are_one_problem_and_errors_come_first() {
        let finding =
            |code, severity, subject: &str, todo: String| Finding::new(code, severity, subject, "seen", todo);
        let mut findings = vec![finding(Code::ReplayAbsent, Severity::Warning, "w/0", "configure".into())];
        for engine in 0..30 {
            let (subject, todo) = (format!("e{engine}/0"), format!("look at e{engine}"));
            findings.push(finding(Code::EndpointUnreachable, Severity::Error, &subject, todo));
        }
        let problems = grouped(findings);
        let shown: Vec<_> = problems.iter().map(|one| (one.code, one.count, one.subjects.len())).collect();
        assert_eq!(shown, [("endpoint_unreachable", 30, NAMED), ("replay_absent", 1, 1)]);
    }
}
