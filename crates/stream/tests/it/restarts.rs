//! Any batches, with the meaning that each kind of engine gives them, with and without restarts in between:
//! equal entries, and equal memories. `model/restarts.rs` has the order; this has the meaning.

use std::collections::BTreeSet;

use bytes::Bytes;
use kvplane_core::EngineKind;
use kvplane_stream::{
    Ask, Duplicates, JournalOptions, Limits, Memory, Now, Options, Record, Recorder, Semantics,
};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};
use proptest::prelude::*;

use crate::rig::NOW;

const KINDS: [(EngineKind, Profile); 5] = [
    (EngineKind::Vllm, Profile::Vllm0_32),
    (EngineKind::Sglang, Profile::Sglang0_5_22),
    (EngineKind::Tokenspeed, Profile::Tokenspeed0_1_1),
    (EngineKind::Trtllm, Profile::TrtllmZmq),
    (EngineKind::Vllm, Profile::Vllm0_24),
];

#[derive(Debug, Clone)]
enum Op {
    Batch(Vec<OwnedEvent>),
    /// A batch is lost for good.
    Lose,
    Die,
    Save,
    Capacity(u64),
    BlockSize(u32),
    Adapters(bool),
    Flush,
    Expire,
    Evidence {
        first: u32,
        cached: u64,
    },
    Nothing,
}

fn hash() -> impl Strategy<Value = OwnedHash> {
    prop_oneof![
        12 => (0..14u64).prop_map(OwnedHash::Unsigned),
        1 => (0..3u8).prop_map(|byte| OwnedHash::Bytes(vec![byte; 32])),
    ]
}

fn word(words: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    (0..words.len() * 2).prop_map(|at| words.get(at).map(|word| (*word).to_owned()))
}

fn medium() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        6 => Just(Some("GPU".to_owned())),
        2 => Just(Some("CPU".to_owned())),
        1 => Just(Some("DISK".to_owned())),
        1 => Just(Some("nowhere".to_owned())),
        1 => Just(None),
    ]
}

fn group() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![5 => Just(Some(0)), 2 => Just(Some(1)), 1 => Just(None)]
}

fn stored() -> impl Strategy<Value = OwnedEvent> {
    let shape = (prop::collection::vec(hash(), 0..4), prop::option::of(hash()), 0..10u32, 0..8u32);
    let names = (word(&["adapter"]), word(&["salt"]), medium(), group());
    let kinds =
        (word(&["full_attention", "sliding_window", "mamba"]), prop::option::of(1..9u32), 0..12u32, 0..6u32);
    (shape, names, kinds).prop_map(|((hashes, parent, first, odd), names, kinds)| {
        let (lora_name, cache_salt, medium, group) = names;
        let (spec_kind, sliding_window, keys, tokens) = kinds;
        let block_size = [4, 4, 4, 4, 4, 4, 2, 8][odd as usize];
        let count = if tokens == 0 { 0 } else { hashes.len() as u32 * block_size };
        let keys = (keys == 0)
            .then(|| hashes.iter().map(|_| Some(vec![OwnedExtraKey::Text("image".to_owned())])).collect());
        OwnedEvent::Stored(OwnedStored {
            token_ids: (0..count).map(|at| first + at).collect(),
            block_hashes: hashes,
            parent,
            block_size,
            lora_name,
            cache_salt,
            medium,
            extra_keys: keys,
            group,
            spec_kind,
            sliding_window,
            ..OwnedStored::default()
        })
    })
}

fn event() -> impl Strategy<Value = OwnedEvent> {
    let removed =
        (prop::collection::vec(hash(), 0..4), medium(), group()).prop_map(|(block_hashes, medium, group)| {
            OwnedEvent::Removed(OwnedRemoved { block_hashes, medium, group, ..OwnedRemoved::default() })
        });
    prop_oneof![8 => stored(), 4 => removed, 1 => Just(OwnedEvent::Cleared)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        24 => prop::collection::vec(event(), 1..4).prop_map(Op::Batch),
        1 => Just(Op::Lose),
        3 => Just(Op::Die),
        2 => Just(Op::Save),
        1 => (1..20u64).prop_map(Op::Capacity),
        1 => Just(Op::BlockSize(4)),
        1 => any::<bool>().prop_map(Op::Adapters),
        1 => Just(Op::Flush),
        1 => Just(Op::Expire),
        2 => (0..8u32, 0..17u64).prop_map(|(first, cached)| Op::Evidence { first, cached }),
        1 => Just(Op::Nothing),
    ]
}

/// A recorder without a replay socket to speak of: it says that it has nothing but the last batch.
struct Side {
    recorder: Recorder,
    follow: Options,
    saved: Option<Vec<u8>>,
    records: Vec<Vec<u8>>,
    last: Option<(u64, Bytes)>,
    mark: Option<kvplane_stream::RequestMark>,
    flushes: Vec<kvplane_stream::FlushId>,
    hint: u64,
    remembers: bool,
}

impl Side {
    fn new(keep: JournalOptions, remembers: bool) -> Self {
        let follow = Options::default();
        let mut recorder = Recorder::new(follow.clone(), keep, 0, NOW);
        if remembers {
            assert!(recorder.keep_records(NOW));
        }
        recorder.accept_evidence();
        let mut side = Self {
            recorder,
            follow,
            saved: None,
            records: Vec::new(),
            last: None,
            mark: None,
            flushes: Vec::new(),
            hint: 0,
            remembers,
        };
        side.recorder.connected(NOW);
        side.answer(NOW);
        side
    }

    fn answer(&mut self, now: Now) {
        loop {
            let asks = self.recorder.take_asks();
            if asks.is_empty() {
                break;
            }
            for ask in asks {
                match ask {
                    Ask::Replay { id, from } => {
                        for (sequence, payload) in self.last.iter().filter(|(sequence, _)| *sequence >= from)
                        {
                            self.recorder.replayed(now, id, *sequence, payload.clone());
                        }
                        self.recorder.replay_ended(now, id, true);
                    }
                    Ask::Hint { id } => self.hint = id,
                    Ask::Resubscribe => unreachable!(),
                }
            }
        }
        self.keep();
    }

    fn keep(&mut self) {
        self.records.extend(self.recorder.take_records().iter().map(|record| {
            let mut bytes = Vec::new();
            record.write(&mut bytes);
            bytes
        }));
    }

    fn memory(&self) -> Memory {
        let mut records = self.records.iter().map(|bytes| Record::read(bytes).unwrap());
        let mut memory = match &self.saved {
            Some(saved) => Memory::load(saved).unwrap(),
            None => Memory::begin(&records.next().unwrap()).unwrap(),
        };
        records.for_each(|record| memory.follow(&record).unwrap());
        memory
    }

    fn run(&mut self, op: &Op, next: u64, payload: Option<&Bytes>) {
        match op {
            Op::Batch(_) => {
                let payload = payload.unwrap().clone();
                self.last = Some((next, payload.clone()));
                self.recorder.live(NOW, next, payload);
            }
            Op::Die => {
                self.keep();
                if self.remembers {
                    let memory = self.memory();
                    self.recorder = Recorder::adopt(self.follow.clone(), memory, NOW);
                } else {
                    self.recorder.disconnected(NOW);
                }
                self.recorder.take_asks();
                self.recorder.connected(NOW);
            }
            Op::Save if self.remembers => {
                self.keep();
                self.saved = Some(self.memory().save());
                self.records.clear();
            }
            Op::Save | Op::Lose => {}
            Op::Capacity(blocks) => self.recorder.hint(NOW, self.hint, None, Some(*blocks)),
            Op::BlockSize(size) => {
                self.recorder.describe_block_size(*size, NOW);
            }
            Op::Adapters(untold) => {
                self.recorder.describe_adapters(*untold, NOW);
            }
            Op::Flush => {
                let flush = self.recorder.begin_flush().unwrap();
                self.recorder.flush_accepted(flush, NOW);
                self.flushes.push(flush);
            }
            Op::Expire => {
                if let Some(flush) = self.flushes.pop() {
                    self.recorder.end_flush(flush, NOW);
                }
            }
            Op::Evidence { first, cached } => {
                if let Some(mark) = self.mark {
                    let tokens: Vec<u32> = (*first..first + 16).collect();
                    self.recorder.prove_prefix(mark, &tokens, *cached);
                }
            }
            Op::Nothing => self.recorder.note_nothing(),
        }
        self.answer(NOW);
        self.mark = self.recorder.mark_request();
    }

    fn looks(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let ledger = self.recorder.ledger();
        let held: BTreeSet<String> = ledger.state().residencies().map(|held| format!("{held:?}")).collect();
        (
            (ledger.cursor(), ledger.last_event_id(), ledger.state().digest(), ledger.trust().clone(), held),
            (
                self.recorder.continuity(),
                ledger.known_from(),
                ledger.state().entries(),
                ledger.state().waiting(),
            ),
            (
                ledger.groups().to_vec(),
                ledger.resumption().clone(),
                ledger.block_size(),
                ledger.untranslatable(),
            ),
            (self.recorder.capacity(), self.recorder.evidence_blocks(), self.mark, ledger.counters().clone()),
        )
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(600), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_an_engine_says_it_means_the_same_after_a_restart(
        ops in prop::collection::vec(op(), 0..60), kind in 0..KINDS.len(), heard_late: bool, presence in 0..4u8, eagle: bool,
        chunk in prop::option::of(1..3u32), block_size in prop::option::of(Just(4u32)), few in 0..3u8,
    ) {
        let (kind, profile) = KINDS[kind];
        let keep = JournalOptions {
            semantics: Semantics::of(kind),
            duplicates: if presence == 0 { Duplicates::Presence } else { Duplicates::Count },
            offload_chunk: chunk.map(|blocks| blocks * 4),
            state: if few == 0 { Limits { max_waiting: 2, ..Limits::default() } } else { Limits::default() },
            block_size,
            eagle,
            ..JournalOptions::default()
        };
        let mut sides = [false, true].map(|remembers| Side::new(keep.clone(), remembers));
        let mut next = u64::from(heard_late) * 7;
        let mut compared = sides[0].recorder.ledger().cursor();
        for op in &ops {
            let payload = match op {
                Op::Batch(events) => Some(Bytes::from(encode_batch(profile, 1.0, Some(0), events))),
                _ => None,
            };
            for side in &mut sides {
                side.run(op, next, payload.as_ref());
            }
            next += u64::from(matches!(op, Op::Batch(_) | Op::Lose));
            let [alive, dies] = &sides;
            let entries = |side: &Side| {
                let entries = side.recorder.ledger().read_after(compared, usize::MAX);
                entries.map(|entries| entries.iter().map(|entry| format!("{entry:?}")).collect::<Vec<_>>())
            };
            prop_assert_eq!(entries(alive), entries(dies), "after {:?}", op);
            let (mut ours, mut theirs) = (format!("{:?}", alive.looks()), format!("{:?}", dies.looks()));
            // Rejected events are only counted, and begin anew.
            for looks in [&mut ours, &mut theirs] {
                if let (Some(from), Some(to)) = (looks.find("rejected: ["), looks.find("unknown_events")) {
                    looks.replace_range(from..to, "");
                }
            }
            prop_assert_eq!(ours, theirs, "after {:?}", op);
            compared = alive.recorder.ledger().cursor();
        }
    }
}

#[test]
fn a_memory_of_another_format_or_another_stream_is_not_taken() {
    let mut side = Side::new(JournalOptions::default(), true);
    side.run(&Op::Nothing, 0, None);
    let memory = side.memory();
    let saved = memory.save();
    assert!(memory.fits(&JournalOptions { max_batches: 1, ..JournalOptions::default() }, 0));
    assert!(!memory.fits(&JournalOptions { eagle: true, ..JournalOptions::default() }, 0));
    assert!(!memory.fits(&JournalOptions::default(), 1));
    // However it is cut, and whatever byte is another: an error, or the same.
    for cut in 0..saved.len() {
        assert!(Memory::load(&saved[..cut]).is_err(), "cut at {cut}");
    }
    for at in 0..saved.len() {
        let mut other = saved.clone();
        other[at] ^= 0xff;
        if let Ok(loaded) = Memory::load(&other) {
            loaded.save();
        }
    }
}

#[test]
fn numbers_are_others_where_subscribers_may_know_more() {
    let mut side = Side::new(JournalOptions::default(), true);
    side.run(&Op::Nothing, 0, None);
    let before = side.recorder.ledger().cursor();
    let mut memory = side.memory();
    memory.may_lack_entries();
    let mut recorder = Recorder::adopt(side.follow.clone(), memory, NOW);
    let after = recorder.ledger().cursor();
    assert!(after.epoch > before.epoch && recorder.ledger().read_after(before, 1).is_err());
    // That is remembered as well.
    side.records.extend(recorder.take_records().iter().map(|record| {
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        bytes
    }));
    assert_eq!(side.memory().cursor(), after);
}

#[test]
fn flushes_that_nobody_watches_any_more_end_with_the_next_connection() {
    let mut side = Side::new(JournalOptions::default(), true);
    let store = OwnedEvent::Stored(crate::rig::stored(&[1, 2], None));
    let payload = Bytes::from(encode_batch(Profile::Vllm0_32, 1.0, Some(0), &[store]));
    side.run(&Op::Batch(Vec::new()), 0, Some(&payload));
    side.run(&Op::Flush, 1, None);
    let memory = side.memory();
    side.recorder = Recorder::adopt(side.follow.clone(), memory, NOW);
    side.recorder.end_lost_flushes();
    assert!(side.recorder.ledger().trust().has(kvplane_core::Reason::Flushing), "fenced as before");
    side.recorder.connected(NOW);
    side.answer(NOW);
    let trust = side.recorder.ledger().trust();
    assert!(!trust.has(kvplane_core::Reason::Flushing) && trust.has(kvplane_core::Reason::UnprovenFlush));
    assert_eq!(side.recorder.ledger().state().residencies().count(), 0);
}
