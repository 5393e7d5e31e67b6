//! One stream's state, kept exact by the plane's messages. No IO: messages go in, state can be read.
//!
//! ```text
//!                 Reset            chunk, chunk, …, last
//!   Void ───────────────> Loading ───────────────────────> Current ──┐ batch
//!    ^  any error            │ ^                             │  ^    │
//!    └───────────────────────┴─┼─────────────────────────────┤  └────┘
//!                              └───────────── Reset ─────────┘
//! ```
//!
//! What a snapshot brings is gathered beside the state that can be read, and replaces it with its last chunk,
//! once the digest was found right. Every batch is checked against its digest too.

mod state;
#[cfg(test)]
mod tests;
mod view;

use kvplane_core::{Continuity, Cursor, Epoch, StateDigest, StreamId};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::subscribe_response::Item;

use self::state::State;
pub use self::view::{Block, BlockCounts, Parent, Place};
use crate::error::ReplicaError;
use crate::worth::TrustReport;

/// What a replica keeps besides what is held where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicaOptions {
    /// Keep the blocks' tokens. They are prompts, and most of the memory.
    pub keep_tokens: bool,
}

/// What a message did.
#[allow(
    clippy::large_enum_variant,
    reason = "matched where it is made; a box would cost an allocation for every batch"
)]
#[derive(Debug, Clone, PartialEq)]
pub enum Applied {
    /// What is held is void; a snapshot follows. The old state can be read until it is complete.
    Reset(proto::ResetReason),
    /// A part of a snapshot was taken; nothing that can be read has changed.
    Chunk,
    /// A snapshot is complete and replaced what was held.
    Loaded,
    /// The stream stands elsewhere; nothing else has changed.
    Continuity,
    /// The message is of a kind that this build does not know. Nothing has changed.
    Nothing,
    /// A batch was applied; returned so that a caller can see what happened.
    Batch(proto::Batch),
}

/// The replica of one stream.
#[derive(Debug)]
pub struct Replica {
    stream: StreamId,
    options: ReplicaOptions,
    phase: Phase,
    state: State,
    /// Where `state` stands; `None` before the first snapshot.
    cursor: Option<Cursor>,
    engine_sequence: Option<u64>,
    trust: TrustReport,
    continuity: Continuity,
}

#[derive(Debug)]
enum Phase {
    /// The state, if any, is not what the plane has.
    Void,
    /// A snapshot of what is at `cursor` is on its way.
    Loading { cursor: Cursor, next_chunk: u32, state: State },
    /// The state is what the plane had at the replica's cursor.
    Current,
}

/// States that are over. Dropping a million blocks takes a while: not under a lock that readers want.
#[derive(Debug, Default)]
pub(crate) struct Retired(Vec<State>);

impl Replica {
    /// A replica that has heard nothing.
    pub fn new(stream: StreamId, options: ReplicaOptions) -> Self {
        Self {
            stream,
            options,
            phase: Phase::Void,
            state: State::default(),
            cursor: None,
            engine_sequence: None,
            trust: TrustReport::unheard(),
            continuity: Continuity::Connecting,
        }
    }

    /// Applies the next message of the stream. After an error, [`ReplicaError::Foreign`] apart, the replica
    /// is void: subscribe again; [`Self::resume`] says from where.
    pub fn apply(&mut self, message: proto::SubscribeResponse) -> Result<Applied, ReplicaError> {
        self.apply_retiring(message, &mut Retired::default())
    }

    pub(crate) fn apply_retiring(
        &mut self,
        message: proto::SubscribeResponse,
        retired: &mut Retired,
    ) -> Result<Applied, ReplicaError> {
        if message.engine != self.stream.engine.as_str() || message.rank != self.stream.rank {
            let got = StreamId::new(message.engine.as_str().into(), message.rank);
            return Err(ReplicaError::Foreign { expected: self.stream.clone(), got });
        }
        let cursor = Cursor { epoch: Epoch::from_raw(message.epoch), sequence: message.sequence };
        let applied = match message.item {
            Some(Item::Reset(reset)) => Ok(self.reset(cursor, &reset, retired)),
            Some(Item::Snapshot(chunk)) => self.chunk(cursor, &chunk, retired),
            Some(Item::Batch(batch)) => self.batch(cursor, batch, retired),
            Some(Item::Gone(_)) => Err(ReplicaError::Gone),
            Some(Item::Standing(continuity)) => {
                self.continuity = kvplane_proto::continuity(continuity.continuity).unwrap_or(self.continuity);
                Ok(Applied::Continuity)
            }
            // A later version's.
            None => Ok(Applied::Nothing),
        };
        if applied.is_err() {
            self.interrupt_retiring(retired);
            self.phase = Phase::Void;
        }
        applied
    }

    /// The subscription ended. A snapshot that was under way will not be completed.
    pub fn interrupt(&mut self) {
        self.interrupt_retiring(&mut Retired::default());
    }

    pub(crate) fn interrupt_retiring(&mut self, retired: &mut Retired) {
        if let Phase::Loading { state, .. } = &mut self.phase {
            retired.0.push(std::mem::take(state));
            self.phase = Phase::Void;
        }
    }

    fn reset(&mut self, cursor: Cursor, reset: &proto::Reset, retired: &mut Retired) -> Applied {
        self.interrupt_retiring(retired);
        self.phase = Phase::Loading { cursor, next_chunk: 0, state: State::default() };
        Applied::Reset(reset.reason())
    }

    fn chunk(
        &mut self,
        cursor: Cursor,
        chunk: &proto::SnapshotChunk,
        retired: &mut Retired,
    ) -> Result<Applied, ReplicaError> {
        let Phase::Loading { cursor: due, next_chunk, state } = &mut self.phase else {
            return Err(ReplicaError::NotStarted);
        };
        if cursor != *due {
            return Err(ReplicaError::OutOfOrder { after: *due, got: cursor });
        }
        if chunk.index != *next_chunk {
            return Err(ReplicaError::Chunk { expected: *next_chunk, got: chunk.index });
        }
        for stored in &chunk.stored {
            state.store(stored, self.options.keep_tokens)?;
        }
        if !chunk.last {
            *next_chunk = next_chunk.saturating_add(1);
            return Ok(Applied::Chunk);
        }
        verify(cursor, chunk.digest, state.digest())?;
        let trust = chunk.trust.as_ref().ok_or(ReplicaError::Malformed("a snapshot without trust"))?;
        let continuity = kvplane_proto::continuity(chunk.continuity)
            .ok_or(ReplicaError::Malformed("a snapshot without continuity"))?;
        retired.0.push(std::mem::replace(&mut self.state, std::mem::take(state)));
        self.phase = Phase::Current;
        self.cursor = Some(cursor);
        self.engine_sequence = chunk.engine_sequence;
        self.trust = trust.into();
        self.continuity = continuity;
        Ok(Applied::Loaded)
    }

    fn batch(
        &mut self,
        cursor: Cursor,
        batch: proto::Batch,
        retired: &mut Retired,
    ) -> Result<Applied, ReplicaError> {
        let before = match (&self.phase, self.cursor) {
            (Phase::Loading { cursor: due, .. }, _) => {
                return Err(ReplicaError::OutOfOrder { after: *due, got: cursor });
            }
            (Phase::Current, Some(before)) => before,
            _ => return Err(ReplicaError::NotStarted),
        };
        if cursor.epoch != before.epoch || before.sequence.checked_add(1) != Some(cursor.sequence) {
            return Err(ReplicaError::OutOfOrder { after: before, got: cursor });
        }
        if let Err(error) = self.events(cursor, &batch, retired) {
            // Half of it may be in the state: that is nobody's state.
            self.forget(retired);
            return Err(error);
        }
        self.cursor = Some(cursor);
        self.engine_sequence = batch.engine_sequence.or(self.engine_sequence);
        if let Some(trust) = &batch.trust {
            self.trust = trust.into();
        }
        self.continuity = kvplane_proto::continuity(batch.continuity).unwrap_or(self.continuity);
        Ok(Applied::Batch(batch))
    }

    fn events(
        &mut self,
        cursor: Cursor,
        batch: &proto::Batch,
        retired: &mut Retired,
    ) -> Result<(), ReplicaError> {
        // An event of a kind that this build does not know is passed over: the digest tells whether it
        // mattered.
        for kind in batch.events.iter().filter_map(|event| event.kind.as_ref()) {
            retired.0.extend(self.state.apply(kind, self.options.keep_tokens)?);
        }
        verify(cursor, batch.digest, self.state.digest())
    }

    fn forget(&mut self, retired: &mut Retired) {
        retired.0.push(std::mem::take(&mut self.state));
        self.cursor = None;
        self.engine_sequence = None;
        self.trust = TrustReport::unheard();
        self.continuity = Continuity::Connecting;
    }

    // --- reading
    // ---------------------------------------------------------------------------------------------

    /// Whose replica it is.
    pub fn stream(&self) -> &StreamId {
        &self.stream
    }

    /// Whether what can be read is what the plane had at [`Self::cursor`]. False before the first snapshot is
    /// complete, and from a reset or an error until the next one is.
    pub fn is_current(&self) -> bool {
        matches!(self.phase, Phase::Current)
    }

    /// Where a new subscription goes on; `None`: with a snapshot.
    pub fn resume(&self) -> Option<Cursor> {
        self.cursor.filter(|_| self.is_current())
    }

    /// The position of what can be read; `None` while nothing was loaded.
    pub fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    /// The publisher's life that it belongs to.
    pub fn epoch(&self) -> Option<Epoch> {
        self.cursor.map(|cursor| cursor.epoch)
    }

    /// The engine's own number of the last batch.
    pub fn engine_sequence(&self) -> Option<u64> {
        self.engine_sequence
    }

    /// What it is worth.
    pub fn trust(&self) -> &TrustReport {
        &self.trust
    }

    /// Where the stream stood.
    pub fn continuity(&self) -> Continuity {
        self.continuity
    }

    /// The digest of what is held: equal to the plane's at an equal position.
    pub fn digest(&self) -> StateDigest {
        self.state.digest()
    }

    /// Blocks held, by tier.
    pub fn blocks(&self) -> BlockCounts {
        self.state.counts()
    }

    /// Whether any place holds the block.
    pub fn holds(&self, hash: u64) -> bool {
        self.state.holds(hash)
    }

    /// What is known of a block that is held, or that held ones build on.
    pub fn get(&self, hash: u64) -> Option<Block<'_>> {
        self.state.get(hash)
    }

    /// Every block that is held, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Block<'_>> {
        self.state.held()
    }
}

fn verify(at: Cursor, theirs: Option<proto::Digest>, ours: StateDigest) -> Result<(), ReplicaError> {
    let theirs = theirs.ok_or(ReplicaError::Malformed("no digest"))?;
    let theirs = StateDigest::from_parts(theirs.low, theirs.high);
    if theirs == ours { Ok(()) } else { Err(ReplicaError::DigestMismatch { at, theirs, ours }) }
}
