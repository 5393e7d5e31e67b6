//! One stream of another plane, and what it is fed with.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvplane_core::{Continuity, Cursor, StateDigest, StreamId, Trouble};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_stream::{Limits, MirrorSnapshot, Misfit, Recorder, Semantics};

use super::convert;
use crate::feeder::Feeder;
use crate::stream::Stream;

/// How long a stream is left alone for which there is no room.
const ASIDE: Duration = Duration::from_secs(30);

/// One stream.
#[derive(Debug)]
pub(super) struct Member {
    feeder: Feeder,
    semantics: Semantics,
    limits: Limits,
    /// The other plane sends what follows.
    followed: bool,
    loading: Option<Box<MirrorSnapshot>>,
    /// The engine was proven to be there at this moment, once all up to this position is here.
    owed: Option<(Cursor, Instant)>,
    /// There is no room for it: nothing of it is taken until then.
    aside: Option<Instant>,
}

impl Member {
    pub(super) fn new(feeder: Feeder, semantics: Semantics, limits: Limits) -> Self {
        Self { feeder, semantics, limits, followed: false, loading: None, owed: None, aside: None }
    }

    /// Its name here.
    pub(super) fn id(&self) -> &StreamId {
        self.feeder.stream().id()
    }

    pub(super) fn feeder(&self) -> &Feeder {
        &self.feeder
    }

    /// Whether it is the stream that the plane has under this name.
    pub(super) fn is(&self, stream: &Arc<Stream>) -> bool {
        Arc::ptr_eq(self.feeder.stream(), stream)
    }

    /// Where a subscription goes on, and the digest of what is here; `None`: with a snapshot.
    pub(super) fn resume(&self) -> Option<(Cursor, StateDigest)> {
        let mut resume = None;
        self.feeder.tell(|recorder, _| {
            let digest = recorder.ledger().state().digest();
            resume = recorder.resume().map(|cursor| (cursor, digest));
        });
        resume
    }

    /// The other plane is followed, and is at this position.
    pub(super) fn reached(&mut self, at: Cursor) {
        if !std::mem::replace(&mut self.followed, true) {
            self.feeder.tell(|recorder, now| recorder.reached(now, at));
        }
    }

    /// The other plane was at `at` when it said that the engine had been there at `proven_at`.
    pub(super) fn proven(&mut self, at: Cursor, proven_at: Instant) {
        if self.followed {
            self.owed = Some((at, proven_at));
            self.settle();
        }
    }

    /// Counts the proof that is owed once everything before it is here.
    fn settle(&mut self) {
        let ours = self.feeder.stream().cursor();
        let here = self.owed.take_if(|(at, _)| {
            ours.epoch > at.epoch || (ours.epoch == at.epoch && ours.sequence >= at.sequence)
        });
        if let Some((_, proven_at)) = here {
            let _asks = self.feeder.prove(proven_at);
        }
    }

    /// The other plane is out of reach.
    pub(super) fn lost(&mut self) {
        self.loading = None;
        self.owed = None;
        self.followed = false;
        self.feeder.tell(Recorder::lost);
    }

    /// Whether it is time to try again what there was no room for.
    pub(super) fn wants_another_try(&mut self) -> bool {
        self.aside.take_if(|until| kvplane_runtime::now() >= *until).is_some()
    }

    pub(super) fn reset(&mut self, cursor: Cursor) {
        if self.aside.is_some() {
            return;
        }
        let snapshot = MirrorSnapshot::new(cursor, self.limits, self.semantics);
        self.loading = Some(Box::new(snapshot));
        if self.resume().is_some_and(|(ours, _)| ours.epoch != cursor.epoch) {
            // Nothing of a life that is over counts any more.
            self.feeder.tell(|recorder, now| recorder.void(now, None));
        }
    }

    pub(super) fn chunk(&mut self, cursor: Cursor, chunk: proto::SnapshotChunk) -> Result<(), Misfit> {
        if self.aside.is_some() {
            return Ok(());
        }
        let mut loading = self.loading.take().ok_or(Misfit::Order)?;
        match convert::chunk(chunk).and_then(|chunk| loading.chunk(cursor, chunk)) {
            Ok(false) => self.loading = Some(loading),
            Ok(true) => {
                if let Some(state) = loading.finish() {
                    self.feeder.load(state);
                    self.feeder.stream().set_trouble(None);
                }
            }
            Err(misfit) => return Err(self.void(misfit)),
        }
        Ok(())
    }

    pub(super) fn batch(&mut self, cursor: Cursor, batch: proto::Batch) -> Result<(), Misfit> {
        if self.aside.is_some() {
            return Ok(());
        }
        if self.loading.take().is_some() {
            return Err(self.void(Misfit::Order));
        }
        let entry = convert::entry(cursor, batch).map_err(|misfit| self.void(misfit))?;
        let mut outcome = Ok(());
        let _asks = self.feeder.feed(|recorder, now| outcome = recorder.mirrored(now, entry));
        outcome.inspect_err(|&misfit| self.after_misfit(misfit))
    }

    pub(super) fn continuity(&self, continuity: Continuity) {
        self.feeder.tell(|recorder, now| recorder.mirror_continuity(now, continuity));
    }

    pub(super) fn announce(&mut self) {
        if self.owed.is_some() {
            self.settle();
        }
        self.feeder.stream().announce();
    }

    fn void(&mut self, misfit: Misfit) -> Misfit {
        self.feeder.tell(|recorder, now| recorder.void(now, Some(misfit)));
        self.after_misfit(misfit);
        misfit
    }

    fn after_misfit(&mut self, misfit: Misfit) {
        self.feeder.stream().announce();
        if misfit == Misfit::Budget {
            self.aside = Some(kvplane_runtime::now() + ASIDE);
            self.feeder.stream().set_trouble(Some(Trouble::Budget));
        }
    }
}
