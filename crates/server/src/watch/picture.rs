//! All ranks at one moment.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use kvplane_core::StreamId;
use kvplane_ingest::{Engines, Plane};
use serde::Serialize;

use super::cell::{Cell, Counted, Link};

/// Ranks that went and are remembered. A watcher that missed more gets everything.
const GONE_KEPT: usize = 1_024;

/// A rank that is there no more.
#[derive(Debug, Serialize)]
struct GoneJson<'s> {
    engine: &'s str,
    rank: u32,
}

impl<'s> GoneJson<'s> {
    fn new(stream: &'s StreamId) -> Self {
        Self { engine: stream.engine.as_str(), rank: stream.rank }
    }
}

/// All ranks at one moment.
#[derive(Debug)]
pub(crate) struct Picture {
    number: u64,
    unix_ms: u64,
    /// The picture from which on ranks that went are known: a watcher that saw an older one gets everything.
    gone_since: u64,
    /// Ranks that went, and the picture that first was without them, oldest first.
    gone: VecDeque<(u64, StreamId)>,
    engines: Engines,
    links: Vec<Link>,
    /// The picture from which on they are as they are.
    links_since: u64,
    cells: Vec<Shown>,
    by_stream: HashMap<StreamId, usize>,
}

#[derive(Debug)]
struct Shown {
    cell: Cell,
    counted: Counted,
    /// The picture in which it last changed.
    changed: u64,
    json: Arc<str>,
}

impl Picture {
    pub(super) fn first(plane: &Plane) -> Self {
        Self::of(plane, None)
    }

    pub(super) fn next(&self, plane: &Plane) -> Self {
        Self::of(plane, Some(self))
    }

    fn of(plane: &Plane, last: Option<&Self>) -> Self {
        let number = last.map_or(1, |last| last.number + 1);
        let unix_ms = unix_ms();
        let engines = plane.engines();
        let same = last.is_some_and(|last| Arc::ptr_eq(&last.engines, &engines));
        let links: Vec<_> = engines.iter().filter_map(|engine| Link::of(engine)).collect();
        let same_links = last.filter(|last| last.links == links);
        let mut picture = Self {
            number,
            unix_ms,
            links_since: same_links.map_or(number, |last| last.links_since),
            links,
            gone_since: last.map_or(number, |last| last.gone_since),
            gone: last.map(|last| last.gone.clone()).unwrap_or_default(),
            engines: engines.clone(),
            cells: Vec::new(),
            by_stream: HashMap::new(),
        };
        for engine in engines.iter() {
            for stream in &engine.streams {
                let before = last.and_then(|last| last.shown(stream.id()));
                let (cell, counted) = Cell::of(engine, stream, unix_ms, before.map(|shown| shown.counted));
                let shown = if let Some(before) = before.filter(|before| before.cell == cell) {
                    Shown { cell, counted, changed: before.changed, json: before.json.clone() }
                } else {
                    let json = serde_json::to_string(&cell).unwrap_or_default().into();
                    Shown { cell, counted, changed: number, json }
                };
                picture.by_stream.insert(stream.id().clone(), picture.cells.len());
                picture.cells.push(shown);
            }
        }
        if let Some(last) = last.filter(|_| !same) {
            picture.note_gone(last);
        }
        picture
    }

    /// Ranks that the last picture had, and this one has not.
    fn note_gone(&mut self, last: &Self) {
        let mut gone: Vec<StreamId> = last.by_stream.keys().cloned().collect();
        gone.retain(|stream| !self.by_stream.contains_key(stream));
        gone.sort();
        let number = self.number;
        self.gone.extend(gone.into_iter().map(|stream| (number, stream)));
        while self.gone.len() > GONE_KEPT {
            if let Some((forgotten, _)) = self.gone.pop_front() {
                self.gone_since = forgotten;
            }
        }
    }

    fn shown(&self, stream: &StreamId) -> Option<&Shown> {
        self.by_stream.get(stream).and_then(|&at| self.cells.get(at))
    }

    /// Which one it is.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The update for a watcher that last saw the picture `seen` (0: none): the cells that are new or
    /// changed, the ranks that went, and the links if one of them changed; everything if it is too far
    /// behind. `None` if nothing did.
    pub(crate) fn since(&self, seen: u64) -> Option<String> {
        let whole = seen < self.gone_since;
        let cells: Vec<&str> = self
            .cells
            .iter()
            .filter(|shown| whole || shown.changed > seen)
            .map(|shown| &*shown.json)
            .collect();
        let links = (whole || seen < self.links_since).then_some(&self.links);
        let back = |stream: &StreamId| self.by_stream.contains_key(stream);
        let gone = self.gone.iter().filter(|(number, stream)| !whole && *number > seen && !back(stream));
        let gone: Vec<GoneJson<'_>> = gone.map(|(_, stream)| GoneJson::new(stream)).collect();
        if cells.is_empty() && links.is_none() && gone.is_empty() {
            return None;
        }
        let gone = (!gone.is_empty()).then(|| serde_json::to_string(&gone).ok()).flatten();
        let gone = gone.map(|gone| format!(",\"gone\":{gone}")).unwrap_or_default();
        let links = links.and_then(|links| serde_json::to_string(links).ok());
        let links = links.map(|links| format!(",\"links\":{links}")).unwrap_or_default();
        let (unix_ms, ranks) = (self.unix_ms, cells.join(","));
        Some(format!("{{\"whole\":{whole},\"unix_ms\":{unix_ms},\"ranks\":[{ranks}]{gone}{links}}}"))
    }
}

fn unix_ms() -> u64 {
    kvplane_runtime::unix_ms()
}
