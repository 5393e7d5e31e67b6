//! Engines that this plane hears, in its own book.

use std::sync::Arc;

use kvplane_hints::{Book, Note, Whose};
use kvplane_ingest::{Engine, Plane};

use super::Rules;
use super::feeds::{Feeds, Told};
use crate::sink::Sink;

/// Writes into a book what every engine of the plane holds. Engines that name no tenant are of `tenant`; a replica is an engine, and its
/// hash scheme the kind of it.
pub fn hear(plane: &Arc<Plane>, book: &Arc<Book>, tenant: &str) -> Feeds {
    let (book, tenant) = (book.clone(), tenant.to_owned());
    Feeds::start(plane, move |engine| {
        let sink = Page::open(book.clone(), engine, &tenant);
        Some(Told { rules: Rules::default(), sink: Box::new(sink) })
    })
}

/// One engine's part of a book.
struct Page {
    book: Arc<Book>,
    tenant: String,
    model: String,
    replica: String,
    scheme: &'static str,
}

impl Page {
    fn open(book: Arc<Book>, engine: &Engine, tenant: &str) -> Self {
        let spec = &engine.spec;
        let mut page = Self {
            book,
            tenant: spec.tenant.clone().unwrap_or_else(|| tenant.to_owned()),
            model: spec.model.clone(),
            replica: spec.id.to_string(),
            scheme: spec.kind.as_str(),
        };
        // From now on nobody else speaks for it.
        page.tell(&[]);
        page
    }

    fn whose(&self) -> Whose<'_> {
        Whose { tenant: &self.tenant, model: &self.model, replica: &self.replica }
    }
}

impl Sink for Page {
    fn tell(&mut self, notes: &[Note]) {
        self.book.hear(self.whose(), self.scheme, notes);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.book.forget(self.whose());
    }
}
