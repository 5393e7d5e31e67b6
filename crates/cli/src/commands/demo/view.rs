//! How the tour is shown: a screen, lines with colours and one line that moves, or plain lines.

use std::io::{IsTerminal as _, Write as _};

use tokio_util::sync::CancellationToken;

use super::routing::Ledger;
use super::screen::Screen;
use super::story::Act;
use crate::commands::status::is_coloured;

/// Who says a line of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Voice {
    /// What is done.
    Done,
    /// What somebody believes who takes events and answers as they come.
    Plain,
    /// What the plane says.
    Plane,
    /// What a comparison with the engines shows.
    Checked,
}

impl Voice {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Plain => "plain",
            Self::Plane => "kvplane",
            Self::Checked => "checked",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Self::Done => "\x1b[2m",
            Self::Plain => "\x1b[33m",
            Self::Plane => "\x1b[36m",
            Self::Checked => "\x1b[32m",
        }
    }
}

/// How much is shown, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Nothing: the summary alone is wanted.
    Silent,
    Lines,
    /// Lines with colours.
    Terminal,
    /// The whole terminal.
    Screen,
}

impl Style {
    pub(super) fn of(silent: bool, plain: bool, pause: bool) -> Self {
        match (silent, plain || !std::io::stdout().is_terminal()) {
            (true, _) => Self::Silent,
            (false, true) => Self::Lines,
            // Enter goes to the tour.
            (false, false) if pause => Self::Terminal,
            (false, false) => Self::Screen,
        }
    }
}

/// Where the tour is shown. What cannot be written is not shown: the tour's end tells all.
pub(super) struct View {
    style: Style,
    screen: Option<Screen>,
    /// The last voice that was heard, so that it is named once.
    last: Option<Voice>,
}

/// Characters of a line of words, so that it fits a terminal of 120 columns.
const WIDTH: usize = 105;
const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
/// To the beginning of the line, and everything behind it away.
const REWRITE: &str = "\r\x1b[K";

impl View {
    /// Text on standard output, or nothing.
    pub(super) fn new(style: Style, stop: &CancellationToken) -> anyhow::Result<Self> {
        let screen = match style {
            Style::Screen => Some(Screen::open(stop.clone(), is_coloured())?),
            _ => None,
        };
        Ok(Self { style, screen, last: None })
    }

    /// Gives the terminal back.
    pub(super) fn close(&mut self) {
        self.screen = None;
        if self.style == Style::Screen {
            self.style = Style::Silent;
        }
    }

    /// Where the dashboard is.
    pub(super) fn dashboard(&mut self, url: &str) {
        if let Some(screen) = &self.screen {
            let mut model = screen.model.lock();
            (model.dashboard, model.steps) = (url.to_owned(), Act::ALL.len());
        }
    }

    /// A step came out as it should.
    pub(super) fn survived(&mut self) {
        if let Some(screen) = &self.screen {
            screen.model.lock().survived += 1;
        }
    }

    /// A line by itself.
    pub(super) fn line(&mut self, words: &str) {
        self.last = None;
        match self.style {
            Style::Silent | Style::Screen => {}
            Style::Lines => drop(writeln!(std::io::stdout(), "{words}")),
            Style::Terminal => drop(writeln!(std::io::stdout(), "{REWRITE}{words}")),
        }
    }

    /// The title of what follows.
    pub(super) fn title(&mut self, number: usize, title: &str) {
        let words = format!("Step {number}: {title}");
        if let Some(screen) = &self.screen {
            let mut model = screen.model.lock();
            model.add(None, &words);
            model.title = words;
            return;
        }
        match self.style {
            Style::Terminal => self.line(&format!("\n{BOLD}{words}{RESET}")),
            _ => self.line(&format!("\n{words}")),
        }
    }

    /// A line of a step.
    pub(super) fn tell(&mut self, voice: Voice, words: &str) {
        if let Some(screen) = &self.screen {
            screen.model.lock().add(Some(voice), words);
            return;
        }
        let mut name = if self.last == Some(voice) { "" } else { voice.name() };
        for line in wrapped(words, WIDTH) {
            match self.style {
                Style::Terminal => self.line(&format!("  {}{name:<8}{RESET} {line}", voice.colour())),
                _ => self.line(&format!("  {name:<8} {line}")),
            }
            name = "";
        }
        self.last = Some(voice);
    }

    /// How the load goes, in the line that moves: short, because one that does not fit cannot be written
    /// again. Phantoms are counted for the screen alone: they take a comparison.
    pub(super) fn progress(&self, ledger: &Ledger, phantoms: impl FnOnce() -> usize) {
        if let Some(screen) = &self.screen {
            let phantoms = phantoms();
            let mut model = screen.model.lock();
            (model.ledger, model.phantoms) = (ledger.clone(), phantoms);
        }
        if self.style == Style::Terminal {
            let (routed, in_turn) = (ledger.routed.share * 100.0, ledger.round_robin.share * 100.0);
            let Ledger { requests, false_hits, .. } = ledger;
            let mut out = std::io::stdout();
            let _ = write!(
                out,
                "{REWRITE}  load     {requests} requests: {routed:.1} % cached, round robin {in_turn:.1} %; false hits {false_hits}"
            );
            let _ = out.flush();
        }
    }

    /// How the load went.
    pub(super) fn load(&mut self, ledger: &Ledger) {
        self.line(&format!("  {:<8} {}", "load", load_words(ledger)));
    }
}

/// Words in lines that fit beside the voices; those after the first are set in.
pub(super) fn wrapped(words: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split(' ') {
        match lines.last_mut() {
            None => lines.push(word.to_owned()),
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
        }
    }
    lines
}

/// The ledger in one line.
pub(super) fn load_words(ledger: &Ledger) -> String {
    format!(
        "{} requests, {} prompt tokens: {:.1} % cached; round robin {:.1} %, plain consumer {:.1} %; predicted = delivered in {} of {}, false hits {}",
        ledger.requests,
        ledger.prompt_tokens,
        ledger.routed.share * 100.0,
        ledger.round_robin.share * 100.0,
        ledger.plain.share * 100.0,
        ledger.exact.equal + ledger.not_exact.equal,
        ledger.requests,
        ledger.false_hits,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_are_set_in_lines() {
        assert_eq!(wrapped("a b", WIDTH), ["a b"]);
        let long = vec!["word"; 50].join(" ");
        let lines = wrapped(&long, WIDTH);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= WIDTH), "{lines:?}");
        assert!(lines[1].starts_with("  word") && !lines[0].starts_with(' '), "{lines:?}");
        let again: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
        assert_eq!(again.join(" "), long);
    }
}
