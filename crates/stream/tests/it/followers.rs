//! Two kinds of consumers: a replica that sets what it receives, and a reader of transitions that counts
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use kvplane_core::{Cursor, PlaceSeed, StateDigest};
use kvplane_stream::{Change, Ledger, Loss, Place, Range, Recorder, Snapshot, Transition};

/// Takes a whole snapshot, a few slots at a time.
pub fn snapshot(ledger: &mut Ledger) -> Snapshot {
    let mut builder = ledger.begin_snapshot();
    loop {
        if ledger.step_snapshot(&mut builder, 3).is_err() {
            builder = ledger.begin_snapshot();
        }
        if builder.gather() {
            return builder.finish();
        }
    }
}

type PlaceKey = (Option<String>, Option<u32>);

fn key(place: &Place) -> PlaceKey {
    (place.medium.as_deref().map(str::to_owned), place.group)
}

#[derive(Default)]
pub struct Replica {
    cursor: Option<Cursor>,
    blocks: BTreeMap<(PlaceKey, u64), u32>,
}

impl Replica {
    pub fn held(&self) -> BTreeMap<u64, u32> {
        let mut held = BTreeMap::new();
        for ((_, hash), copies) in &self.blocks {
            *held.entry(*hash).or_default() += copies;
        }
        held
    }

    fn digest(&self) -> StateDigest {
        let mut digest = StateDigest::default();
        for (((medium, group), hash), copies) in &self.blocks {
            digest.change(PlaceSeed::new(medium.as_deref(), None, None, *group), *hash, 0, *copies);
        }
        digest
    }

    pub fn follow(&mut self, recorder: &mut Recorder) {
        let entries = match self.cursor {
            Some(cursor) => recorder.ledger().read_after(cursor, usize::MAX),
            None => Err(Loss::Expired),
        };
        let entries = entries.unwrap_or_else(|_| {
            let snapshot = snapshot(recorder.ledger_mut());
            self.blocks.clear();
            let mut seen = BTreeSet::new();
            for at in snapshot.parents_first() {
                let block = &snapshot.image.blocks[at as usize];
                if let Some(chain) = block.attached_chain()
                    && let kvplane_stream::Parent::Block(parent) = chain.parent()
                {
                    assert!(seen.contains(&parent), "parents come first");
                }
                seen.insert(block.hash);
                for holding in &block.holdings {
                    let place = &snapshot.image.places[usize::from(holding.place)];
                    self.blocks.insert((key(place), block.hash), holding.copies);
                }
            }
            self.cursor = Some(snapshot.cursor);
            assert_eq!(self.digest(), snapshot.digest);
            recorder.ledger().read_after(snapshot.cursor, usize::MAX).unwrap()
        });
        for entry in entries {
            for change in &entry.changes {
                self.apply(change);
            }
            self.cursor = Some(Cursor { epoch: entry.epoch, sequence: entry.sequence });
            assert_eq!(self.digest(), entry.digest, "equal digests at equal positions");
        }
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Stored(stored) => {
                for block in &stored.blocks {
                    self.blocks.insert((key(&stored.place), block.hash), block.copies);
                }
            }
            Change::Removed { place, blocks } => {
                for block in blocks {
                    if block.copies == 0 {
                        self.blocks.remove(&(key(place), block.hash));
                    } else {
                        self.blocks.insert((key(place), block.hash), block.copies);
                    }
                }
            }
            Change::Cleared { places, .. } => {
                let gone: Vec<PlaceKey> = places.iter().map(|place| key(place)).collect();
                self.blocks.retain(|(place, _), _| !gone.contains(place));
            }
            Change::Dropped { .. } => self.blocks.clear(),
        }
    }
}

#[derive(Default)]
pub struct TransitionReader {
    next: Option<u64>,
    pub held: BTreeSet<u64>,
}

impl TransitionReader {
    pub fn follow(&mut self, recorder: &mut Recorder) {
        let range = match self.next {
            Some(next) => recorder.ledger().transitions_from(next),
            None => Range::Outside,
        };
        match range {
            Range::Entries { entries, last } => {
                let mut id = entries[0].first_event_id;
                for entry in &entries {
                    assert_eq!(entry.first_event_id, id, "event ids have no gaps");
                    for transition in &entry.transitions {
                        if id >= self.next.unwrap() {
                            self.apply(transition);
                        }
                        id += 1;
                    }
                }
                assert_eq!(id, last + 1);
                self.next = Some(last + 1);
            }
            Range::TooNew { newest } => assert_eq!(self.next, Some(newest + 1), "caught up"),
            Range::Outside => {
                let snapshot = snapshot(recorder.ledger_mut());
                self.held.clear();
                for transition in snapshot.as_transitions() {
                    self.apply(&transition);
                }
                self.next = Some(snapshot.last_event_id + 1);
            }
        }
    }

    fn apply(&mut self, transition: &Transition) {
        match transition {
            Transition::Stored { blocks, .. } => {
                for block in blocks {
                    assert!(self.held.insert(block.hash), "stored twice: {:x}", block.hash);
                }
            }
            Transition::Removed { hashes, .. } => {
                for hash in hashes {
                    assert!(self.held.remove(hash), "removed what was not there");
                }
            }
            Transition::Cleared => self.held.clear(),
        }
    }
}
