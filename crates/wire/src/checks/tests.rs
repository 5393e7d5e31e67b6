//! The checks on random events, on spoilt frames and on noise.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::msgpack::Writer;
use crate::{OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored, RejectedKind};

fn hash() -> impl Strategy<Value = OwnedHash> {
    prop_oneof![
        4 => any::<u64>().prop_map(OwnedHash::Unsigned),
        1 => (0..300u64).prop_map(OwnedHash::Unsigned),
        1 => (i64::MIN..0).prop_map(OwnedHash::Signed),
        1 => (-200..0i64).prop_map(OwnedHash::Signed),
        1 => vec(any::<u8>(), 16).prop_map(OwnedHash::Bytes),
        1 => vec(any::<u8>(), 32).prop_map(OwnedHash::Bytes),
        1 => vec(any::<u8>(), 8..40).prop_map(OwnedHash::Hex),
    ]
}

fn text() -> impl Strategy<Value = Option<String>> {
    option::of("\\PC{0,40}")
}

fn number() -> impl Strategy<Value = Option<u32>> {
    option::of(prop_oneof![0..200u32, any::<u32>()])
}

fn extra_key() -> impl Strategy<Value = OwnedExtraKey> {
    prop_oneof![
        "\\PC{0,20}".prop_map(OwnedExtraKey::Text),
        vec(any::<u8>(), 0..40).prop_map(OwnedExtraKey::Bytes),
        any::<i64>().prop_map(OwnedExtraKey::Integer),
        ("\\PC{0,20}", -400..400i64).prop_map(|(id, offset)| OwnedExtraKey::Multimodal(id, offset)),
    ]
}

/// Hashes with tokens that suffice for them, and keys for each.
fn blocks() -> impl Strategy<Value = OwnedStored> {
    let token = prop_oneof![0..300u32, 0..200_000u32, any::<u32>()];
    let placeholder =
        vec(hash(), 0..4).prop_map(|block_hashes| OwnedStored { block_hashes, ..OwnedStored::default() });
    let full = (vec(hash(), 0..6), 1..8u32, 0..20usize).prop_flat_map(move |(hashes, size, more)| {
        let blocks = hashes.len();
        let positions = blocks * size as usize + more;
        let lists = vec(option::of(vec(extra_key(), 1..4)), blocks);
        let keys = option::of(prop_oneof![8 => lists, 1 => Just(Vec::new())]);
        (vec(token.clone(), 2 * positions), any::<bool>(), keys).prop_map(
            move |(mut token_ids, paired, extra_keys)| {
                let bigrams = paired && positions > 0;
                token_ids.truncate(if bigrams { 2 * positions } else { positions });
                OwnedStored {
                    block_hashes: hashes.clone(),
                    token_ids,
                    bigrams,
                    block_size: size,
                    extra_keys,
                    ..OwnedStored::default()
                }
            },
        )
    });
    prop_oneof![1 => placeholder, 5 => full]
}

fn stored() -> impl Strategy<Value = OwnedEvent> {
    let texts = (text(), text(), text(), text(), text(), text(), text());
    (blocks(), option::of(hash()), option::of(any::<i64>()), number(), number(), texts).prop_map(
        |(blocks, parent, lora_id, group, sliding_window, texts)| {
            let (lora_name, cache_salt, medium, spec_kind, locality, ownership, session_id) = texts;
            OwnedEvent::Stored(OwnedStored {
                parent,
                lora_id,
                lora_name,
                cache_salt,
                medium,
                group,
                spec_kind,
                sliding_window,
                locality,
                ownership,
                session_id,
                ..blocks
            })
        },
    )
}

fn event() -> impl Strategy<Value = OwnedEvent> {
    let removed = (vec(hash(), 0..6), text(), number(), text(), text()).prop_map(
        |(block_hashes, medium, group, locality, ownership)| {
            OwnedEvent::Removed(OwnedRemoved { block_hashes, medium, group, locality, ownership })
        },
    );
    prop_oneof![4 => stored(), 2 => removed, 1 => Just(OwnedEvent::Cleared)]
}

fn profile() -> impl Strategy<Value = Profile> {
    proptest::sample::select(Profile::ALL.to_vec())
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    (profile(), vec(event(), 0..5)).prop_map(|(profile, events)| encode_batch(profile, 1.5, Some(1), &events))
}

/// Msgpack that no field of any event may be, as a whole event or in the place of its first field.
fn spoilt_event() -> impl Strategy<Value = (Vec<u8>, RejectedKind)> {
    let junk = prop_oneof![
        Just(vec![0xc0]),
        Just(vec![0xc3]),
        Just(vec![0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0]),
        Just(vec![0xa3, b'a', b'b', b'c']),
        Just(vec![0x91, 0xc0]),
        Just(vec![0x81, 0xa1, b'k', 0x91, 0x90]),
        Just(vec![0xd6, 1, 2, 3, 4, 5]),
    ];
    (junk, 0..5usize).prop_map(|(junk, place)| {
        let mut writer = Writer::default();
        let kind = match place {
            0 => {
                writer.array(3);
                writer.text("BlockRemoved");
                writer.raw(&junk);
                writer.text("GPU");
                RejectedKind::Removal
            }
            1 => {
                writer.array(5);
                writer.text("BlockStored");
                writer.raw(&junk);
                writer.raw(&[0xc0, 0x91, 1, 1]);
                RejectedKind::Store
            }
            2 => {
                writer.map(2);
                writer.text("block_hashes");
                writer.raw(&junk);
                writer.text("type");
                writer.text("BlockRemoved");
                RejectedKind::Removal
            }
            3 => {
                writer.array(2);
                writer.unsigned(7);
                writer.raw(&junk);
                RejectedKind::Unknown
            }
            _ => {
                writer.unsigned(7);
                RejectedKind::Unknown
            }
        };
        (writer.into_bytes(), kind)
    })
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(profile in profile(), events in vec(event(), 0..6)) {
        let events: Vec<_> = events.iter().map(|event| as_sent(profile, event)).collect();
        round_trip(profile, &events);
    }

    #[test]
    fn noise(bytes in vec(any::<u8>(), 0..600)) {
        decode_batch(&bytes);
        replay_reply(&bytes);
        recover_json(&bytes);
        skip_value(&bytes);
    }

    /// Noise that gets past the head of a batch, with bytes that begin values more often than not.
    #[test]
    fn noise_in_a_batch(bytes in vec(prop_oneof![any::<u8>(), 0x80..=0xdfu8], 0..300), count in 0..20u8) {
        let mut frame = vec![0x93, 0x01, 0x90 | (count & 0x0f)];
        frame.extend(bytes);
        decode_batch(&frame);
    }

    #[test]
    fn truncations(frame in frame(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(frame.len());
        decode_batch(&frame[..cut]);
        let mut decoder = Decoder::default();
        prop_assert!(decoder.decode(&frame[..cut]).map_or(true, |batch| batch.broken.is_some()));
    }

    #[test]
    fn bit_flips(frame in frame(), flips in vec((any::<prop::sample::Index>(), 0..8u8), 1..6)) {
        let mut frame = frame;
        for (index, bit) in flips {
            let index = index.index(frame.len());
            frame[index] ^= 1 << bit;
        }
        decode_batch(&frame);
    }

    #[test]
    fn one_bad_event_costs_only_itself(
        profile in profile(),
        events in vec(event(), 0..5),
        spoilt in spoilt_event(),
        place in any::<prop::sample::Index>(),
    ) {
        let (bytes, kind) = spoilt;
        let events: Vec<_> = events.iter().map(|event| as_sent(profile, event)).collect();
        let place = place.index(events.len() + 1);
        let mut writer = Writer::default();
        writer.array(2);
        writer.double(1.5);
        writer.array(events.len() + 1);
        for (index, event) in events.iter().enumerate() {
            if index == place {
                writer.raw(&bytes);
            }
            crate::encode::encode_event(profile, event, &mut writer);
        }
        if place == events.len() {
            writer.raw(&bytes);
        }
        let frame = writer.into_bytes();
        decode_batch(&frame);
        let mut decoder = Decoder::default();
        let batch = decoder.decode(&frame).unwrap();
        prop_assert_eq!(batch.broken, None);
        prop_assert_eq!(batch.events.len(), events.len() + 1);
        let Event::Rejected(rejected) = &batch.events[place] else { panic!("{:?}", batch.events[place]) };
        prop_assert_eq!(rejected.kind, kind);
        let kept: Vec<_> = batch.events.iter().filter_map(|e| OwnedEvent::from_decoded(&batch, e)).collect();
        prop_assert_eq!(kept, events);
    }

    #[test]
    fn frames_of_any_cut(frames in vec(prop_oneof![Just(vec![]), vec(any::<u8>(), 8), vec(any::<u8>(), 0..9)], 0..6)) {
        let bytes: Vec<u8> = frames.into_iter().flat_map(|f| [vec![f.len() as u8], f].concat()).collect();
        replay_reply(&bytes);
    }
}

#[test]
fn depth_and_promised_lengths() {
    for head in [0x91, 0x81, 0xdc, 0xdd, 0xdf] {
        decode_batch(&vec![head; 1 << 16]);
        let mut event = vec![0x92, 0x01, 0x91];
        event.extend(vec![head; 1 << 16]);
        decode_batch(&event);
    }
    // A length of four thousand million for each list that an event has.
    let huge = [0xdd, 0xff, 0xff, 0xff, 0xff];
    for fields in [&[][..], &[0x90], &[0x90, 0xc0], &[0x90, 0xc0, 0x90, 1, 0xc0, 0xc0, 0xc0]] {
        let mut writer = Writer::default();
        writer.raw(&[0x92, 0x01]);
        writer.raw(&huge);
        writer.array(9);
        writer.text("BlockStored");
        writer.raw(fields);
        writer.raw(&huge);
        writer.raw(&[1; 64]);
        decode_batch(writer.bytes());
    }
}

#[test]
fn many_small_values_stay_within_bounds() {
    let count = 1 << 20;
    let batch = |events: usize, write: &dyn Fn(&mut Writer)| {
        let mut writer = Writer::default();
        writer.array(2);
        writer.double(1.5);
        writer.array(events);
        write(&mut writer);
        writer.into_bytes()
    };
    let keys = |writer: &mut Writer, fill: u8| {
        writer.array(9);
        writer.text("BlockStored");
        writer.raw(&[0x91, 1, 0xc0, 0x91, 1, 1, 0xc0, 0xc0, 0xc0, 0x91]);
        writer.array(count);
        writer.raw(&vec![fill; count]);
    };
    let clears = |writer: &mut Writer| {
        for _ in 0..count / 16 {
            writer.array(1);
            writer.text("AllBlocksCleared");
        }
    };
    decode_batch(&batch(count, &|w| w.raw(&vec![0xc0; count])));
    decode_batch(&batch(count, &|w| w.raw(&[0x91, 0xa0].repeat(count))));
    decode_batch(&batch(1, &|w| keys(w, 0x01)));
    decode_batch(&batch(count / 16, &clears));
}

#[test]
fn buffers_of_a_large_batch_are_given_back() {
    let hashes: Vec<_> = (0..3_000_000).map(|_| OwnedHash::Unsigned(1)).collect();
    let removed = OwnedRemoved { block_hashes: hashes, ..OwnedRemoved::default() };
    let frame = encode_batch(Profile::Vllm0_32, 1.0, None, &[OwnedEvent::Removed(removed)]);
    let mut decoder = Decoder::default();
    decoder.decode(&frame).unwrap();
    let large = decoder.retained_bytes();
    decoder.decode(&[0x92, 0x01, 0x90]).unwrap();
    assert!(decoder.retained_bytes() * 2 < large, "{} of {large}", decoder.retained_bytes());
}
