//! The screen, for people and for programs.

use kvplane_doctor::{Finding, Severity};
use serde_json::{Value, json};

use super::fleet::{Fleet, Stream};
use crate::commands::page::{aligned, harmless};

/// Problems on one screen; the rest is counted.
const PROBLEMS_MAX: usize = 5;
/// Streams that are always listed, however low the terminal is.
const STREAMS_MIN: usize = 5;

/// One document.
pub(super) fn json(fleet: &Fleet, problems: &[Finding]) -> Value {
    json!({
        "engines": fleet.engines,
        "streams": fleet.streams,
        "queries": fleet.value,
        "problems": problems,
        "healthy": fleet.troubled() == 0 && problems.iter().all(|problem| problem.severity != Severity::Error),
    })
}

/// The screen, with as many streams as fit into `height` lines.
pub(super) fn page(fleet: &Fleet, problems: &[Finding], wide: bool, height: usize, coloured: bool) -> String {
    let mut page = summary(fleet, problems, coloured);
    // Beside the problems: one line each for what is left out of both lists, the gap, the heading and the
    // prompt.
    let lines = height.saturating_sub(page.lines().count() + STREAMS_MIN + 5);
    let listed = if wide { problems.len() } else { (lines / 2).clamp(1, PROBLEMS_MAX) };
    for problem in problems.iter().take(listed) {
        page.push_str(&paragraph(problem, coloured));
    }
    if problems.len() > listed {
        page.push_str(&format!("… and {} more: kvplane doctor\n", problems.len() - listed));
    }
    if !problems.is_empty() {
        page.push('\n');
    }
    // One line for the heading, one for the number of streams left out, one for the prompt.
    let room = height.saturating_sub(page.lines().count() + 3).max(STREAMS_MIN);
    page.push_str(&table(fleet, wide, room));
    if fleet.streams.len() > room {
        page.push_str(&format!("… and {} more: kvplane status -o wide\n", fleet.streams.len() - room));
    }
    page
}

/// The page with every line cut to the width of the terminal: a line that wraps would push the first one off
/// the screen.
pub(super) fn cut(page: &str, width: usize) -> String {
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        cut_line(line, width, &mut text);
        text.push('\n');
    }
    text
}

/// Colours take no room, and are always switched off again.
fn cut_line(line: &str, width: usize, text: &mut String) {
    let (mut column, mut in_colour) = (0, false);
    let room = if seen_width(line) > width { width.saturating_sub(1) } else { width };
    for c in line.chars() {
        if in_colour || c == '\x1b' {
            in_colour = c != 'm';
            text.push(c);
            continue;
        }
        if column < room {
            text.push(c);
        } else if column == room {
            text.push('…');
        }
        column += 1;
    }
}

fn seen_width(line: &str) -> usize {
    let mut in_colour = false;
    line.chars()
        .filter(|c| {
            let hidden = in_colour || *c == '\x1b';
            in_colour = hidden && *c != 'm';
            !hidden
        })
        .count()
}

fn summary(fleet: &Fleet, problems: &[Finding], coloured: bool) -> String {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    let (word, colour) = match (fleet.streams.is_empty(), fleet.troubled(), errors) {
        (true, ..) => ("no engines: add one with `kvplane engines add`", "\x1b[33m"),
        (_, 0, 0) => ("healthy: every stream is live and exact", "\x1b[32m"),
        (_, 0, _) => ("errors: see below", "\x1b[31m"),
        _ => ("degraded", "\x1b[31m"),
    };
    let (on, off) = if coloured { (colour, "\x1b[0m") } else { ("", "") };
    let troubled = match fleet.troubled() {
        0 => String::new(),
        some => format!(": {some} of {} streams need attention", fleet.streams.len()),
    };
    let mut text = format!("Fleet      {on}{word}{off}{troubled}\n");
    let listed = |counts: Vec<(String, usize)>| {
        let counts: Vec<String> =
            counts.iter().map(|(name, count)| format!("{count} {}", harmless(name))).collect();
        counts.join(", ")
    };
    let (continuity, trust) =
        (fleet.count_by(|stream| &stream.continuity), fleet.count_by(|stream| &stream.trust));
    text.push_str(&format!("Streams    {} of {} engines", fleet.streams.len(), fleet.engines));
    if !fleet.streams.is_empty() {
        text.push_str(&format!(": {}; {}", listed(continuity), listed(trust)));
    }
    let blocks: u64 = fleet.streams.iter().map(|stream| stream.blocks).sum();
    text.push_str(&format!("\nBlocks     {}{}\n", grouped(blocks), cache(fleet)));
    if let Some(asked) = fleet.value.as_ref().filter(|asked| asked.questions > 0) {
        let share = asked.tokens_found as f64 / asked.tokens_asked.max(1) as f64 * 100.0;
        text.push_str(&format!(
            "Queries    {}: {share:.1} % of {} tokens cached on the best engine\n",
            grouped(asked.questions),
            grouped(asked.tokens_asked)
        ));
        if let Some(top) = asked.top_prefixes.first() {
            text.push_str(&format!(
                "Top prefix {} ({} tokens): {} tokens found\n",
                harmless(&top.prefix),
                grouped(top.tokens),
                grouped(top.tokens_found)
            ));
        }
    }
    text.push('\n');
    text
}

/// How full the caches are, and how often engines hold the same block.
fn cache(fleet: &Fleet) -> String {
    let mut text = String::new();
    if let Some((used, capacity)) = fleet.fullness().filter(|(_, capacity)| *capacity > 0) {
        let share = used as f64 / capacity as f64 * 100.0;
        text.push_str(&format!("; device caches {share:.0} % full"));
    }
    if let Some(held) = fleet.duplication.as_ref().filter(|held| held.distinct_blocks > 0) {
        let copies = held.blocks as f64 / held.distinct_blocks as f64;
        text.push_str(&format!("; {copies:.2} copies of a block on average"));
    }
    text
}

/// A problem and its remedy, in two lines.
fn paragraph(problem: &Finding, coloured: bool) -> String {
    let (on, off) = match (coloured, problem.severity) {
        (false, _) => ("", ""),
        (true, Severity::Error) => ("\x1b[31m", "\x1b[0m"),
        (true, _) => ("\x1b[33m", "\x1b[0m"),
    };
    format!(
        "{on}{:<9}{off}{}  {}: {}\n         do: {}\n",
        problem.severity.as_str(),
        problem.code,
        harmless(&problem.subject),
        harmless(&problem.seen),
        harmless(&problem.todo)
    )
}

fn table(fleet: &Fleet, wide: bool, room: usize) -> String {
    if fleet.streams.is_empty() {
        return String::new();
    }
    let mut heading =
        vec!["ENGINE", "RANK", "MODEL", "STATE", "TRUST", "AGE", "FULL", "BLOCKS", "LAST EVENT"];
    if wide {
        heading.extend(["KIND", "TIERS", "SEQUENCE", "GAPS", "RESTARTS"]);
    }
    let mut rows: Vec<Vec<String>> = vec![heading.into_iter().map(str::to_owned).collect()];
    rows.extend(fleet.streams.iter().take(room).map(|stream| row(stream, wide)));
    aligned(&rows)
}

fn row(stream: &Stream, wide: bool) -> Vec<String> {
    let trust = match &stream.reason {
        Some(reason) => format!("{} ({reason})", stream.trust),
        None => stream.trust.clone(),
    };
    let mut row = vec![
        stream.engine.clone(),
        stream.rank.to_string(),
        or_dash(&stream.model),
        stream.continuity.clone(),
        trust,
        stream.age_ms.map_or_else(|| "-".to_owned(), |age| seconds(age as f64 / 1000.0)),
        stream.full_percent().map_or_else(|| "-".to_owned(), |full| format!("{full:.0}%")),
        grouped(stream.blocks),
        stream.idle_seconds.map_or_else(|| "-".to_owned(), |idle| format!("{} ago", seconds(idle))),
    ];
    if wide {
        let tiers: Vec<String> =
            stream.tiers.iter().map(|(tier, blocks)| format!("{tier} {}", grouped(*blocks))).collect();
        row.extend([
            stream.kind.clone(),
            or_dash(&tiers.join(", ")),
            stream.last_sequence.map_or_else(|| "-".to_owned(), |last| last.to_string()),
            stream.gaps.to_string(),
            stream.restarts.to_string(),
        ]);
    }
    row
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

/// A duration in the unit in which people say it.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1}s"),
        s if s < 120.0 => format!("{s:.0}s"),
        s if s < 7_200.0 => format!("{:.0}m", s / 60.0),
        s => format!("{:.0}h", s / 3_600.0),
    }
}

/// A number with its thousands apart.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use kvplane_doctor::Code;

    use super::*;
    use crate::commands::status::fleet::Queries;

    fn stream(engine: &str, continuity: &str) -> Stream {
        Stream {
            engine: engine.to_owned(),
            continuity: continuity.to_owned(),
            trust: "exact".to_owned(),
            blocks: 1_234,
            age_ms: Some(200),
            ..Stream::default()
        }
    }

    fn problem() -> Finding {
        Finding::new(
            Code::Silent,
            Severity::Warning,
            "a\u{1b}[2J/0",
            "nothing came".to_owned(),
            "send a prompt",
        )
    }

    #[test]
    fn a_healthy_fleet_says_so() {
        let fleet = Fleet {
            engines: 1,
            streams: vec![stream("a", "live")],
            value: Some(Queries {
                questions: 10,
                tokens_asked: 1_000,
                tokens_found: 887,
                ..Queries::default()
            }),
            ..Fleet::default()
        };
        let page = page(&fleet, &[], false, 24, false);
        assert!(page.starts_with("Fleet      healthy"), "{page}");
        assert!(page.contains("Queries    10: 88.7 % of 1,000 tokens"), "{page}");
        assert!(page.contains("a       0     -      live   exact  0.2s  -     1,234   -"), "{page}");
        assert_eq!(json(&fleet, &[])["healthy"], true);
    }

    #[test]
    fn problems_come_with_their_remedy_and_obey_no_engine() {
        let fleet =
            Fleet { engines: 1, streams: vec![stream("a\u{1b}]0;x\u{7}", "down")], ..Fleet::default() };
        let page = page(&fleet, &[problem()], false, 24, false);
        assert!(page.contains("1 of 1 streams need attention"), "{page}");
        assert!(page.contains("silent") && page.contains("do: send a prompt"), "{page}");
        assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
        assert_eq!(json(&fleet, &[problem()])["healthy"], false);
    }

    #[test]
    fn a_screen_is_no_longer_than_the_terminal() {
        let streams = (0..500).map(|at| stream(&format!("e{at}"), "live")).collect();
        let fleet = Fleet { engines: 500, streams, ..Fleet::default() };
        let page = page(&fleet, &[], false, 24, false);
        assert!(page.lines().count() < 24 && page.contains("more: kvplane status -o wide"), "{page}");
        let all = super::page(&fleet, &[], true, usize::MAX, false);
        assert!(all.lines().count() > 500);
    }

    #[test]
    fn problems_leave_room_for_the_first_line() {
        let streams = (0..500).map(|at| stream(&format!("e{at}"), "down")).collect();
        let fleet = Fleet { engines: 500, streams, ..Fleet::default() };
        let page = page(&fleet, &vec![problem(); 9], false, 24, false);
        assert!(page.lines().count() < 24 && page.contains("more: kvplane doctor"), "{page}");
    }

    #[test]
    fn long_lines_are_cut_and_colours_end() {
        let page = "\x1b[31merror\x1b[0m 12345\nshort\nexactly ten\n";
        assert_eq!(cut(page, 10), "\x1b[31merror\x1b[0m 123…\nshort\nexactly t…\n");
        assert_eq!(cut(page, 11), page);
        assert_eq!(cut(page, usize::MAX), page);
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(
            [grouped(0), grouped(999), grouped(1_000), grouped(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [seconds(0.2), seconds(61.0), seconds(300.0), seconds(8_000.0)],
            ["0.2s", "61s", "5m", "2h"]
        );
    }
}
