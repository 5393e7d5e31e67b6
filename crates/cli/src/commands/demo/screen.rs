//! The demo on a whole terminal: three fleets under the same load, on one scale.
//!
//! A thread of its own draws and reads keys, so that resizes and `q` work while the tour waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use parking_lot::Mutex;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Wrap};
use tokio_util::sync::CancellationToken;

use super::routing::Ledger;
use super::view::Voice;

/// Time between two frames.
const FRAME: Duration = Duration::from_millis(50);
/// Lines of the story that are kept.
const KEPT: usize = 100;
/// The smallest screen that shows the three fleets.
const SMALLEST: (u16, u16) = (60, 16);
/// Columns before a bar: the name and the share.
const BEFORE_BAR: usize = 36;

/// What is shown.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) dashboard: String,
    pub(super) title: String,
    pub(super) survived: usize,
    pub(super) steps: usize,
    pub(super) ledger: Ledger,
    /// Blocks that the plain consumer believes in and that are gone.
    pub(super) phantoms: usize,
    lines: VecDeque<(Option<Voice>, String)>,
}

impl Model {
    pub(super) fn add(&mut self, voice: Option<Voice>, words: &str) {
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back((voice, words.to_owned()));
    }
}

/// The screen, until it is closed.
pub(super) struct Screen {
    pub(super) model: Arc<Mutex<Model>>,
    ends: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Screen {
    /// Takes over the terminal. `q` and Ctrl-C cancel `stop`.
    pub(super) fn open(stop: CancellationToken, coloured: bool) -> anyhow::Result<Self> {
        let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
        let (model, ends) = (Arc::<Mutex<Model>>::default(), CancellationToken::new());
        let (shown, ended, begun) = (model.clone(), ends.clone(), kvplane_runtime::now());
        let thread = std::thread::spawn(move || {
            while !ended.is_cancelled() {
                let drawn = terminal.draw(|frame| draw(frame, &shown.lock(), begun, coloured));
                // A terminal that is gone has seen enough.
                if drawn.is_err() || asked_to_stop() {
                    stop.cancel();
                }
            }
        });
        Ok(Self { model, ends, thread: Some(thread) })
    }

    /// Gives the terminal back.
    pub(super) fn close(&mut self) {
        self.ends.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
            ratatui::restore();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
    }
}

/// Waits for a key for the time of a frame.
fn asked_to_stop() -> bool {
    if !event::poll(FRAME).unwrap_or(false) {
        return false;
    }
    match event::read() {
        Ok(Event::Key(key)) => {
            key.code == KeyCode::Char('q')
                || key.code == KeyCode::Esc
                || (key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL))
        }
        _ => false,
    }
}

fn draw(frame: &mut Frame<'_>, model: &Model, begun: Instant, coloured: bool) {
    let area = frame.area();
    let paint = |colour| if coloured { Style::new().fg(colour) } else { Style::new() };
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let words = format!(
            "{:.1} % cached (round robin {:.1} %). Enlarge the terminal to {}x{}, or use --plain. q quits.",
            model.ledger.routed.share * 100.0,
            model.ledger.round_robin.share * 100.0,
            SMALLEST.0,
            SMALLEST.1
        );
        frame.render_widget(Paragraph::new(words).wrap(Wrap { trim: true }), area);
        return;
    }
    let parts = [Constraint::Length(1), Constraint::Length(9), Constraint::Min(4), Constraint::Length(1)];
    let [head, fleets, story, foot] = Layout::vertical(parts).areas(area);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let seconds = begun.elapsed().as_secs();
    let title = Line::from(vec![
        Span::styled("kvplane demo  ", bold),
        Span::styled(model.title.clone(), bold),
        Span::raw(format!("  {} of {} faults survived  {seconds} s", model.survived, model.steps)),
    ]);
    frame.render_widget(Paragraph::new(title), head);
    let block = Block::bordered().title(format!(" {} requests to each fleet ", model.ledger.requests));
    let bars = bars(model, usize::from(block.inner(fleets).width), &paint);
    frame.render_widget(Paragraph::new(bars).block(block), fleets);
    frame.render_widget(Paragraph::new(lines(model, story, &paint)), story);
    frame.render_widget(Paragraph::new(format!("q quit   dashboard {}", model.dashboard)), foot);
}

/// A bar for each fleet, one below the other on one scale, and what its router gets wrong.
fn bars(model: &Model, width: usize, paint: &impl Fn(Color) -> Style) -> Vec<Line<'static>> {
    let ledger = &model.ledger;
    // A step is survived when what kvplane holds was compared with every engine, block by block.
    let checked = if model.survived > 0 { "0 phantom blocks" } else { "not compared yet" };
    let wrong = format!("{} phantom blocks, {} false hits", model.phantoms, ledger.plain_false_hits);
    let alarm = if model.phantoms > 0 { paint(Color::Red) } else { Style::new() };
    let fleets = [
        ("round robin", ledger.round_robin.share, Color::Gray, "no cache knowledge".to_owned(), Style::new()),
        ("plain event consumer", ledger.plain.share, Color::Yellow, wrong, alarm),
        (
            "kvplane",
            ledger.routed.share,
            Color::Green,
            format!("{checked}, {} false hits", ledger.false_hits),
            Style::new(),
        ),
    ];
    let room = width.saturating_sub(BEFORE_BAR).max(1);
    let mut lines = Vec::with_capacity(2 * fleets.len() + 1);
    for (name, share, colour, note, style) in fleets {
        // Shares are from 0 to 1, and terminals narrower than 65,536.
        let full = ((share.clamp(0.0, 1.0) * room as f64).round() as usize).min(room);
        let head = format!("{name:<20}{:>6.1} % cached ", share * 100.0);
        lines.push(Line::from(vec![
            Span::styled(head, Style::new().add_modifier(Modifier::BOLD)),
            Span::styled("█".repeat(full), paint(colour)),
            Span::styled("░".repeat(room - full), Style::new().add_modifier(Modifier::DIM)),
        ]));
        lines.push(Line::from(vec![Span::raw(" ".repeat(BEFORE_BAR)), Span::styled(note, style)]));
    }
    let middle = room.saturating_sub(4) / 2;
    let right = room.saturating_sub(middle + 4 + 5);
    let scale = format!(
        "{}0 %{}50 %{}100 %",
        " ".repeat(BEFORE_BAR),
        " ".repeat(middle.saturating_sub(3)),
        " ".repeat(right)
    );
    lines.push(Line::styled(scale, Style::new().add_modifier(Modifier::DIM)));
    lines
}

/// The end of the story, as much as fits.
fn lines<'m>(model: &'m Model, area: Rect, paint: &impl Fn(Color) -> Style) -> Vec<Line<'m>> {
    let width = usize::from(area.width).saturating_sub(10).max(20);
    let mut lines = Vec::new();
    for (voice, words) in &model.lines {
        let Some(voice) = voice else {
            lines.push(Line::raw(""));
            lines.push(Line::styled(words.as_str(), Style::new().add_modifier(Modifier::BOLD)));
            continue;
        };
        let style = match voice {
            Voice::Done => Style::new(),
            Voice::Plain => paint(Color::Yellow),
            Voice::Plane => paint(Color::Cyan),
            Voice::Checked => paint(Color::Green),
        };
        for (at, line) in super::view::wrapped(words, width).into_iter().enumerate() {
            let name = if at == 0 { voice.name() } else { "" };
            lines.push(Line::from(vec![Span::styled(format!("{name:<8} "), style), Span::raw(line)]));
        }
    }
    lines.split_off(lines.len().saturating_sub(usize::from(area.height)))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    #[test]
    fn three_fleets_are_compared_on_one_scale() {
        let mut model = Model { title: "Step 3: a crash".to_owned(), phantoms: 347, ..Model::default() };
        (model.ledger.routed.share, model.ledger.round_robin.share, model.ledger.plain.share) =
            (0.887, 0.658, 0.71);
        model.add(None, "Step 3: a crash");
        for _ in 0..40 {
            model.add(Some(Voice::Plane), &vec!["words"; 40].join(" "));
        }
        model.add(Some(Voice::Checked), "the last line");
        for (width, height) in [(80, 24), (140, 40), (60, 16)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(frame, &model, kvplane_runtime::now(), false)).unwrap();
            let page = terminal.backend().to_string();
            for words in [
                "88.7 % cached",
                "65.8 % cached",
                "71.0 % cached",
                "347 phantom blocks",
                "100 %",
                "the last line",
                "q quit",
            ] {
                assert!(page.contains(words), "{words} at {width}x{height}\n{page}");
            }
        }
        // Longer bars for larger shares, whole numbers of columns of the same scale.
        let rows: Vec<String> =
            bars(&model, 136, &|_| Style::new()).iter().map(ToString::to_string).collect();
        let lengths: Vec<usize> =
            rows.iter().map(|row| row.matches('█').count()).filter(|full| *full > 0).collect();
        assert_eq!(lengths, [66, 71, 89], "{rows:#?}");
        assert!(rows.iter().all(|row| row.chars().count() <= 136), "{rows:#?}");
        let mut small = Terminal::new(TestBackend::new(40, 8)).unwrap();
        small.draw(|frame| draw(frame, &model, kvplane_runtime::now(), false)).unwrap();
        assert!(small.backend().to_string().contains("88.7 %"));
    }
}
