//! Waiting for what a stream does next.

use std::sync::Arc;

use kvplane_core::{Continuity, Cursor};
use kvplane_stream::{Entry, Loss};

use super::Stream;

/// What a stream did next.
#[derive(Debug)]
pub enum News {
    /// Entries, at least one.
    Entries(Vec<Arc<Entry>>),
    /// It stands elsewhere, and no entry says so: the plane that it comes from is out of reach, or back.
    Continuity(Continuity),
}

impl Stream {
    /// What follows a cursor; waits until there is something.
    pub async fn next_after(&self, cursor: Cursor, max: usize) -> Result<Vec<Arc<Entry>>, Loss> {
        loop {
            if let News::Entries(entries) = self.news_after(cursor, self.continuity(), max).await? {
                return Ok(entries);
            }
        }
    }

    /// What follows a cursor, for somebody who believes that the stream stands at `believed`; waits until
    /// there is something.
    pub async fn news_after(&self, cursor: Cursor, believed: Continuity, max: usize) -> Result<News, Loss> {
        loop {
            // Registered before the look, so that nothing that happens after the look is missed.
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            // Read before the entries: one of those may say so.
            let continuity = self.continuity();
            let entries = self.read_after(cursor, max)?;
            if !entries.is_empty() {
                return Ok(News::Entries(entries));
            }
            if self.mirrored && continuity != believed {
                return Ok(News::Continuity(continuity));
            }
            changed.await;
        }
    }

    /// Waits until the engine has not been proven to be there for longer than the stream's `max_silence`.
    pub async fn stale(&self) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.freshness.is_stale() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the stream has come to a cursor of its life; returns at once if it is in another.
    pub async fn reached(&self, cursor: Cursor) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            let now = self.cursor();
            if now.epoch != cursor.epoch || now.sequence >= cursor.sequence {
                return;
            }
            changed.await;
        }
    }

    /// Where the stream stands, without its lock.
    pub fn continuity(&self) -> Continuity {
        self.window.continuity()
    }
}
