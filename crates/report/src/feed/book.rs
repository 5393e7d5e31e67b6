//! Engines that this plane hears, in its own book.

use std::sync::Arc;

use kvplane_hints::{Book, Note, Whose};
use kvplane_ingest::{Engine, Plane};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::Rules;
use super::feeds::{Feeds, Target};
use crate::sender::unix_us;
use crate::sink::Sink;
use crate::stats::{StatsNews, StatsOptions, StatsSource, follow_stats};

/// Writes into a book what every engine of the plane holds. Engines that name no tenant are of `tenant`; a
/// replica is an engine, and its hash scheme the kind of it.
pub fn hear(plane: &Arc<Plane>, book: &Arc<Book>, tenant: &str) -> Feeds {
    let (book, tenant) = (book.clone(), tenant.to_owned());
    Feeds::start(plane, move |engine| {
        let sink = Page::open(book.clone(), engine, &tenant);
        Some(Target { rules: Rules::default(), sink: Box::new(sink) })
    })
}

/// One engine's part of a book; it is forgotten when this is dropped.
struct Page {
    entry: Arc<Entry>,
    /// Reads the engine's statistics, where it is said where they are.
    _stats: Option<AbortOnDropHandle<()>>,
}

/// Where an engine is written down.
struct Entry {
    book: Arc<Book>,
    tenant: String,
    model: String,
    replica: String,
    scheme: &'static str,
    /// Nothing is written any more: readers of statistics may be a step behind.
    closed: Mutex<bool>,
}

impl Page {
    fn open(book: Arc<Book>, engine: &Engine, tenant: &str) -> Self {
        let spec = &engine.spec;
        let entry = Arc::new(Entry {
            book,
            tenant: spec.tenant.clone().unwrap_or_else(|| tenant.to_owned()),
            model: spec.model.clone(),
            replica: spec.id.to_string(),
            scheme: spec.kind.as_str(),
            closed: Mutex::new(false),
        });
        let report_to = entry.clone();
        let stats = StatsSource::of(spec, None).map(|source| {
            let follow = follow_stats(source, StatsOptions::default(), move |news| report_to.stats(news));
            AbortOnDropHandle::new(kvplane_runtime::spawn("engine stats", follow))
        });
        let mut page = Self { entry, _stats: stats };
        // From now on nobody else speaks for it.
        page.tell(&[]);
        page
    }
}

impl Entry {
    fn whose(&self) -> Whose<'_> {
        Whose { tenant: &self.tenant, model: &self.model, replica: &self.replica }
    }

    fn stats(&self, news: StatsNews) {
        let closed = self.closed.lock();
        // Those that are old are forgotten by the book.
        if let StatsNews::Are(stats) = news
            && !*closed
        {
            self.book.hear_stats(self.whose(), stats, unix_us());
        }
    }
}

impl Sink for Page {
    fn tell(&mut self, notes: &[Note]) {
        self.entry.book.hear(self.entry.whose(), self.entry.scheme, notes);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        *self.entry.closed.lock() = true;
        self.entry.book.forget(self.entry.whose());
    }
}
