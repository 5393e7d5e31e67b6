//! How far streams have been reported.

use std::collections::HashMap;
use std::sync::Arc;

use kvplane_core::{Continuity, Cursor, StreamId};
use kvplane_ingest::Stream;
use tokio::sync::watch;

/// How far one stream has been reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    /// Everything up to here.
    Reported(Cursor),
    /// Nothing: it was not live.
    Nothing,
    /// Nothing, ever: no server wants reports of its engine.
    Unwanted,
}

/// How far every stream has been reported. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(watch::Sender<HashMap<StreamId, Reached>>);

impl Progress {
    pub(super) fn set(&self, stream: &StreamId, reached: Reached) {
        self.0.send_modify(|streams| {
            if let Some(known) = streams.get_mut(stream) {
                *known = reached;
            } else {
                streams.insert(stream.clone(), reached);
            }
        });
    }

    pub(super) fn remove(&self, stream: &StreamId) {
        self.0.send_if_modified(|streams| streams.remove(stream).is_some());
    }

    /// Only these streams are there.
    pub(super) fn retain(&self, stays: impl Fn(&StreamId) -> bool) {
        self.0.send_modify(|streams| streams.retain(|stream, _| stays(stream)));
    }

    /// Waits until everything that these streams have recorded by now is reported.
    pub(super) async fn catch_up(&self, streams: impl Iterator<Item = Arc<Stream>>) {
        let recorded: Vec<(Arc<Stream>, Cursor)> =
            streams.map(|stream| (stream.clone(), stream.cursor())).collect();
        let mut progress = self.0.subscribe();
        for (stream, cursor) in recorded {
            let is_reported = |reached: &HashMap<StreamId, Reached>| match reached.get(stream.id()) {
                Some(Reached::Reported(arrived)) => {
                    (arrived.epoch, arrived.sequence) >= (cursor.epoch, cursor.sequence) || !is_live(&stream)
                }
                Some(Reached::Nothing) => !is_live(&stream),
                Some(Reached::Unwanted) => true,
                None => false,
            };
            // It would fail if nobody could tell anything any more; this one can. Nobody tells of a stream
            // that is gone.
            let _ = stream.removed().run_until_cancelled(progress.wait_for(is_reported)).await;
        }
    }
}

/// Streams that are not heard are not waited for.
fn is_live(stream: &Stream) -> bool {
    stream.continuity() == Continuity::Live
}
