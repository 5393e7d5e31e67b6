//! What the screen shows and what keys do to it. No terminal here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use kvplane_doctor::Finding;
use ratatui::crossterm::event::{KeyCode, KeyModifiers};

use super::Read;
use crate::args::TopSort;
use crate::commands::status::fleet::{Fleet, Stream};

/// The fleet at one moment.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) at: Instant,
    pub(super) fleet: Fleet,
    pub(super) problems: Vec<Finding>,
}

/// What follows a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Stay,
    Quit,
}

/// Longest filter.
const FILTER_MAX: usize = 100;
/// Rows of a page.
const PAGE: usize = 10;

/// Which streams are shown: those that contain every word.
#[derive(Debug, Default)]
pub(super) struct Filter {
    pub(super) text: String,
    /// Keys go to the filter.
    pub(super) typing: bool,
}

#[derive(Debug)]
pub(super) struct App {
    pub(super) look: Option<Arc<Look>>,
    before: Option<Arc<Look>>,
    /// Why the last refresh failed.
    pub(super) error: Option<String>,
    pub(super) sort: TopSort,
    pub(super) reversed: bool,
    pub(super) filter: Filter,
    pub(super) paused: bool,
    /// The first row that is shown.
    pub(super) offset: usize,
    pub(super) coloured: bool,
}

impl App {
    pub(super) fn new(sort: TopSort, filter: String, coloured: bool) -> Self {
        Self {
            look: None,
            before: None,
            error: None,
            sort,
            reversed: false,
            filter: Filter { text: filter, typing: false },
            paused: false,
            offset: 0,
            coloured,
        }
    }

    /// Takes what was read, unless the screen is paused.
    pub(super) fn take(&mut self, read: Read) {
        match read {
            Ok(look) if !self.paused => {
                self.before = self.look.replace(look);
                self.error = None;
            }
            Ok(_) => {}
            Err(error) => self.error = Some(error),
        }
    }

    /// Obeys a key.
    pub(super) fn press(&mut self, key: KeyCode, modifiers: KeyModifiers) -> Next {
        if key == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL) {
            return Next::Quit;
        }
        if self.filter.typing {
            self.press_in_filter(key);
            return Next::Stay;
        }
        match key {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('s') => {
                self.sort = next(self.sort);
                self.offset = 0;
            }
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('/') => self.filter.typing = true,
            KeyCode::Esc => self.filter.text.clear(),
            KeyCode::Down | KeyCode::Char('j') => self.offset += 1,
            KeyCode::Up | KeyCode::Char('k') => self.offset = self.offset.saturating_sub(1),
            KeyCode::PageDown => self.offset += PAGE,
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(PAGE),
            KeyCode::Home => self.offset = 0,
            KeyCode::End => self.offset = usize::MAX,
            _ => {}
        }
        Next::Stay
    }

    fn press_in_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.filter.typing = false,
            KeyCode::Esc => {
                self.filter.typing = false;
                self.filter.text.clear();
            }
            KeyCode::Backspace => {
                self.filter.text.pop();
            }
            KeyCode::Char(c) if self.filter.text.len() < FILTER_MAX => self.filter.text.push(c),
            _ => {}
        }
        self.offset = 0;
    }

    /// Events per second of each stream, between the last two looks.
    pub(super) fn rates(&self) -> HashMap<(&str, u32), f64> {
        let (Some(before), Some(look)) = (&self.before, &self.look) else { return HashMap::new() };
        let elapsed = look.at.saturating_duration_since(before.at).as_secs_f64().max(0.001);
        let counted: HashMap<(&str, u32), u64> =
            before.fleet.streams.iter().map(|stream| (name(stream), stream.events)).collect();
        let rate = |stream: &Stream| {
            let new = stream.events.checked_sub(*counted.get(&name(stream))?)?;
            Some(new as f64 / elapsed)
        };
        look.fleet.streams.iter().filter_map(|stream| Some((name(stream), rate(stream)?))).collect()
    }

    /// The streams that are shown, in their order.
    pub(super) fn rows<'a>(&'a self, rates: &HashMap<(&str, u32), f64>) -> Vec<&'a Stream> {
        let Some(look) = &self.look else { return Vec::new() };
        let wanted = self.filter.text.to_lowercase();
        let fits = |stream: &&Stream| {
            let Stream { engine, model, continuity, trust, kind, .. } = stream;
            let text = format!("{engine}/{} {model} {continuity} {trust} {kind}", stream.rank);
            wanted.split_whitespace().all(|word| text.to_lowercase().contains(word))
        };
        // They come in the order of trouble, then by name.
        let mut rows: Vec<&Stream> = look.fleet.streams.iter().filter(fits).collect();
        let rate = |stream: &Stream| rates.get(&name(stream)).copied().unwrap_or(0.0);
        match self.sort {
            TopSort::Trouble => {}
            TopSort::Engine => rows.sort_by(|a, b| name(a).cmp(&name(b))),
            TopSort::Blocks => rows.sort_by_key(|stream| std::cmp::Reverse(stream.blocks)),
            TopSort::Full => rows.sort_by(|a, b| {
                let full = |stream: &Stream| stream.full_percent().unwrap_or(-1.0);
                full(b).total_cmp(&full(a))
            }),
            TopSort::Rate => rows.sort_by(|a, b| rate(b).total_cmp(&rate(a))),
        }
        if self.reversed {
            rows.reverse();
        }
        rows
    }
}

pub(super) fn name(stream: &Stream) -> (&str, u32) {
    (&stream.engine, stream.rank)
}

fn next(sort: TopSort) -> TopSort {
    match sort {
        TopSort::Trouble => TopSort::Engine,
        TopSort::Engine => TopSort::Blocks,
        TopSort::Blocks => TopSort::Full,
        TopSort::Full => TopSort::Rate,
        TopSort::Rate => TopSort::Trouble,
    }
}
