//! How old the proof is that a stream's engine is there.

use std::time::{Duration, Instant};

use kvplane_core::{Continuity, Cursor};
use parking_lot::Mutex;

/// The proof of one stream, from its engine to here.
#[derive(Debug)]
pub(crate) struct Freshness {
    max_silence: Duration,
    proof: Mutex<Proof>,
}

#[derive(Debug, Default)]
struct Proof {
    at: Option<Instant>,
    /// A later proof, which counts once all up to this position is here.
    owed: Option<(Cursor, Instant)>,
}

impl Freshness {
    pub(crate) fn new(max_silence: Duration) -> Self {
        Self { max_silence, proof: Mutex::default() }
    }

    /// The plane was at `cursor` when it said that the engine had been there at `at`; the replica is at
    /// `ours`.
    pub(crate) fn prove(&self, cursor: Cursor, at: Instant, ours: Option<Cursor>) {
        let mut proof = self.proof.lock();
        proof.owed = Some((cursor, at));
        proof.settle(ours);
    }

    /// The replica has come to be here.
    pub(crate) fn moved(&self, ours: Option<Cursor>) {
        self.proof.lock().settle(ours);
    }

    /// How old the proof is; `None` before the first.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.proof.lock().at.map(|at| at.elapsed())
    }

    /// A stream's continuity, given what the plane reported.
    pub(crate) fn judge(&self, reported: Continuity) -> Continuity {
        let fresh = self.age().is_some_and(|age| age <= self.max_silence);
        if reported == Continuity::Live && !fresh { Continuity::Recovering } else { reported }
    }
}

impl Proof {
    fn settle(&mut self, ours: Option<Cursor>) {
        let is_here =
            |at: &Cursor| ours.is_some_and(|ours| (ours.epoch, ours.sequence) >= (at.epoch, at.sequence));
        if let Some((_, at)) = self.owed.take_if(|(cursor, _)| is_here(cursor)) {
            self.at = self.at.max(Some(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvplane_core::Epoch;

    fn cursor(sequence: u64) -> Cursor {
        Cursor { epoch: Epoch::from_raw(1), sequence }
    }

    #[test]
    fn a_proof_counts_once_everything_before_it_is_here() {
        let freshness = Freshness::new(Duration::from_hours(1));
        assert_eq!(freshness.judge(Continuity::Live), Continuity::Recovering);
        freshness.prove(cursor(5), kvplane_runtime::now(), Some(cursor(4)));
        assert_eq!((freshness.age(), freshness.judge(Continuity::Live)), (None, Continuity::Recovering));
        freshness.moved(Some(cursor(5)));
        assert_eq!(freshness.judge(Continuity::Live), Continuity::Live);
        assert_eq!(freshness.judge(Continuity::Down), Continuity::Down);
    }

    #[test]
    fn an_old_proof_is_not_live() {
        let freshness = Freshness::new(Duration::ZERO);
        let earlier = kvplane_runtime::now().checked_sub(Duration::from_millis(1)).unwrap();
        freshness.prove(cursor(5), earlier, Some(cursor(5)));
        assert_eq!(freshness.judge(Continuity::Live), Continuity::Recovering);
    }
}
