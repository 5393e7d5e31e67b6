//! Answering replay requests, rightly or not.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use kvplane_socket::{ReplayRequestIn, ReplyFraming, RouterSocket, SocketError};

use super::outbox::noise;
use crate::config::SimConfig;
use crate::fault::ReplayMode;

/// Pause between two batches of a slow answer.
const SLOW_STEP: Duration = Duration::from_millis(100);

/// The last batches, oldest first.
pub(crate) struct Ring {
    batches: VecDeque<(u64, Vec<u8>)>,
    limit: usize,
}

impl Ring {
    pub(crate) fn new(limit: usize) -> Self {
        Self { batches: VecDeque::new(), limit }
    }

    pub(crate) fn push(&mut self, sequence: u64, payload: Vec<u8>) {
        self.batches.push_back((sequence, payload));
        while self.batches.len() > self.limit {
            self.batches.pop_front();
        }
    }

    fn from(&self, start: u64) -> impl Iterator<Item = &(u64, Vec<u8>)> {
        self.batches.iter().skip(self.batches.partition_point(|(sequence, _)| *sequence < start))
    }
}

/// The answering side of a publisher.
pub(crate) struct Replies {
    framing: ReplyFraming,
    topic: String,
    mode: ReplayMode,
    /// Slow answers under way: whom to answer, from which sequence on, and when.
    slow: Vec<(ReplayRequestIn, Instant)>,
}

impl Replies {
    pub(crate) fn new(config: &SimConfig) -> Self {
        let framing =
            if config.profile.replay_has_topic() { ReplyFraming::WithTopic } else { ReplyFraming::Plain };
        Self { framing, topic: config.topic.clone(), mode: ReplayMode::On, slow: Vec::new() }
    }

    pub(crate) fn set_mode(&mut self, mode: ReplayMode) {
        self.mode = mode;
    }

    /// Drops answers under way: their askers' connection is gone.
    pub(crate) fn forget(&mut self) {
        self.slow.clear();
    }

    /// When the next batch of a slow answer is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.slow.iter().map(|(_, due)| *due).min()
    }

    /// Answers what was asked, and goes on with slow answers.
    pub(crate) fn serve(&mut self, router: &RouterSocket, ring: &Ring) {
        if let Err(error) = self.try_serve(router, ring) {
            tracing::warn!(%error, "replay request not answered");
        }
    }

    fn try_serve(&mut self, router: &RouterSocket, ring: &Ring) -> Result<(), SocketError> {
        while let Some(request) = router.recv_request(Duration::ZERO)? {
            self.answer(router, ring, request)?;
        }
        let now = kvplane_runtime::now();
        for (mut request, due) in std::mem::take(&mut self.slow) {
            if due > now {
                self.slow.push((request, due));
                continue;
            }
            match ring.from(request.start).next() {
                Some((sequence, payload)) => {
                    self.batch(router, &request, *sequence, payload)?;
                    if self.mode != ReplayMode::Endless {
                        request.start = sequence + 1;
                    }
                    self.slow.push((request, now + SLOW_STEP));
                }
                None => router.reply_end(&request.identity, self.framing)?,
            }
        }
        Ok(())
    }

    fn answer(
        &mut self,
        router: &RouterSocket,
        ring: &Ring,
        request: ReplayRequestIn,
    ) -> Result<(), SocketError> {
        let wanted = ring.from(request.start);
        let count = match self.mode {
            ReplayMode::Off => return Ok(()),
            ReplayMode::Slow | ReplayMode::Endless => {
                self.slow.push((request, kvplane_runtime::now() + SLOW_STEP));
                return Ok(());
            }
            ReplayMode::Nonsense => return router.reply_frames(&request.identity, &[b"", b"nonsense"]),
            ReplayMode::Short => ring.from(request.start).count().div_ceil(2),
            ReplayMode::On | ReplayMode::Garbage => usize::MAX,
        };
        for (sequence, payload) in wanted.take(count) {
            if self.mode == ReplayMode::Garbage {
                self.batch(router, &request, *sequence, &noise(payload.len()))?;
            } else {
                self.batch(router, &request, *sequence, payload)?;
            }
        }
        router.reply_end(&request.identity, self.framing)
    }

    fn batch(
        &self,
        router: &RouterSocket,
        request: &ReplayRequestIn,
        sequence: u64,
        payload: &[u8],
    ) -> Result<(), SocketError> {
        router.reply_batch(&request.identity, self.framing, self.topic.as_bytes(), sequence, payload)
    }
}
