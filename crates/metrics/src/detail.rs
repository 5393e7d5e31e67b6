//! How finely the page tells streams apart.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvplane_ingest::{Engine, Stream};

/// What has series of its own in families about streams and sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Every stream.
    Stream,
    /// Every engine, its ranks together.
    Engine,
    /// Every model, its engines together.
    Fleet,
}

/// Rows of the page that is made where nobody chose: about 5 KiB each.
const MAX_ROWS: usize = 500;

impl Detail {
    /// All of them, finest first.
    pub const ALL: [Self; 3] = [Self::Stream, Self::Engine, Self::Fleet];

    /// Its name in the configuration and in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Engine => "engine",
            Self::Fleet => "fleet",
        }
    }

    /// The finest that makes no page of more than 500 rows.
    pub fn fitting(engines: &[Arc<Engine>]) -> Self {
        let streams: usize = engines.iter().map(|engine| engine.streams.len()).sum();
        match (streams, engines.len()) {
            (0..=MAX_ROWS, _) => Self::Stream,
            (_, 0..=MAX_ROWS) => Self::Engine,
            _ => Self::Fleet,
        }
    }

    /// The streams, row by row, each with its labels.
    pub(crate) fn rows(self, engines: &[Arc<Engine>]) -> Vec<(Labels, Vec<Arc<Stream>>)> {
        let mut rows: BTreeMap<Labels, Vec<Arc<Stream>>> = BTreeMap::new();
        let mut in_order = Vec::new();
        for engine in engines {
            for stream in &engine.streams {
                let labels = self.labels(engine, Some(stream));
                match self {
                    Self::Stream => in_order.push((labels, vec![stream.clone()])),
                    Self::Engine | Self::Fleet => rows.entry(labels).or_default().push(stream.clone()),
                }
            }
        }
        in_order.extend(rows);
        in_order
    }

    /// The labels of an engine's row, or of a stream's.
    pub(crate) fn labels(self, engine: &Engine, stream: Option<&Stream>) -> Labels {
        let mut labels = Vec::with_capacity(4);
        if self != Self::Fleet {
            labels.push(("engine", engine.spec.id.to_string()));
        }
        if let (Self::Stream, Some(stream)) = (self, stream) {
            labels.push(("rank", stream.id().rank.to_string()));
        }
        labels.push(("model", engine.spec.model.clone()));
        Labels(labels)
    }
}

/// Names and values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Labels(pub(crate) Vec<(&'static str, String)>);

impl Labels {
    pub(crate) fn all(&self) -> Vec<(&str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    /// All of them and one more.
    pub(crate) fn with<'l>(&'l self, name: &'l str, value: &'l str) -> Vec<(&'l str, &'l str)> {
        let mut labels = self.all();
        labels.push((name, value));
        labels
    }

    /// Without the model, which families about sources do not have where they name engines.
    pub(crate) fn of_source(mut self) -> Self {
        if self.0.iter().any(|(name, _)| *name == "engine") {
            self.0.retain(|(name, _)| *name != "model");
        }
        self
    }
}
