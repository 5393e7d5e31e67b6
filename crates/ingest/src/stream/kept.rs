//! A stream that is kept in a durable journal.
//!
//! Every step is given to the journal under the stream's lock, which costs a place in a queue. Readers get an
//! entry once the operating system has it, and are woken then: no process that is killed takes an entry along
//! that somebody has.

use std::sync::{Arc, Weak};

use kvplane_core::Cursor;
use kvplane_store::{Journal, Name, Written};

use super::{Inner, Stream};

/// Hears what was written of a stream.
#[derive(Debug)]
struct OnWritten(Weak<Stream>);

impl Written for OnWritten {
    fn written(&self, sequence: u64) {
        if let Some(stream) = self.0.upgrade() {
            stream.window.tell(sequence);
            stream.changed.notify_waiters();
        }
    }

    fn off(&self) {
        if let Some(stream) = self.0.upgrade() {
            stream.tell_all();
        }
    }
}

impl Stream {
    /// Writes every step into a journal from now on, if there is one; behind `place`, its number and that of
    /// its next step, where the journal has the stream. To be called before the stream is fed.
    pub(crate) fn keep_in(self: &Arc<Self>, journal: Option<&Arc<Journal>>, place: Option<(u32, u64)>) {
        let mut inner = self.inner.lock();
        let Some(journal) = journal.filter(|_| inner.recorder.keeps_records()) else {
            inner.recorder.stop_records();
            return;
        };
        self.window.hold_back();
        let name = Name { engine: self.id.engine.to_string(), rank: self.id.rank };
        inner.durable = Some(journal.stream(name, place, Arc::new(OnWritten(Arc::downgrade(self)))));
        if place.is_some() {
            inner.recorder.end_lost_flushes();
        }
        self.write_down(&mut inner);
    }

    /// Gives steps to the journal. True if there were any: what they say is announced when it is written.
    pub(super) fn write_down(&self, inner: &mut Inner) -> bool {
        let Inner { recorder, durable, .. } = inner;
        let Some(journal) = durable else { return false };
        let records = recorder.take_records();
        if records.is_empty() {
            return false;
        }
        if journal.append(records, recorder.ledger().cursor().sequence) {
            return true;
        }
        *durable = None;
        recorder.stop_records();
        self.tell_all();
        false
    }

    /// The journal has nothing more of the stream.
    pub(super) fn leave_journal(&self, inner: &mut Inner) {
        inner.recorder.stop_records();
        if let Some(journal) = inner.durable.take() {
            journal.remove();
            self.tell_all();
        }
    }

    fn tell_all(&self) {
        self.window.tell_all();
        self.changed.notify_waiters();
    }

    /// Waits until what led here may be told.
    pub(super) async fn reported(&self, cursor: Cursor) {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if self.window.is_reported(cursor.sequence) {
                return;
            }
            changed.await;
        }
    }
}
