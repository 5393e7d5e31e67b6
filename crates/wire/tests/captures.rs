//! What real engines sent, and whether what we read from it predicts what they did.

#![allow(clippy::unwrap_used, reason = "a test crate: helpers outside test functions unwrap too")]

mod support;

use std::collections::HashMap;

use kvplane_wire::replay::{Framing, Reply, end_frames, parse_live, parse_reply, reply_frames};
use kvplane_wire::{Batch, Decoder, Event, ExtraKey, Layout, OwnedEvent, Profile, Stored, encode_batch};
use support::{Line, lines};

const VLLM: [&str; 3] = ["vllm-0.32.0.jsonl", "vllm-0.32.0-oracle.jsonl", "vllm-0.32.0-hybrid-oracle.jsonl"];
const SGLANG: &str = "sglang-0.5.23.jsonl";

fn recordings() -> impl Iterator<Item = &'static str> {
    VLLM.into_iter().chain([SGLANG])
}

#[test]
fn every_frame_reads_whole() {
    let mut decoder = Decoder::default();
    for name in recordings() {
        let mut events = 0;
        for line in lines(name) {
            if line.payload_hex.is_empty() {
                continue;
            }
            let payload = line.payload();
            let batch = decoder.decode(&payload).unwrap();
            assert_eq!((batch.broken, batch.unknown_fields, batch.rank), (None, 0, Some(0)), "{name}");
            let odd = batch.events.iter().find(|e| matches!(e, Event::Rejected(_) | Event::Unknown { .. }));
            assert_eq!(odd, None, "{name}");
            events += batch.events.len();
        }
        assert!(events > 30, "{name}: {events}");
    }
}

#[test]
fn a_replay_gives_the_same_bytes_as_live() {
    for name in recordings() {
        let lines = lines(name);
        let live: HashMap<u64, Vec<u8>> = lines
            .iter()
            .filter(|line| line.is("live"))
            .map(|line| {
                let frames = line.frames();
                let live = parse_live(&frames).unwrap();
                assert_eq!(live.topic, line.topic.as_bytes());
                (live.sequence, live.payload.to_vec())
            })
            .collect();
        let (mut replayed, mut ends) = (0, 0);
        for line in lines.iter().filter(|line| line.is("replay")) {
            match parse_reply(&line.frames()).unwrap() {
                Reply::Batch { sequence, payload } => {
                    assert_eq!(live[&sequence], payload, "{name} {sequence}");
                    replayed += 1;
                }
                Reply::End => ends += 1,
            }
        }
        assert!(replayed >= live.len() && ends > 0, "{name}: {replayed} of {}, {ends}", live.len());
    }
}

#[test]
fn what_was_read_encodes_to_what_was_sent() {
    let mut decoder = Decoder::default();
    let vllm = VLLM.into_iter().map(|name| (name, Profile::Vllm0_32));
    for (name, profile) in vllm.chain([(SGLANG, Profile::Sglang0_5_22)]) {
        for line in lines(name).iter().filter(|line| line.is("live")) {
            let payload = line.payload();
            let batch = decoder.decode(&payload).unwrap();
            let events: Vec<_> =
                batch.events.iter().map(|event| OwnedEvent::from_decoded(&batch, event).unwrap()).collect();
            assert_eq!(encode_batch(profile, batch.timestamp, Some(0), &events), payload, "{name}");
        }
    }
}

#[test]
fn replies_are_framed_as_they_were_sent() {
    for name in recordings() {
        for line in lines(name).iter().filter(|line| line.is("replay")) {
            let frames = line.frames();
            let framing = Framing::WithTopic(line.topic.as_bytes());
            // The framing of older releases says the same with one frame less.
            let short: Vec<_> = frames[..1].iter().chain(&frames[2..]).cloned().collect();
            match parse_reply(&frames).unwrap() {
                Reply::Batch { sequence, payload } => {
                    assert_eq!(reply_frames(framing, sequence, payload), frames, "{name}");
                    assert_eq!(parse_reply(&short), Ok(Reply::Batch { sequence, payload }), "{name}");
                    assert_eq!(reply_frames(Framing::Plain, sequence, payload), short, "{name}");
                }
                Reply::End => {
                    assert_eq!(end_frames(framing), frames, "{name}");
                    assert_eq!(parse_reply(&short), Ok(Reply::End), "{name}");
                    assert_eq!(end_frames(Framing::Plain), short, "{name}");
                }
            }
        }
    }
}

#[test]
fn sglang_salts_are_read() {
    let mut decoder = Decoder::default();
    let mut salts = Vec::new();
    for line in lines(SGLANG).iter().filter(|line| line.is("live")) {
        let payload = line.payload();
        for event in decoder.decode(&payload).unwrap().events {
            if let Event::Stored(stored) = event {
                salts.extend(stored.cache_salt.map(str::to_owned));
            }
        }
    }
    assert_eq!(salts, ["tenant1"]);
}

#[test]
fn counted_copies_predict_the_plain_engine() {
    // The one miss: a reset that the engine had not published yet.
    assert_eq!(score("vllm-0.32.0-oracle.jsonl"), (128, 129));
}

#[test]
fn counted_copies_predict_the_hybrid_engine() {
    assert_eq!(score("vllm-0.32.0-hybrid-oracle.jsonl"), (58, 58));
}

/// How many answers the model foretold, of how many.
fn score(name: &str) -> (usize, usize) {
    let mut model = Model::default();
    let mut waiting: Vec<Line> = Vec::new();
    let (mut right, mut asked) = (0, 0);
    for line in lines(name) {
        if line.is("live") {
            waiting.push(line);
        } else if let Some(cached) = line.cached_tokens {
            // The engine's answer is the state before its step.
            waiting.retain(|live| {
                let later = live.step >= line.step;
                if !later {
                    model.apply(&live.payload());
                }
                later
            });
            let prompt = line.prompt_token_ids.unwrap();
            asked += 1;
            right += usize::from(model.predict(&prompt, line.cache_salt.as_deref()) == cached);
        }
    }
    (right, asked)
}

/// The plainest consumer: copies per group and hash, and which hash follows which on what content.
#[derive(Default)]
struct Model {
    copies: HashMap<(u32, u64), u32>,
    next: HashMap<(Option<u64>, Vec<u32>, String), u64>,
    /// Group and sliding window; `None` for full attention.
    groups: HashMap<u32, Option<u32>>,
    block_size: usize,
}

impl Model {
    fn apply(&mut self, payload: &[u8]) {
        let mut decoder = Decoder::default();
        let batch = decoder.decode(payload).unwrap();
        for event in &batch.events {
            match event {
                Event::Stored(stored) => self.store(&batch, stored),
                Event::Removed(removed) => {
                    let group = removed.group.unwrap();
                    for hash in batch.removed_hashes(removed) {
                        let count = self.copies.entry((group, hash.bits)).or_default();
                        *count = count.saturating_sub(1);
                    }
                }
                Event::Cleared { .. } => self.copies.clear(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn store<'f>(&mut self, batch: &Batch<'_, 'f>, stored: &Stored<'f>) {
        let group = stored.group.unwrap();
        self.groups.insert(group, stored.sliding_window);
        self.block_size = stored.block_size as usize;
        let hashes = batch.stored_hashes(stored);
        for hash in hashes {
            *self.copies.entry((group, hash.bits)).or_default() += 1;
        }
        if batch.layout(stored) != Layout::Dense {
            return;
        }
        let mut parent = stored.parent.map(|parent| parent.bits);
        for (index, hash) in hashes.iter().enumerate() {
            let tokens = batch.tokens(stored).slice(index * self.block_size, self.block_size).unwrap();
            let salt = match batch.extra_keys(stored, index) {
                [ExtraKey::Text(salt)] => (*salt).to_owned(),
                [] => String::new(),
                other => panic!("{other:?}"),
            };
            self.next.insert((parent, tokens.to_vec(), salt), hash.bits);
            parent = Some(hash.bits);
        }
    }

    fn predict(&self, prompt: &[u32], salt: Option<&str>) -> usize {
        if self.block_size == 0 {
            return 0;
        }
        // At least one token is always computed.
        let usable = &prompt[..prompt.len() - 1];
        let mut chain: Vec<u64> = Vec::new();
        for block in usable.chunks_exact(self.block_size) {
            let parent = chain.last().copied();
            let salt = if parent.is_none() { salt.unwrap_or_default() } else { "" };
            let Some(hash) = self.next.get(&(parent, block.to_vec(), salt.to_owned())) else { break };
            chain.push(*hash);
        }
        let longest = (0..=chain.len()).rev().find(|n| self.hits(&chain[..*n]));
        longest.unwrap_or(0) * self.block_size
    }

    /// A full group needs every block, a sliding one those that its window reaches.
    fn hits(&self, prefix: &[u64]) -> bool {
        self.groups.iter().all(|(group, window)| {
            let needed = match window {
                Some(window) => (*window as usize - 1).div_ceil(self.block_size).min(prefix.len()),
                None => prefix.len(),
            };
            let held = |hash: &u64| self.copies.get(&(*group, *hash)).is_some_and(|count| *count > 0);
            prefix[prefix.len() - needed..].iter().all(held)
        })
    }
}
