//! Replicas against a plane made up here: a naive state, its messages, and everything that can happen to
//! them.

use std::collections::BTreeMap;

use kvplane_core::{Continuity, PlaceSeed, StateDigest, StreamId, Tier, Trust};
use proptest::prelude::*;

use super::{Applied, Parent, Replica, ReplicaOptions};
use crate::error::ReplicaError;
use crate::proto::subscribe_response::Item;
use crate::proto::{self, ResetReason, event::Kind};

const MEDIA: [(&str, proto::Tier); 2] = [("GPU", proto::Tier::Device), ("CPU", proto::Tier::Host)];

fn place(at: usize) -> proto::Place {
    let (medium, tier) = MEDIA[at];
    proto::Place {
        tier: tier.into(),
        medium: Some(medium.to_owned()),
        group: Some(0),
        ..proto::Place::default()
    }
}

fn trust(level: proto::TrustLevel) -> proto::Trust {
    proto::Trust { level: level.into(), degradations: Vec::new() }
}

/// Copies by (place, hash).
type Copies = BTreeMap<(usize, u64), u32>;

fn digest_of(copies: &Copies) -> StateDigest {
    let mut digest = StateDigest::default();
    for (&(at, hash), &copies) in copies {
        digest.change(PlaceSeed::new(Some(MEDIA[at].0), None, None, Some(0)), hash, 0, copies);
    }
    digest
}

/// What a random operation does to the plane.
#[derive(Debug, Clone)]
enum Op {
    Store { place: usize, first: u64, count: u64 },
    Remove { place: usize, hash: u64 },
    Clear { places: Vec<usize> },
    Drop,
    Nothing,
    NewEpoch,
}

/// A plane of one stream, in the most naive way.
struct Plane {
    epoch: u64,
    sequence: u64,
    copies: Copies,
    /// All batches of this epoch, and the state after each; `history[0]` is the beginning.
    history: Vec<(Option<proto::SubscribeResponse>, Copies)>,
}

impl Plane {
    fn new(epoch: u64) -> Self {
        Self { epoch, sequence: epoch << 20, copies: Copies::new(), history: vec![(None, Copies::new())] }
    }

    fn message(&self, sequence: u64, item: Item) -> proto::SubscribeResponse {
        proto::SubscribeResponse {
            engine: "e".to_owned(),
            rank: 0,
            epoch: self.epoch,
            sequence,
            item: Some(item),
        }
    }

    fn run(&mut self, op: &Op) {
        let event = match op {
            Op::NewEpoch => {
                *self = Self::new(self.epoch + 1);
                return;
            }
            Op::Store { place: at, first, count } => {
                let blocks = (*first..first + count).map(|hash| {
                    let copies = self.copies.entry((*at, hash)).or_default();
                    *copies += 1;
                    block(hash, *copies)
                });
                Some(Kind::Stored(proto::Stored {
                    blocks: blocks.collect(),
                    place: Some(place(*at)),
                    block_size: 4,
                    ..proto::Stored::default()
                }))
            }
            Op::Remove { place: at, hash } => self.copies.get_mut(&(*at, *hash)).map(|copies| {
                *copies -= 1;
                let blocks = vec![proto::RemovedBlock { hash: *hash, copies: *copies }];
                Kind::Removed(proto::Removed { place: Some(place(*at)), blocks })
            }),
            Op::Clear { places } => {
                self.copies.retain(|(at, _), _| !places.contains(at));
                let places = places.iter().map(|&at| place(at)).collect();
                Some(Kind::Cleared(proto::Cleared { places }))
            }
            Op::Drop => {
                self.copies.clear();
                Some(Kind::Dropped(proto::Dropped { reason: "gap".to_owned() }))
            }
            Op::Nothing => None,
        };
        self.copies.retain(|_, copies| *copies > 0);
        self.sequence += 1;
        let (low, high) = digest_of(&self.copies).parts();
        let batch = proto::Batch {
            events: event.into_iter().map(|kind| proto::Event { kind: Some(kind) }).collect(),
            digest: Some(proto::Digest { low, high }),
            ..proto::Batch::default()
        };
        let message = self.message(self.sequence, Item::Batch(batch));
        self.history.push((Some(message), self.copies.clone()));
    }

    /// What a subscriber is sent: what follows its cursor, or a reset and a snapshot in chunks of `chunk`
    /// blocks.
    fn answer(&self, replica: &Replica, chunk: usize) -> Vec<proto::SubscribeResponse> {
        if let Some(cursor) = replica.resume()
            && cursor.epoch.as_u64() == self.epoch
        {
            let after = (cursor.sequence - (self.epoch << 20)) as usize;
            return self.history[after + 1..].iter().filter_map(|(message, _)| message.clone()).collect();
        }
        let reset = proto::Reset { reason: ResetReason::OtherEpoch.into(), ..Default::default() };
        let mut messages = vec![self.message(self.sequence, Item::Reset(reset))];
        let entries: Vec<_> = self.copies.iter().collect();
        let chunks = entries.len().div_ceil(chunk).max(1);
        let (low, high) = digest_of(&self.copies).parts();
        for index in 0..chunks {
            let blocks = entries.iter().skip(index * chunk).take(chunk);
            let stored = blocks.map(|&(&(at, hash), &copies)| proto::Stored {
                place: Some(place(at)),
                blocks: vec![block(hash, copies)],
                ..proto::Stored::default()
            });
            let last = index + 1 == chunks;
            messages.push(self.message(
                self.sequence,
                Item::Snapshot(proto::SnapshotChunk {
                    index: index as u32,
                    last,
                    stored: stored.collect(),
                    trust: last.then(|| trust(proto::TrustLevel::Exact)),
                    continuity: if last { proto::Continuity::Live.into() } else { 0 },
                    digest: last.then_some(proto::Digest { low, high }),
                    ..proto::SnapshotChunk::default()
                }),
            ));
        }
        messages
    }
}

/// Chains of eight: block 8 k begins a prompt, the others follow the one before.
fn block(hash: u64, copies: u32) -> proto::Block {
    proto::Block {
        hash,
        copies,
        root: hash.is_multiple_of(8),
        parent: (!hash.is_multiple_of(8)).then(|| hash - 1),
        content_hash: Some(hash * 31),
        token_ids: vec![hash as u32; 4],
        ..proto::Block::default()
    }
}

fn replica() -> Replica {
    Replica::new(StreamId::new("e".into(), 0), ReplicaOptions::default())
}

fn held(replica: &Replica) -> Copies {
    let mut copies = Copies::new();
    for block in replica.iter() {
        for (place, number) in block.copies() {
            let at = MEDIA.iter().position(|(medium, _)| place.medium.as_deref() == Some(medium)).unwrap();
            copies.insert((at, block.hash()), number);
        }
    }
    copies
}

/// A plane with something in it, and a replica of it.
fn loaded() -> (Plane, Replica) {
    let mut plane = Plane::new(7);
    plane.run(&Op::Store { place: 0, first: 0, count: 5 });
    let mut replica = replica();
    for message in plane.answer(&replica, 2) {
        replica.apply(message).unwrap();
    }
    (plane, replica)
}

#[test]
fn a_snapshot_is_not_seen_before_it_is_complete() {
    let mut plane = Plane::new(7);
    plane.run(&Op::Store { place: 0, first: 0, count: 5 });
    let mut replica = replica();
    let mut messages = plane.answer(&replica, 2);
    let last = messages.pop().unwrap();
    for message in messages {
        replica.apply(message).unwrap();
        assert!(!replica.is_current());
        assert_eq!(replica.iter().count(), 0);
        assert_eq!(replica.cursor(), None);
    }
    assert_eq!(replica.apply(last).unwrap(), Applied::Loaded);
    assert!(replica.is_current());
    assert_eq!(replica.blocks().of(Tier::Device), 5);
    assert_eq!((replica.trust().level, replica.continuity()), (Trust::Exact, Continuity::Live));

    // A later reset leaves the old state to be read.
    plane.run(&Op::NewEpoch);
    plane.run(&Op::Store { place: 1, first: 8, count: 2 });
    let mut messages = plane.answer(&replica, 1).into_iter();
    assert_eq!(replica.apply(messages.next().unwrap()).unwrap(), Applied::Reset(ResetReason::OtherEpoch));
    assert_eq!(replica.apply(messages.next().unwrap()).unwrap(), Applied::Chunk);
    assert!(!replica.is_current());
    assert_eq!(replica.blocks().of(Tier::Device), 5);
    assert_eq!(replica.resume(), None);
    replica.apply(messages.next().unwrap()).unwrap();
    assert!(replica.is_current() && replica.holds(8) && !replica.holds(0));
}

#[test]
fn a_corrupted_batch_is_found_and_the_next_snapshot_heals() {
    let (mut plane, mut replica) = loaded();
    plane.run(&Op::Store { place: 0, first: 0, count: 1 });
    let mut message = plane.answer(&replica, 1).remove(0);
    let Some(Item::Batch(batch)) = &mut message.item else { panic!("a batch") };
    let Some(Kind::Stored(stored)) = &mut batch.events[0].kind else { panic!("a store") };
    stored.blocks[0].copies += 1;
    let error = replica.apply(message).unwrap_err();
    assert!(matches!(error, ReplicaError::DigestMismatch { .. }), "{error}");
    assert!(!replica.is_current());
    assert_eq!(replica.resume(), None);
    assert_eq!(replica.iter().count(), 0, "what is known to be wrong is not shown");
    for message in plane.answer(&replica, 3) {
        replica.apply(message).unwrap();
    }
    assert!(replica.is_current());
    assert_eq!(held(&replica), plane.copies);
}

#[test]
fn a_corrupted_snapshot_leaves_the_old_state_but_not_as_current() {
    let (mut plane, mut replica) = loaded();
    plane.run(&Op::NewEpoch);
    plane.run(&Op::Store { place: 1, first: 0, count: 3 });
    let mut messages = plane.answer(&replica, 8);
    let Some(Item::Snapshot(chunk)) = &mut messages[1].item else { panic!("a chunk") };
    chunk.stored.pop();
    replica.apply(messages.remove(0)).unwrap();
    let error = replica.apply(messages.remove(0)).unwrap_err();
    assert!(matches!(error, ReplicaError::DigestMismatch { .. }), "{error}");
    assert!(!replica.is_current());
    assert_eq!(replica.blocks().total(), 5);
}

#[test]
fn what_does_not_belong_or_follow_is_an_error() {
    let (mut plane, mut replica) = loaded();
    for _ in 0..3 {
        plane.run(&Op::Nothing);
    }
    let messages = plane.answer(&replica, 1);

    let mut foreign = messages[0].clone();
    foreign.rank = 1;
    assert!(matches!(replica.apply(foreign), Err(ReplicaError::Foreign { .. })));
    assert!(replica.is_current(), "a foreign message says nothing of this stream");

    // Twice, with a hole, of another epoch: each on a fresh replica, and each is the end of it.
    let mut other_epoch = messages[0].clone();
    other_epoch.epoch += 1;
    let chunk = plane.answer(&super::Replica::new(replica.stream().clone(), replica.options), 1).remove(1);
    let mut empty = messages[0].clone();
    empty.item = None;
    let mut without_digest = messages[0].clone();
    if let Some(Item::Batch(batch)) = &mut without_digest.item {
        batch.digest = None;
    }
    assert!(matches!(replica.apply(empty), Ok(Applied::Nothing)), "a later version's");
    assert!(replica.is_current());
    for bad in [messages[1].clone(), other_epoch, chunk, without_digest] {
        let (_, mut replica) = loaded();
        assert!(replica.apply(bad.clone()).is_err(), "{bad:?}");
        assert!(!replica.is_current() && replica.resume().is_none());
        assert!(matches!(replica.apply(messages[0].clone()), Err(ReplicaError::NotStarted)));
    }
    replica.apply(messages[0].clone()).unwrap();
    assert!(matches!(replica.apply(messages[0].clone()), Err(ReplicaError::OutOfOrder { .. })), "twice");

    // A batch and a wrong chunk in the middle of a snapshot.
    let snapshot = plane.answer(&replica, 1);
    for bad in [messages[0].clone(), snapshot[2].clone()] {
        replica.apply(snapshot[0].clone()).unwrap();
        assert!(replica.apply(bad).is_err());
        assert!(!replica.is_current());
    }
}

#[test]
fn chains_are_known_over_holes_and_forgotten_with_their_last_block() {
    let (mut plane, mut replica) = loaded();
    let feed = |plane: &Plane, replica: &mut Replica| {
        for message in plane.answer(replica, 1) {
            replica.apply(message).unwrap();
        }
    };
    plane.run(&Op::Remove { place: 0, hash: 2 });
    feed(&plane, &mut replica);
    assert!(!replica.holds(2));
    let hole = replica.get(2).unwrap();
    assert_eq!((hole.parent(), hole.content_hash()), (Parent::Block(1), Some(62)));
    assert_eq!(hole.copies().count(), 0);
    assert_eq!(hole.tokens(), None, "not asked to keep them");
    assert_eq!(replica.get(0).unwrap().parent(), Parent::Root);
    for hash in [4, 3] {
        plane.run(&Op::Remove { place: 0, hash });
    }
    feed(&plane, &mut replica);
    assert!(replica.get(2).is_none(), "nobody builds on it any more");
    assert!(replica.holds(1));
}

#[test]
fn tokens_are_kept_when_asked_for() {
    let (plane, _) = loaded();
    let mut replica = Replica::new(StreamId::new("e".into(), 0), ReplicaOptions { keep_tokens: true });
    for message in plane.answer(&replica, 2) {
        replica.apply(message).unwrap();
    }
    assert_eq!(replica.get(3).unwrap().tokens(), Some(&[3, 3, 3, 3][..]));
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..2_usize, 0..40_u64, 1..6_u64).prop_map(|(place, first, count)| Op::Store { place, first, count }),
        6 => (0..2_usize, 0..40_u64).prop_map(|(place, hash)| Op::Remove { place, hash }),
        1 => prop::collection::vec(0..2_usize, 0..3).prop_map(|places| Op::Clear { places }),
        1 => Just(Op::Drop),
        1 => Just(Op::Nothing),
        1 => Just(Op::NewEpoch),
    ]
}

proptest! {
    /// However a replica is fed (cut in the middle, resumed, reset), it is at every moment what the plane was
    /// at its cursor; and whatever is done to a message, it is never wrong and current.
    #[test]
    fn a_replica_equals_the_plane(
        steps in prop::collection::vec((prop::collection::vec(ops(), 1..6), 1..7_usize, 0..12_usize, 0..12_u8), 1..40),
    ) {
        let (mut plane, mut replica) = (Plane::new(1), replica());
        for (ops, chunk, cut, spoil) in steps {
            for op in &ops {
                plane.run(op);
            }
            let mut answer = plane.answer(&replica, chunk);
            match spoil {
                0 if answer.len() > 1 => drop(answer.remove(0)),
                1 if answer.len() > 1 => answer.swap(0, 1),
                2 if !answer.is_empty() => answer.insert(0, answer[0].clone()),
                _ => {}
            }
            for message in answer.into_iter().take(cut) {
                if replica.apply(message).is_err() {
                    prop_assert!(spoil <= 2, "an error without a cause");
                    prop_assert!(!replica.is_current());
                    break;
                }
                if let Some(cursor) = replica.resume() {
                    let after = (cursor.sequence - (plane.epoch << 20)) as usize;
                    prop_assert_eq!(cursor.epoch.as_u64(), plane.epoch);
                    prop_assert_eq!(&held(&replica), &plane.history[after].1);
                    prop_assert_eq!(replica.digest(), digest_of(&plane.history[after].1));
                    let blocks = plane.history[after].1.len() as u64;
                    prop_assert_eq!(replica.blocks().total(), blocks);
                }
            }
            replica.interrupt();
        }
        for message in plane.answer(&replica, 3) {
            replica.apply(message).unwrap();
        }
        prop_assert!(replica.is_current());
        prop_assert_eq!(held(&replica), plane.copies);
    }
}
