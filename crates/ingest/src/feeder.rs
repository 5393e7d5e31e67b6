//! What every source does with a stream: feed its recorder, log what happened, free what is over.

use std::sync::Arc;
use std::time::Instant;

use kvplane_core::Trust;
use kvplane_stream::{Ask, Happening, MirroredState, Now, PassedOver, Recorder, State};
use tokio::runtime::Handle;
use tracing::{error, info, warn};

use crate::chronicle::Said;
use crate::stream::{Outcome, Stream};

/// Feeds one stream. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Feeder {
    stream: Arc<Stream>,
    runtime: Handle,
}

impl Feeder {
    pub(crate) fn new(stream: Arc<Stream>, runtime: Handle) -> Self {
        Self { stream, runtime }
    }

    /// Which stream it feeds.
    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Where tasks run.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Feeds the recorder; returns what it wants to ask the outside. Waiting readers are woken by
    /// [`Stream::announce`], so that a burst wakes them once.
    pub(crate) fn feed(&self, input: impl FnOnce(&mut Recorder, Now)) -> Vec<Ask> {
        self.finish(self.stream.feed(input))
    }

    /// Does what an input left to do; returns what the recorder wants to ask the outside.
    fn finish(&self, outcome: Outcome) -> Vec<Ask> {
        let Outcome { asks, happenings, retired } = outcome;
        for happening in happenings {
            self.log(happening);
        }
        self.free(retired);
        asks
    }

    /// Feeds a single input: waiting readers are woken at once.
    pub(crate) fn tell(&self, input: impl FnOnce(&mut Recorder, Now)) {
        // Only sockets are ever asked something.
        let _asks = self.feed(input);
        self.stream.announce();
    }

    /// The engine was there at `at`, and all that it had published by then has been fed.
    pub(crate) fn prove(&self, at: Instant) -> Vec<Ask> {
        self.finish(self.stream.prove(at))
    }

    /// Loads a whole state from another plane.
    pub(crate) fn load(&self, state: MirroredState) {
        let _asks = self.finish(self.stream.load(state));
        self.stream.announce();
    }

    /// Takes the stream off the plane. Its source may still speak; it is not recorded.
    pub(crate) fn remove(&self) {
        let Outcome { retired, .. } = self.stream.remove();
        self.free(retired);
    }

    /// Freeing a large state takes a while: not where somebody waits.
    fn free(&self, retired: Vec<State>) {
        if !retired.is_empty() {
            self.runtime.spawn_blocking(move || drop(retired));
        }
    }

    fn log(&self, happening: Happening) {
        self.stream.remark(Said::of(&happening));
        let stream = self.stream.id();
        match happening {
            Happening::Continuity(continuity) => {
                info!(%stream, continuity = %continuity, "continuity changed");
            }
            Happening::Trust(Trust::Exact, _) => info!(%stream, trust = %Trust::Exact, "trust changed"),
            Happening::Trust(trust, reason) => {
                let reason = reason.map_or("none", kvplane_core::Reason::as_str);
                warn!(%stream, %trust, reason, "trust changed");
            }
            Happening::Epoch(epoch, cause) => {
                warn!(%stream, %epoch, proven = cause.proven(), cause = cause.as_str(), "new epoch");
            }
            Happening::CaughtUp { batches, gaps_filled } => info!(%stream, batches, gaps_filled, "replayed"),
            Happening::Lost(reason) => warn!(%stream, %reason, "batches lost; known blocks dropped"),
            Happening::UnprovenFlush => {
                warn!(%stream, "flush not confirmed by the event stream before the deadline; known blocks dropped");
            }
            Happening::ForeignReplay => {
                warn!(%stream, "the replay address answers with another publisher's batches; not asking it again");
            }
            Happening::ForeignRank(rank) => warn!(%stream, rank, "a batch names another rank"),
            Happening::PassedOver(PassedOver { kind, reason, count }) => {
                warn!(%stream, kind, reason, count, "event skipped");
            }
            Happening::Void(misfit) => {
                warn!(%stream, reason = misfit.as_str(), %misfit, "mirror out of sync; requesting a snapshot");
            }
            Happening::Misdirected(kind) => {
                error!(%stream, kind, "ignored an input for another kind of source");
            }
            Happening::Undecodable { sequence, reason, count } => {
                warn!(%stream, engine_sequence = sequence, reason, count, "batch cannot be decoded");
            }
        }
    }
}
