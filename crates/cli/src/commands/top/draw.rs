//! The screen of `kvplane top`.

use kvplane_doctor::Severity;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table};

use super::app::{App, Look, name};
use crate::args::TopSort;
use crate::commands::page::harmless;
use crate::commands::status::fleet::Stream;
use crate::commands::status::view::{grouped, seconds};

/// The narrowest and lowest screen that says anything.
const SMALLEST: (u16, u16) = (40, 8);
/// Columns from which on more is shown of a stream.
const WIDE: u16 = 110;
/// Problems that are listed.
const PROBLEMS_MAX: usize = 3;

pub(super) fn screen(frame: &mut Frame<'_>, app: &mut App) {
    let area = frame.area();
    if (area.width, area.height) < SMALLEST || area.height < SMALLEST.1 {
        let words = format!("terminal too small: {}x{} needed", SMALLEST.0, SMALLEST.1);
        frame.render_widget(Paragraph::new(words), area);
        return;
    }
    let problems = app.look.as_ref().map_or(0, |look| look.problems.len().min(PROBLEMS_MAX)) as u16;
    let parts =
        [Constraint::Length(3), Constraint::Length(problems), Constraint::Min(2), Constraint::Length(1)];
    let [head, open, table, foot] = Layout::vertical(parts).areas(area);
    if let Some(look) = app.look.clone() {
        frame.render_widget(Paragraph::new(summary(app, &look)), head);
        frame.render_widget(Paragraph::new(problem_lines(app, &look)), open);
    }
    streams(frame, app, table);
    frame.render_widget(Paragraph::new(footer(app)), foot);
}

fn colour(app: &App, colour: Color) -> Style {
    if app.coloured { Style::new().fg(colour) } else { Style::new() }
}

fn summary(app: &App, look: &Look) -> Vec<Line<'static>> {
    let fleet = &look.fleet;
    let (word, style) = match (fleet.streams.is_empty(), fleet.troubled()) {
        (true, _) => {
            ("no engines: add one with `kvplane engines add`".to_owned(), colour(app, Color::Yellow))
        }
        (_, 0) => ("healthy".to_owned(), colour(app, Color::Green)),
        (_, some) => {
            (format!("{some} of {} streams need attention", fleet.streams.len()), colour(app, Color::Red))
        }
    };
    let engines = format!("  {} engines, {} streams", fleet.engines, fleet.streams.len());
    let paused = if app.paused { "  PAUSED" } else { "" };
    let first = Line::from(vec![
        Span::styled("kvplane top  ", Style::new().add_modifier(Modifier::BOLD)),
        Span::styled(word, style.add_modifier(Modifier::BOLD)),
        Span::raw(engines),
        Span::raw(paused),
    ]);
    let asked = fleet.value.as_ref().filter(|asked| asked.questions > 0);
    let hits = asked.map_or_else(
        || "no questions yet".to_owned(),
        |asked| {
            let share = asked.tokens_found as f64 / asked.tokens_asked.max(1) as f64 * 100.0;
            format!("hit rate {share:.1} % of {} tokens", grouped(asked.tokens_asked))
        },
    );
    let full = fleet.fullness().filter(|(_, capacity)| *capacity > 0);
    let full = full.map_or_else(String::new, |(used, capacity)| {
        format!("  caches {:.0} % full", used as f64 / capacity as f64 * 100.0)
    });
    let second = match &app.error {
        Some(error) => Line::styled(format!("refresh failed: {}", harmless(error)), colour(app, Color::Red)),
        None => Line::raw(format!("{hits}{full}")),
    };
    vec![first, second, Line::raw("")]
}

fn problem_lines(app: &App, look: &Look) -> Vec<Line<'static>> {
    let line = |problem: &kvplane_doctor::Finding| {
        let style = match problem.severity {
            Severity::Error => colour(app, Color::Red),
            _ => colour(app, Color::Yellow),
        };
        let text = format!(
            "{} {}: {} -> {}",
            problem.code,
            harmless(&problem.subject),
            harmless(&problem.seen),
            harmless(&problem.todo)
        );
        Line::styled(text, style)
    };
    look.problems.iter().take(PROBLEMS_MAX).map(line).collect()
}

fn streams(frame: &mut Frame<'_>, app: &mut App, area: Rect) {
    let rates = app.rates();
    let rates = rates.into_iter().map(|((engine, rank), rate)| ((engine.to_owned(), rank), rate));
    let rates: std::collections::HashMap<_, _> = rates.collect();
    let borrowed = rates.iter().map(|((engine, rank), rate)| ((engine.as_str(), *rank), *rate)).collect();
    let count = app.rows(&borrowed).len();
    let room = usize::from(area.height.saturating_sub(1));
    app.offset = app.offset.min(count.saturating_sub(room));
    let rows = app.rows(&borrowed);
    let wide = area.width >= WIDE;
    let titled = |sort: TopSort, title: &'static str| {
        let style = Style::new().add_modifier(Modifier::BOLD);
        let sorted = app.sort == sort;
        Span::styled(title, if sorted { style.add_modifier(Modifier::UNDERLINED) } else { style })
    };
    let mut heading = vec![
        titled(TopSort::Engine, "ENGINE"),
        Span::raw("RK"),
        titled(TopSort::Trouble, "STATE"),
        Span::raw("TRUST"),
        titled(TopSort::Full, "FULL"),
        titled(TopSort::Blocks, "BLOCKS"),
        titled(TopSort::Rate, "EV/S"),
        Span::raw("IDLE"),
    ];
    let mut widths = vec![
        Constraint::Min(14),
        Constraint::Length(3),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(5),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(6),
    ];
    if wide {
        heading.extend(["MODEL", "REASON", "GAPS", "RESTARTS"].map(Span::raw));
        widths.extend([18, 16, 6, 8].map(Constraint::Length));
    }
    let name_room = usize::from(area.width).saturating_sub(if wide { 118 } else { 64 }).max(14);
    let shown = rows.iter().skip(app.offset).take(room).map(|stream| {
        let rate = borrowed.get(&name(stream)).map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
        let style = match stream.severity() {
            0 => Style::new(),
            1 => colour(app, Color::Yellow),
            _ => colour(app, Color::Red),
        };
        Row::new(cells(stream, rate, name_room, wide)).style(style)
    });
    let table = Table::new(shown, widths).header(Row::new(heading)).column_spacing(1);
    frame.render_widget(table, area);
}

fn cells(stream: &Stream, rate: String, name_room: usize, wide: bool) -> Vec<String> {
    let mut cells = vec![
        middle(&harmless(&stream.engine), name_room),
        stream.rank.to_string(),
        stream.continuity.clone(),
        stream.trust.clone(),
        stream.full_percent().map_or_else(|| "-".to_owned(), |full| format!("{full:.0}%")),
        grouped(stream.blocks),
        rate,
        stream.idle_seconds.map_or_else(|| "-".to_owned(), seconds),
    ];
    if wide {
        cells.extend([
            middle(&harmless(&stream.model), 18),
            stream.reason.clone().unwrap_or_else(|| "-".to_owned()),
            stream.gaps.to_string(),
            stream.restarts.to_string(),
        ]);
    }
    cells.iter().map(|cell| harmless(cell).into_owned()).collect()
}

/// A text in at most this many characters: the middle is left out, because names differ at their ends.
pub(super) fn middle(text: &str, room: usize) -> String {
    let count = text.chars().count();
    if count <= room || room < 3 {
        return text.chars().take(room.max(1)).collect();
    }
    let tail = (room - 1) / 2;
    let head = room - 1 - tail;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(count - tail).collect();
    format!("{start}…{end}")
}

fn footer(app: &App) -> Line<'static> {
    if app.filter.typing {
        return Line::raw(format!(
            "filter: {}█  (Enter keeps it, Esc clears it)",
            harmless(&app.filter.text)
        ));
    }
    let filter = if app.filter.text.is_empty() {
        String::new()
    } else {
        format!("  filter: {}", harmless(&app.filter.text))
    };
    Line::raw(format!("q quit  s sort  r reverse  / filter  p pause  arrows scroll{filter}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyModifiers};
    use serde_json::json;

    use super::*;
    use crate::commands::status::fleet::Fleet;
    use crate::commands::top::app::Next;

    fn look(count: usize, events: u64) -> Arc<Look> {
        let engine = |at: usize| {
            let continuity = if at == 37 { "down" } else { "live" };
            json!({"id": format!("engine-with-a-rather-long-name-{at:03}"), "kind": "vllm", "model": "m", "ranks": [
                {"rank": 0, "continuity": continuity, "trust": "exact", "blocks": {"device": at}, "used_blocks": at, "capacity_blocks": 100,
                 "counters": {"events": events * at as u64}}]})
        };
        let engines: Vec<_> = (0..count).map(engine).collect();
        let queries = json!({"questions": 2, "tokens_asked": 1000, "tokens_found": 887});
        let fleet = Fleet::of(&json!({ "engines": engines, "queries": queries }));
        Arc::new(Look { at: kvplane_runtime::now(), fleet, problems: Vec::new() })
    }

    fn shown(app: &mut App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen(frame, app)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_sick_stream_is_first_on_every_size_of_screen() {
        let mut app = App::new(TopSort::Trouble, String::new(), false);
        app.take(Ok(look(50, 0)));
        for (width, height) in [(80, 24), (140, 40), (60, 10)] {
            let page = shown(&mut app, width, height);
            let lines: Vec<&str> = page.lines().collect();
            assert!(lines[0].contains("1 of 50 streams need attention"), "{page}");
            assert!(lines[1].contains("88.7 %"), "{page}");
            assert!(lines[4].contains("037") && lines[4].contains("down"), "{page}");
            assert!(lines[usize::from(height) - 1].contains("q quit"), "{page}");
        }
        assert!(shown(&mut app, 20, 4).contains("too small"));
    }

    #[test]
    fn keys_sort_filter_scroll_and_quit() {
        let mut app = App::new(TopSort::Trouble, String::new(), false);
        app.take(Ok(look(50, 0)));
        app.take(Ok(look(50, 10)));
        let press = |app: &mut App, key| app.press(key, KeyModifiers::NONE);
        for _ in 0..2 {
            press(&mut app, KeyCode::Char('s'));
        }
        assert!(shown(&mut app, 80, 24).lines().nth(4).unwrap().contains("049"), "most blocks first");
        press(&mut app, KeyCode::Char('r'));
        assert!(shown(&mut app, 80, 24).lines().nth(4).unwrap().contains("000"));
        press(&mut app, KeyCode::End);
        assert!(shown(&mut app, 80, 24).contains("049"));
        press(&mut app, KeyCode::Char('/'));
        for c in "q-012".chars() {
            press(&mut app, KeyCode::Char(c));
        }
        press(&mut app, KeyCode::Backspace);
        assert!(app.filter.typing && app.filter.text == "q-01");
        press(&mut app, KeyCode::Esc);
        assert!(!app.filter.typing && app.filter.text.is_empty());
        assert_eq!(press(&mut app, KeyCode::Char('q')), Next::Quit);
        assert_eq!(app.press(KeyCode::Char('c'), KeyModifiers::CONTROL), Next::Quit);
    }

    #[test]
    fn a_refresh_that_fails_keeps_the_last_figures() {
        let mut app = App::new(TopSort::Trouble, String::new(), false);
        app.take(Ok(look(3, 0)));
        app.take(Err("no kvplane answers".to_owned()));
        let page = shown(&mut app, 80, 24);
        assert!(page.contains("refresh failed: no kvplane answers") && page.contains("001 "), "{page}");
    }

    #[test]
    fn names_lose_their_middle() {
        assert_eq!(middle("short", 10), "short");
        assert_eq!(middle("vllm-prod-eu-west-0042", 11), "vllm-…-0042");
    }
}
