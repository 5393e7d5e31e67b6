//! An engine, and the stream that follows it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvplane_catalog::{Catalog, Identity};
use kvplane_core::{EngineId, StreamId, Trust};
use kvplane_ingest::Stream;
use kvplane_stream::{Ask, JournalOptions, Now, Options, Recorder};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};
use proptest::prelude::*;

pub(crate) const CREDIT: [Trust; 3] = [Trust::Exact, Trust::Lower, Trust::Unverified];
pub(crate) const MEDIA: [&str; 4] = ["GPU", "CPU", "DISK", "REMOTE"];
/// Prompts share their first blocks in pairs.
pub(crate) const PROMPTS: u8 = 4;
pub(crate) const DEPTH: u8 = 6;
/// Groups of a cache: what each is, and blocks of its window.
pub(crate) const GROUPS: [(&str, Option<u32>); 3] =
    [("full_attention", None), ("sliding_window", Some(2)), ("mamba", None)];

/// What may happen to an engine and to the way to it.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Blocks `from..to` of a prompt are stored.
    Store {
        group: u32,
        prompt: u8,
        from: u8,
        to: u8,
        medium: usize,
    },
    Remove {
        group: u32,
        prompt: u8,
        at: u8,
        medium: usize,
    },
    Clear,
    /// A batch is lost.
    Lose,
    Restart,
    Disconnect,
    /// The connection is back, in the same life.
    Return,
}

/// A step of an engine whose cache has this many groups.
pub(crate) fn step(groups: u32) -> impl Strategy<Value = Step> {
    let range = (0..DEPTH, 1..=DEPTH).prop_map(|(from, more)| (from, (from + more).min(DEPTH)));
    prop_oneof![
        8 => (0..groups, 0..PROMPTS, range, 0..MEDIA.len())
            .prop_map(|(group, prompt, (from, to), medium)| Step::Store { group, prompt, from, to, medium }),
        6 => (0..groups, 0..PROMPTS, 0..DEPTH, 0..MEDIA.len())
            .prop_map(|(group, prompt, at, medium)| Step::Remove { group, prompt, at, medium }),
        1 => Just(Step::Clear),
        1 => Just(Step::Lose),
        1 => Just(Step::Restart),
        1 => Just(Step::Disconnect),
        2 => Just(Step::Return),
    ]
}

pub(crate) fn tokens(prompt: u8, at: u8, block_size: u32) -> impl Iterator<Item = u32> {
    let family = if at < 2 { prompt / 2 } else { prompt + 10 };
    (0..block_size).map(move |i| u32::from(family) * 1_000 + u32::from(at) * 50 + i)
}

/// An engine and the stream that follows it. Hashes differ between engines.
pub(crate) struct Source {
    pub(crate) stream: Stream,
    pub(crate) block_size: u32,
    salt: u64,
    next_sequence: u64,
    clock: f64,
    /// What can be replayed.
    ring: Vec<(u64, Bytes)>,
}

fn identity(number: u64) -> Identity {
    Identity { model: "m".to_owned(), worker_id: number, routing_group: "default".to_owned() }
}

impl Source {
    pub(crate) fn start(catalog: &Arc<Catalog>, number: u64, block_size: u32) -> Self {
        let id = StreamId::new(EngineId::new(&format!("e{number}")), 0);
        let stream = Stream::in_process(id, Options::default(), JournalOptions::default());
        stream.join(catalog, identity(number));
        let mut source =
            Self { stream, block_size, salt: number, next_sequence: 0, clock: 1.0, ring: Vec::new() };
        source.feed(Recorder::connected);
        source
    }

    /// Leaves the index and comes into it again, with all that it holds.
    pub(crate) fn rejoin(&self, catalog: &Arc<Catalog>) {
        self.stream.leave_index();
        self.stream.join_with_history(catalog, identity(self.salt)).unwrap();
    }

    /// Feeds the stream and answers whatever it asks.
    pub(crate) fn feed(&mut self, input: impl FnOnce(&mut Recorder, Now)) {
        let mut asks = self.stream.feed(input).asks;
        while let Some(ask) = asks.pop() {
            let outcome = match ask {
                Ask::Hint { id } => self.stream.feed(|recorder, now| recorder.hint(now, id, None, None)),
                Ask::Resubscribe => unreachable!("sockets are not subscribed to"),
                Ask::Replay { id, from } => self.stream.feed(|recorder, now| {
                    for (sequence, payload) in self.ring.iter().filter(|(sequence, _)| *sequence >= from) {
                        recorder.replayed(now, id, *sequence, payload.clone());
                    }
                    recorder.replay_ended(now, id, true);
                }),
            };
            asks.extend(outcome.asks);
        }
    }

    pub(crate) fn hash(&self, prompt: u8, at: u8) -> OwnedHash {
        let family = if at < 2 { prompt / 2 } else { prompt + 10 };
        OwnedHash::Unsigned((self.salt + 1) << 32 | u64::from(family) << 8 | u64::from(at))
    }

    pub(crate) fn publish(&mut self, events: &[OwnedEvent]) {
        self.clock += 1.0;
        let payload = Bytes::from(encode_batch(Profile::Vllm0_32, self.clock, Some(0), events));
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.ring.push((sequence, payload.clone()));
        self.feed(|recorder, now| recorder.live(now, sequence, payload));
    }

    /// Blocks of a prompt are stored.
    pub(crate) fn stored(&self, group: u32, prompt: u8, blocks: Range<u8>, medium: usize) -> OwnedEvent {
        let (kind, window) = GROUPS[group as usize];
        OwnedEvent::Stored(OwnedStored {
            block_hashes: blocks.clone().map(|at| self.hash(prompt, at)).collect(),
            parent: blocks.start.checked_sub(1).map(|at| self.hash(prompt, at)),
            token_ids: blocks.flat_map(|at| tokens(prompt, at, self.block_size)).collect(),
            block_size: self.block_size,
            medium: Some(MEDIA[medium].to_owned()),
            group: Some(group),
            spec_kind: Some(kind.to_owned()),
            sliding_window: window.map(|blocks| blocks * self.block_size + 1),
            ..OwnedStored::default()
        })
    }

    /// A block of a prompt goes.
    pub(crate) fn removed(&self, group: u32, prompt: u8, at: u8, medium: usize) -> OwnedEvent {
        OwnedEvent::Removed(OwnedRemoved {
            block_hashes: vec![self.hash(prompt, at)],
            medium: Some(MEDIA[medium].to_owned()),
            group: Some(group),
            ..OwnedRemoved::default()
        })
    }

    pub(crate) fn run(&mut self, step: &Step) {
        match *step {
            Step::Store { group, prompt, from, to, medium } => {
                let stored = self.stored(group, prompt, from..to, medium);
                self.publish(&[stored]);
            }
            Step::Remove { group, prompt, at, medium } => {
                let removed = self.removed(group, prompt, at, medium);
                self.publish(&[removed]);
            }
            Step::Clear => self.publish(&[OwnedEvent::Cleared]),
            Step::Lose => self.next_sequence += 1,
            Step::Restart => {
                self.feed(Recorder::disconnected);
                self.ring.clear();
                self.next_sequence = 0;
                self.feed(Recorder::connected);
            }
            Step::Disconnect => self.feed(Recorder::disconnected),
            Step::Return => self.feed(Recorder::connected),
        }
    }
}
