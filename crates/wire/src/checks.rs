//! What must hold for any bytes at all. Fuzz targets call these functions, and so do property tests, so that
//! what a fuzzer would find is looked for on every test run too.
//!
//! Each function panics when its promise is broken.

mod drain;

#[cfg(test)]
mod tests;

pub use self::drain::{drain_round_trip, drained_json};

use crate::dynamo::WorkerKvQueryResponse;
use crate::encode::{Profile, encode_batch};
use crate::event::{Batch, DecodeError, Event, ExtraKey};
use crate::field::Field;
use crate::msgpack::Reader;
use crate::owned::{OwnedEvent, OwnedExtraKey};
use crate::replay::{Framing, Reply, end_frames, parse_live, parse_reply, parse_request, reply_frames};
use crate::{Decoder, Dialect, Tokens, engine_info, smg};

/// Bytes of buffer per byte of frame that decoding may cost. The dearest byte is one that makes a hash
/// (16 bytes), and a growing buffer may be twice as large as it needs to be.
const BUFFER_PER_FRAME_BYTE: usize = 2 * 16;

/// What a buffer may hold whatever the frame: the smallest sizes that a vector grows to.
const BUFFER_FLOOR: usize = 4096;

/// The same for what a batch itself allocates: events and extra keys. An event takes the room of some forty
/// of the eight bytes that it must have.
const BATCH_PER_FRAME_BYTE: usize = 2 * 40;

/// What a batch may take whatever the frame: room for the events that are free.
const BATCH_FLOOR: usize = 4 << 20;

/// Any bytes decode to something consistent, with bounded memory, and twice to the same.
pub fn decode_batch(frame: &[u8]) {
    let mut decoder = Decoder::default();
    let Ok(batch) = decoder.decode(frame) else {
        bounded(&decoder, frame);
        return;
    };
    look_at_all(&batch);
    let held = batch.events.capacity() * size_of::<Event<'_>>()
        + batch.extra_keys.capacity() * size_of::<ExtraKey<'_>>();
    assert!(held <= BATCH_FLOOR + BATCH_PER_FRAME_BYTE * frame.len(), "{held}");
    let owned: Vec<Option<OwnedEvent>> =
        batch.events.iter().map(|event| OwnedEvent::from_decoded(&batch, event)).collect();
    let events = batch.events.clone();
    let broken = batch.broken;

    // Used buffers must not show.
    let again = decoder.decode(frame);
    assert!(again.is_ok_and(|again| again.events == events && again.broken == broken));
    bounded(&decoder, frame);

    // What was understood can be said in the newest dialects, and is then understood alike.
    for profile in [Profile::Vllm0_32, Profile::Sglang0_5_22, Profile::TrtllmZmq] {
        let understood: Vec<_> = owned.iter().flatten().map(|event| as_sent(profile, event)).collect();
        round_trip(profile, &understood);
    }
}

/// Any bytes are a batch of SMG's contract, whole or broken off, with bounded memory, and twice the same;
/// where it belongs is known whenever all of it can be read.
pub fn smg_batch(message: &[u8]) {
    let mut decoder = Decoder::default();
    let Ok(batch) = decoder.decode_as(Dialect::Smg, message) else { panic!("broken, never refused") };
    look_at_all(&batch);
    let held = batch.events.capacity() * size_of::<Event<'_>>()
        + batch.extra_keys.capacity() * size_of::<ExtraKey<'_>>();
    assert!(held <= BATCH_FLOOR + BATCH_PER_FRAME_BYTE * message.len(), "{held}");
    let (events, broken) = (format!("{:?}", batch.events), batch.broken);
    let again = decoder.decode_as(Dialect::Smg, message);
    assert!(again.is_ok_and(|again| format!("{:?}", again.events) == events && again.broken == broken));
    bounded(&decoder, message);
    let outline = smg::outline(message);
    assert!(outline.is_err() || matches!(broken, None | Some(DecodeError::NotABatch)), "{broken:?}");
    assert_eq!(smg::outline(message), outline);
}

/// Any bytes are read as what an engine says of itself, or refused; and no more is made of them than they
/// are.
pub fn engine_info(message: &[u8]) {
    let sources = engine_info::kv_event_sources(message).unwrap_or_default();
    let args = engine_info::server_args(message).unwrap_or_default();
    assert!(sources.len() + args.len() <= message.len());
    let _ = (engine_info::control_server_info(message), engine_info::vllm_server_info(message));
}

/// What a profile encodes is decoded to the same events.
///
/// The events must hold nothing that the profile does not send: see [`as_sent`].
pub fn round_trip(profile: Profile, events: &[OwnedEvent]) {
    let frame = encode_batch(profile, 1.25, Some(3), events);
    let mut decoder = Decoder::default();
    let batch = decoder.decode(&frame).unwrap_or_else(|error| panic!("{profile}: {error}"));
    assert_eq!((batch.broken, batch.unknown_fields), (None, 0), "{profile}");
    assert_eq!(batch.rank, profile.batch_has_rank().then_some(3), "{profile}");
    let read: Vec<_> =
        batch.events.iter().filter_map(|event| OwnedEvent::from_decoded(&batch, event)).collect();
    assert_eq!(read, events, "{profile}");
}

/// An event without the fields that a profile does not have.
pub fn as_sent(profile: Profile, event: &OwnedEvent) -> OwnedEvent {
    fn keep<T>(field: &mut Option<T>, kept: bool) {
        if !kept {
            *field = None;
        }
    }
    let shape = profile.shape();
    let mut event = event.clone();
    match &mut event {
        OwnedEvent::Stored(stored) => {
            let sends = |field: Field| shape.stored.iter().any(|declared| declared.field == field);
            keep(&mut stored.lora_id, sends(Field::LoraId));
            keep(&mut stored.medium, sends(Field::Medium));
            keep(&mut stored.lora_name, sends(Field::LoraName));
            keep(&mut stored.cache_salt, sends(Field::CacheSalt) || sends(Field::Metadata));
            keep(&mut stored.extra_keys, sends(Field::ExtraKeys) || sends(Field::MultimodalKeys));
            keep(&mut stored.group, sends(Field::Group));
            keep(&mut stored.spec_kind, sends(Field::SpecKind));
            keep(&mut stored.sliding_window, sends(Field::SlidingWindow));
            keep(&mut stored.locality, sends(Field::Locality));
            keep(&mut stored.ownership, sends(Field::Ownership));
            keep(&mut stored.session_id, sends(Field::SessionId));
            if sends(Field::MultimodalKeys) {
                stored.extra_keys.iter_mut().flatten().for_each(keep_items);
            }
        }
        OwnedEvent::Removed(removed) => {
            let sends = |field: Field| shape.removed.iter().any(|declared| declared.field == field);
            keep(&mut removed.medium, sends(Field::Medium));
            keep(&mut removed.group, sends(Field::Group));
            keep(&mut removed.locality, sends(Field::Locality));
            keep(&mut removed.ownership, sends(Field::Ownership));
        }
        OwnedEvent::Cleared => {}
    }
    event
}

/// Of a block's keys, those that are multimodal items.
fn keep_items(keys: &mut Option<Vec<OwnedExtraKey>>) {
    let items = keys.take().into_iter().flatten().filter(|key| matches!(key, OwnedExtraKey::Multimodal(..)));
    *keys = Some(items.collect()).filter(|items: &Vec<_>| !items.is_empty());
}

/// Any frames are a reply, a live message or a request, or an error; what is read can be built again. The
/// bytes are cut into frames by their first ones.
pub fn replay_reply(bytes: &[u8]) {
    let mut rest = bytes;
    let mut frames = Vec::new();
    while let Some((&length, tail)) = rest.split_first() {
        let (frame, tail) = tail.split_at(usize::from(length).min(tail.len()));
        frames.push(frame);
        rest = tail;
    }
    let framing = match frames[..] {
        [_, topic, _, _] => Framing::WithTopic(topic),
        _ => Framing::Plain,
    };
    match parse_reply(&frames) {
        Ok(Reply::Batch { sequence, payload }) => {
            assert!(!payload.is_empty() && sequence != u64::MAX);
            let built = reply_frames(framing, sequence, payload);
            assert_eq!(parse_reply(&built), Ok(Reply::Batch { sequence, payload }));
            assert_eq!(built, frames);
        }
        Ok(Reply::End) => assert_eq!(parse_reply(&end_frames(framing)), Ok(Reply::End)),
        Err(_) => {}
    }
    if let Ok(live) = parse_live(&frames) {
        assert_eq!(frames, [live.topic, &live.sequence.to_be_bytes(), live.payload]);
    }
    if let Ok(first) = parse_request(&frames) {
        assert_eq!(frames, [&b""[..], &first.to_be_bytes()]);
    }
}

/// Any text is a recovery response or an error; a response comes back from its own JSON.
pub fn recover_json(bytes: &[u8]) {
    let Ok(response) = serde_json::from_slice::<WorkerKvQueryResponse>(bytes) else { return };
    let written = serde_json::to_vec(&response).unwrap_or_default();
    let again = serde_json::from_slice::<WorkerKvQueryResponse>(&written);
    assert!(again.is_ok_and(|again| again == response));
}

/// Skipping a value consumes just that value: its bytes by themselves are skipped whole.
pub fn skip_value(bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    if let Ok(value) = reader.raw_value() {
        assert_eq!(value.len() + reader.rest().len(), bytes.len());
        assert_eq!(Reader::new(value).raw_value(), Ok(value));
        for cut in [0, value.len() / 2, value.len() - 1] {
            assert!(Reader::new(&value[..cut]).skip_value().is_err());
        }
    }
}

/// Every range of every event lies where it should, and a store keeps its promises.
fn look_at_all(batch: &Batch<'_, '_>) {
    for event in &batch.events {
        match event {
            Event::Stored(stored) => {
                let hashes = batch.stored_hashes(stored);
                let tokens = batch.tokens(stored);
                let positions = tokens.positions();
                let covered = hashes.len() * stored.block_size as usize;
                assert!(positions == 0 || covered <= positions);
                assert!(hashes.is_empty() || positions == 0 || stored.block_size > 0);
                assert!(!matches!(tokens, Tokens::Bigrams(ids) if ids.len() % 2 != 0));
                assert!((0..hashes.len()).all(|index| batch.extra_keys(stored, index).len() < usize::MAX));
                assert_eq!(batch.extra_keys(stored, hashes.len()), []);
                for hash in hashes.iter().chain(&stored.parent) {
                    assert_eq!(batch.wide(*hash).is_some(), hash.is_wide());
                }
            }
            Event::Removed(removed) => {
                for hash in batch.removed_hashes(removed) {
                    assert_eq!(batch.wide(*hash).is_some(), hash.is_wide());
                }
            }
            Event::Moved(moved) => assert_eq!(batch.wide(moved.hash).is_some(), moved.hash.is_wide()),
            Event::Created(_) | Event::Cleared { .. } | Event::Unknown { .. } | Event::Rejected(_) => {}
        }
    }
    let _ = format!("{batch:?}");
}

fn bounded(decoder: &Decoder, frame: &[u8]) {
    let most = BUFFER_FLOOR + BUFFER_PER_FRAME_BYTE * frame.len();
    assert!(decoder.retained_bytes() <= most, "{} of {most}", decoder.retained_bytes());
}
