//! All ranks at one moment.

use std::collections::HashMap;
use std::sync::Arc;

use kvplane_core::StreamId;
use kvplane_ingest::{Engines, Plane};

use super::cell::{Cell, Counted, Link};

/// All ranks at one moment.
#[derive(Debug)]
pub(crate) struct Picture {
    number: u64,
    unix_ms: u64,
    /// The picture from which on the same ranks are there.
    members_since: u64,
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
            members_since: last.filter(|_| same).map_or(number, |last| last.members_since),
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
        picture
    }

    fn shown(&self, stream: &StreamId) -> Option<&Shown> {
        self.by_stream.get(stream).and_then(|&at| self.cells.get(at))
    }

    /// Which one it is.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// What a watcher is told that last saw the picture `seen` (0: none): everything if other ranks are there since, else the cells that
    /// changed, and the links if one of them did. `None` if nothing did.
    pub(crate) fn since(&self, seen: u64) -> Option<String> {
        let whole = seen < self.members_since;
        let cells: Vec<&str> = self
            .cells
            .iter()
            .filter(|shown| whole || shown.changed > seen)
            .map(|shown| &*shown.json)
            .collect();
        let links = (whole || seen < self.links_since).then_some(&self.links);
        if cells.is_empty() && links.is_none() {
            return None;
        }
        let links = links.and_then(|links| serde_json::to_string(links).ok());
        let links = links.map(|links| format!(",\"links\":{links}")).unwrap_or_default();
        let (unix_ms, ranks) = (self.unix_ms, cells.join(","));
        Some(format!("{{\"whole\":{whole},\"unix_ms\":{unix_ms},\"ranks\":[{ranks}]{links}}}"))
    }
}

fn unix_ms() -> u64 {
    kvplane_runtime::unix_ms()
}
