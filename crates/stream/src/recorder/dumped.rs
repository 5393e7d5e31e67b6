//! What peers dump of a stream whose past is not known here.

use kvplane_core::Continuity;

use super::Recorder;
use super::follower::Follower;
use crate::clock::Now;
use crate::memory::Step;
use crate::peer_dump::{DumpOutcome, PeerDump, Position};

impl Recorder {
    /// Whether a peer's dump would be taken. If so, the stream makes ready for it: ask the peer after this.
    pub fn expect_dump(&mut self) -> bool {
        let published = matches!(self.follower, Follower::Published(_));
        if published && self.continuity() == Continuity::Live {
            let expects = self.interpreter.expect_dump(&self.ledger);
            self.note_alone(|| Step::ExpectDump);
            expects
        } else {
            self.interpreter.forget_dump();
            self.note_alone(|| Step::ForgetDump);
            false
        }
    }

    /// All of a dump was taken: no other is wanted until something is lost again.
    pub fn finish_dump(&mut self) {
        self.interpreter.finish_dump();
        self.note_alone(|| Step::FinishDump);
    }

    /// A peer dumped what it knows of the stream's engine. A large dump is taken in parts, so that nobody
    /// waits for all of it; [`Self::finish_dump`] is its end.
    pub fn take_dump(&mut self, now: Now, dump: &PeerDump) -> DumpOutcome {
        if self.continuity() != Continuity::Live {
            return DumpOutcome::Early("the stream is not live");
        }
        if let Some(outcome) = dump.position.and_then(|position| self.compare(position)) {
            return outcome;
        }
        let outcome = self.interpreter.take_dump(&mut self.ledger, dump, now);
        self.note(now, || Step::TakeDump(dump.clone()));
        self.note_trust();
        outcome
    }

    /// Why a dump of a state after a batch cannot be taken, or not yet.
    fn compare(&self, position: Position) -> Option<DumpOutcome> {
        let Follower::Published(sequencer) = &self.follower else {
            return Some(DumpOutcome::NotWanted("its source is no socket"));
        };
        match sequencer.digest_of(position.sequence) {
            Some(digest) if digest == position.digest => None,
            Some(_) => Some(DumpOutcome::Stale("it is of another life of the engine")),
            None if sequencer.last_sequence().is_none_or(|last| position.sequence > last) => {
                Some(DumpOutcome::Early("its last batch was not read here yet"))
            }
            None => Some(DumpOutcome::Stale("its last batch is too old to be compared")),
        }
    }
}
