//! How the tour is shown: lines, on a terminal with colours and one line that moves.

use std::io::{IsTerminal as _, Write as _};

use super::routing::Ledger;

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
    fn name(self) -> &'static str {
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
enum Style {
    /// Nothing: the summary alone is wanted.
    Silent,
    Lines,
    Terminal,
}

/// Where the tour is shown. What cannot be written is not shown: the tour's end tells all.
pub(super) struct View {
    style: Style,
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
    pub(super) fn new(silent: bool, plain: bool) -> Self {
        let style = match (silent, plain || !std::io::stdout().is_terminal()) {
            (true, _) => Style::Silent,
            (false, true) => Style::Lines,
            (false, false) => Style::Terminal,
        };
        Self { style, last: None }
    }

    /// A line by itself.
    pub(super) fn line(&mut self, words: &str) {
        self.last = None;
        match self.style {
            Style::Silent => {}
            Style::Lines => drop(writeln!(std::io::stdout(), "{words}")),
            Style::Terminal => drop(writeln!(std::io::stdout(), "{REWRITE}{words}")),
        }
    }

    /// The title of what follows.
    pub(super) fn title(&mut self, words: &str) {
        match self.style {
            Style::Terminal => self.line(&format!("\n{BOLD}{words}{RESET}")),
            _ => self.line(&format!("\n{words}")),
        }
    }

    /// A line of a step.
    pub(super) fn tell(&mut self, voice: Voice, words: &str) {
        let mut name = if self.last == Some(voice) { "" } else { voice.name() };
        for line in wrapped(words) {
            match self.style {
                Style::Terminal => self.line(&format!("  {}{name:<8}{RESET} {line}", voice.colour())),
                _ => self.line(&format!("  {name:<8} {line}")),
            }
            name = "";
        }
        self.last = Some(voice);
    }

    /// How the load goes, in the line that moves: short, because one that does not fit cannot be written again.
    pub(super) fn progress(&self, ledger: &Ledger) {
        if self.style == Style::Terminal {
            let (routed, in_turn) = (ledger.routed.share * 100.0, ledger.round_robin.share * 100.0);
            let Ledger { requests, false_hits, .. } = ledger;
            let mut out = std::io::stdout();
            let _ = write!(
                out,
                "{REWRITE}  load     {requests} requests: {routed:.1} % cached, in turn {in_turn:.1} %; false hits {false_hits}"
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
fn wrapped(words: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split(' ') {
        match lines.last_mut() {
            None => lines.push(word.to_owned()),
            Some(line) if line.len() + 1 + word.len() <= WIDTH => {
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
        "{} requests, {} prompt tokens: {:.1} % cached; in turn {:.1} %; predicted = delivered in {} of {}, false hits {}",
        ledger.requests,
        ledger.prompt_tokens,
        ledger.routed.share * 100.0,
        ledger.round_robin.share * 100.0,
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
        assert_eq!(wrapped("a b"), ["a b"]);
        let long = vec!["word"; 50].join(" ");
        let lines = wrapped(&long);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= WIDTH), "{lines:?}");
        assert!(lines[1].starts_with("  word") && !lines[0].starts_with(' '), "{lines:?}");
        let again: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
        assert_eq!(again.join(" "), long);
    }
}
