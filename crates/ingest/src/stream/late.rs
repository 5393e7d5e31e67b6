//! Coming into an index with a history.

use std::sync::Arc;

use kvplane_core::Continuity;
use kvplane_stream::Snapshot;

use super::{Inner, Stream, view};
use kvplane_catalog::{Catalog, Identity, View};

/// Pictures of the state that are taken without holding up the stream. Each may be outdated before it is in
/// the index: more came than the window keeps, or another life began. The one after these is taken under the
/// stream's lock.
const ATTEMPTS: usize = 4;

/// Why a stream was not put into an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotIndexed {
    /// It is in one already.
    #[error("the stream is in an index already")]
    Already,
    /// It is closed.
    #[error("the stream is closed")]
    Closed,
}

impl Stream {
    /// Puts the stream into an index, whatever it has been fed with by now. Batches go on being applied
    /// meanwhile; only those that came during the call are written into the index under the stream's lock.
    pub fn join_with_history(&self, catalog: &Arc<Catalog>, identity: Identity) -> Result<(), NotIndexed> {
        // Until it is the stream's own, nobody else writes to this feed, and no answer credits it.
        let mut feed = {
            let inner = self.inner.lock();
            check(&inner)?;
            let recorder = &inner.recorder;
            let unfilled = View { continuity: Continuity::Recovering, ..view(recorder) };
            let block_size = recorder.ledger().block_size();
            catalog.join(self.id.clone(), identity, block_size, unfilled, self.freshness.clone())
        };
        let mut fill = |snapshot: &Snapshot| {
            feed.begin_load(pictured(snapshot), &snapshot.resumption);
            feed.load(&snapshot.as_transitions());
        };
        let mut pictures = 0;
        let (mut inner, entries) = loop {
            pictures += 1;
            if pictures > ATTEMPTS {
                let mut inner = self.inner.lock();
                fill(&picture(&mut inner));
                break (inner, Vec::new());
            }
            let snapshot = self.snapshot_here();
            fill(&snapshot);
            let inner = self.inner.lock();
            if let Ok(entries) = self.read_after(snapshot.cursor, usize::MAX) {
                break (inner, entries);
            }
        };
        check(&inner)?;
        let Inner { recorder, index, .. } = &mut *inner;
        recorder.ledger_mut().keep_fresh();
        feed.follow(&entries, view(recorder), recorder.ledger().resumption());
        feed.set_sides(&recorder.ledger().all_marks());
        feed.end_load();
        *index = Some(feed);
        Ok(())
    }
}

fn check(inner: &Inner) -> Result<(), NotIndexed> {
    if inner.closed {
        Err(NotIndexed::Closed)
    } else if inner.index.is_some() {
        Err(NotIndexed::Already)
    } else {
        Ok(())
    }
}

/// The state as it is, all at once.
fn picture(inner: &mut Inner) -> Snapshot {
    let journal = inner.recorder.ledger_mut();
    let mut builder = journal.begin_snapshot();
    while journal.step_snapshot(&mut builder, usize::MAX).is_ok() && !builder.gather() {}
    builder.finish()
}

/// What answers would say of a stream that is as the picture says.
fn pictured(snapshot: &Snapshot) -> View {
    View {
        epoch: snapshot.cursor.epoch,
        continuity: snapshot.continuity,
        trust: snapshot.trust.level(),
        reason: snapshot.trust.worst().map(|worst| worst.reason),
    }
}
