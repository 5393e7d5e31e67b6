//! An operation under way, for people: a table that is drawn again and again, or lines.
//!
//! It is on standard error: standard output is for what came of it.

use std::io::Write as _;
use std::time::{Duration, Instant};

use super::course::{Course, Rank, Standing};
use crate::commands::page::{aligned, harmless};

/// A fleet of this many ranks is shown whole. Of a larger one, at most this many ranks that are not fine.
const ROWS: usize = 16;
/// How often lines say how far it is.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// Shows an operation.
pub(super) struct View {
    live: bool,
    began: Instant,
    said: Instant,
    /// Lines on the screen that the next drawing replaces.
    drawn: usize,
}

impl View {
    /// `live` needs a terminal.
    pub(super) fn new(live: bool) -> Self {
        let now = kvplane_runtime::now();
        Self { live, began: now, said: now, drawn: 0 }
    }

    /// The plane has reported something: of a rank, if there is one.
    pub(super) fn changed(&mut self, course: &Course, rank: Option<usize>) {
        let Some(rank) = rank.filter(|_| !self.live).map(|place| &course.ranks[place]) else { return };
        let standing = rank.standing();
        if standing.is_over() && (course.ranks.len() <= ROWS || !standing.is_fine()) {
            let seconds = self.began.elapsed().as_secs_f64();
            let line = format!("{seconds:>6.1} s  {}  {}  {}", rank.name(), standing.name(), remark(rank));
            write(&format!("{}\n", harmless(&line)));
        }
    }

    /// Some time has passed.
    pub(super) fn tick(&mut self, course: &Course) {
        let elapsed = self.began.elapsed();
        if self.live {
            let frame = frame(course, elapsed);
            let lines = frame.lines().count();
            // Lines that are too long are cut by the terminal: wrapped, they would be more than are counted.
            write(&format!("{}\x1b[?7l{frame}\x1b[?7h", self.back()));
            self.drawn = lines;
        } else if self.said.elapsed() >= SAY_EVERY {
            self.said = kvplane_runtime::now();
            write(&format!("{}\n", headline(course, elapsed)));
        }
    }

    /// Nothing more comes: the screen is for the result.
    pub(super) fn end(&mut self) {
        write(&self.back());
        self.drawn = 0;
    }

    /// To where the last drawing began, and nothing below it.
    fn back(&self) -> String {
        if self.drawn == 0 { String::new() } else { format!("\x1b[{}A\x1b[J", self.drawn) }
    }
}

fn write(text: &str) {
    // Nobody who looks is no reason to stop.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// One line: the operation, and how many ranks stand how.
pub(super) fn headline(course: &Course, elapsed: Duration) -> String {
    let of = format!("{} {}", course.verb, course.operation);
    format!(
        "{}: {} ranks, {} servers, {:.1} s: {}",
        harmless(&of),
        course.ranks.len(),
        course.backends,
        elapsed.as_secs_f64(),
        course.counted()
    )
}

/// The live table.
fn frame(course: &Course, elapsed: Duration) -> String {
    if course.verb.is_empty() {
        return "waiting for the plan\n".to_owned();
    }
    let whole = course.ranks.len() <= ROWS;
    let mut shown: Vec<&Rank> = course.ranks.iter().filter(|rank| whole || is_watched(rank)).collect();
    if !whole {
        shown.sort_by_key(|rank| urgency(rank.standing()));
    }
    let more = shown.len().saturating_sub(ROWS);
    shown.truncate(ROWS);
    let rows: Vec<_> = shown.iter().map(|rank| [rank.name(), rank.standing().name(), remark(rank)]).collect();
    let mut text = format!("{}\n", headline(course, elapsed));
    for (rank, line) in shown.iter().zip(aligned(&rows).lines()) {
        text.push_str(&format!("  {}{line}\x1b[0m\n", colour(rank.standing())));
    }
    if more > 0 {
        text.push_str(&format!("  … and {more} more\n"));
    }
    text
}

/// Whether somebody who watches many ranks wants to see this one.
fn is_watched(rank: &Rank) -> bool {
    rank.report.is_some() && !rank.standing().is_fine()
}

/// What went wrong comes first, then what takes longest.
fn urgency(standing: Standing) -> u8 {
    match standing {
        Standing::Over(_) => 0,
        Standing::Proving => 1,
        Standing::Asking => 2,
        Standing::Waiting => 3,
    }
}

fn remark(rank: &Rank) -> String {
    match &rank.report {
        Some(report) if !report.why.is_empty() => report.why.clone(),
        Some(report) if !report.asked.is_empty() => report.asked.clone(),
        Some(_) => String::new(),
        None => rank.planned.call.clone(),
    }
}

fn colour(standing: Standing) -> &'static str {
    match standing {
        Standing::Over(_) if standing.is_fine() => "\x1b[32m",
        Standing::Over(_) => "\x1b[31m",
        Standing::Proving => "\x1b[33m",
        Standing::Asking | Standing::Waiting => "",
    }
}

#[cfg(test)]
mod tests {
    use kvplane_proto::kvplane::v1::progress::Item;
    use kvplane_proto::kvplane::v1::{Phase, Plan, PlannedRank, Progress, RankReport, Verdict};

    use super::*;

    /// A flush of this many engines, before anything was reported of them.
    fn planned(engines: u32) -> Course {
        let call = "POST /flush_cache".to_owned();
        let rank = |number| PlannedRank {
            engine: format!("e{number}"),
            call: call.clone(),
            ..PlannedRank::default()
        };
        let plan = Plan {
            operation: "op-1".to_owned(),
            verb: "flush".to_owned(),
            ranks: (0..engines).map(rank).collect(),
            backends: engines,
        };
        let mut course = Course::default();
        course.take(Progress { item: Some(Item::Plan(plan)) }).unwrap();
        course
    }

    /// A report of one of them.
    fn reported(engine: u32, phase: Phase, verdict: Verdict, why: &str) -> Progress {
        let (engine, why) = (format!("e{engine}"), why.to_owned());
        let (phase, verdict) = (phase.into(), verdict.into());
        Progress {
            item: Some(Item::Rank(RankReport { engine, phase, verdict, why, ..RankReport::default() })),
        }
    }

    fn lines(course: &Course) -> Vec<String> {
        let plain = frame(course, Duration::from_millis(1500));
        ["\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[0m"]
            .iter()
            .fold(plain, |text, code| text.replace(code, ""))
            .lines()
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn a_small_fleet_is_shown_whole() {
        let mut course = planned(3);
        assert_eq!(lines(&Course::default()), ["waiting for the plan"]);
        course.take(reported(0, Phase::Over, Verdict::Proven, "its stream shows a clear")).unwrap();
        course.take(reported(2, Phase::Proving, Verdict::Unspecified, "")).unwrap();
        assert_eq!(
            lines(&course),
            [
                "flush op-1: 3 ranks, 3 servers, 1.5 s: 1 proven, 1 proving, 1 waiting",
                "  e0/0  proven   its stream shows a clear",
                "  e1/0  waiting  POST /flush_cache",
                "  e2/0  proving",
            ]
        );
    }

    #[test]
    fn of_a_large_fleet_only_what_is_not_fine_is_shown() {
        let mut course = planned(1000);
        for engine in 0..900 {
            course.take(reported(engine, Phase::Over, Verdict::Proven, "")).unwrap();
        }
        for engine in 900..940 {
            course.take(reported(engine, Phase::Asking, Verdict::Unspecified, "")).unwrap();
        }
        course.take(reported(999, Phase::Over, Verdict::Refused, "not idle")).unwrap();
        let lines = lines(&course);
        assert_eq!(lines.len(), ROWS + 2);
        assert!(lines[0].ends_with("900 proven, 1 refused, 40 asking, 59 waiting"), "{}", lines[0]);
        assert_eq!(lines[1], "  e999/0  refused  not idle");
        assert!(lines[2].starts_with("  e900/0  asking"), "{}", lines[2]);
        assert_eq!(lines[ROWS + 1], format!("  … and {} more", 41 - ROWS));
    }
}
