//! Bytes that msgspec produced with the engines' own structs, in both directions.
//!
//! The stores are whole samples, except that arrays of one release are spelt from their common part. Where
//! no sample exists (digests, removals of some releases, a nil rank) the bytes are put together from samples
//! of the same parts.

mod engines;

use super::*;
use crate::Decoder;

const HEAD: &str = "cb41d954fc4020000091";
const STORED: &str =
    "ab426c6f636b53746f72656492cffffffffffffffffe01cf0123456789abcdef9401cc80cd0100ce0001117002c0";
const REMOVED: &str = "ac426c6f636b52656d6f76656491cffffffffffffffffe";
const STORED_24: &str = "8ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cffffffffffffffffe01b1706172656e745f626c6f636b5f68617368cf0123456789abcdefa9746f6b656e5f6964739401cc80cd0100ce00011170aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797392c093a66c6f72612d6192a66d6d68617368fda473616c74a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e";
const PLACEHOLDER: &str = "8aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cffffffffffffffffeb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647390aa626c6f636b5f73697a6500a76c6f72615f6964c0a66d656469756da753544f52414745a96c6f72615f6e616d65c0a967726f75705f69647800a86c6f63616c697479a652454d4f5445";
const REMOVED_24: &str = "84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cffffffffffffffffea66d656469756da3475055a967726f75705f69647800";
const STORED_32: &str = "8ca474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cffffffffffffffffeb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6eaa73657373696f6e5f6964a173";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
}

/// Encodes to exactly `hex` and decodes to exactly the event again.
fn golden(profile: Profile, event: OwnedEvent, hex: &str) {
    let has_rank = !matches!(profile, Profile::Vllm0_9 | Profile::Sglang0_4_6);
    let batch = if has_rank { format!("93{HEAD}{hex}00") } else { format!("92{HEAD}{hex}") };
    let batch = bytes(&batch);
    let events = [event];
    assert_eq!(encode_batch(profile, 1_700_000_000.5, Some(0), &events), batch, "{profile}");

    let mut decoder = Decoder::default();
    let read = decoder.decode(&batch).unwrap();
    assert_eq!((read.broken, read.unknown_fields), (None, 0), "{profile}");
    assert!((read.timestamp - 1_700_000_000.5).abs() < f64::EPSILON);
    assert_eq!(read.rank, has_rank.then_some(0));
    let again: Vec<_> = read.events.iter().filter_map(|e| OwnedEvent::from_decoded(&read, e)).collect();
    assert_eq!(again, events, "{profile}");
}

fn stored() -> OwnedStored {
    OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(0xffff_ffff_ffff_fffe), OwnedHash::Unsigned(1)],
        parent: Some(OwnedHash::Unsigned(0x0123_4567_89ab_cdef)),
        token_ids: vec![1, 128, 256, 70000],
        block_size: 2,
        ..OwnedStored::default()
    }
}

fn on_gpu() -> OwnedStored {
    OwnedStored { medium: Some("GPU".into()), ..stored() }
}

fn described() -> OwnedStored {
    let keys = vec![
        OwnedExtraKey::Text("lora-a".into()),
        OwnedExtraKey::Multimodal("mmhash".into(), -3),
        OwnedExtraKey::Text("salt".into()),
    ];
    OwnedStored {
        extra_keys: Some(vec![None, Some(keys)]),
        group: Some(0),
        spec_kind: Some("full_attention".into()),
        ..on_gpu()
    }
}

fn removed(medium: Option<&str>, group: Option<u32>) -> OwnedEvent {
    OwnedEvent::Removed(OwnedRemoved {
        block_hashes: vec![OwnedHash::Unsigned(0xffff_ffff_ffff_fffe)],
        medium: medium.map(str::to_owned),
        group,
        ..OwnedRemoved::default()
    })
}

#[test]
fn stores_as_arrays() {
    golden(Profile::Vllm0_9, OwnedEvent::Stored(stored()), &format!("96{STORED}"));
    golden(Profile::Vllm0_10, OwnedEvent::Stored(on_gpu()), &format!("97{STORED}a3475055"));
    golden(Profile::Vllm0_14, OwnedEvent::Stored(on_gpu()), &format!("98{STORED}a3475055c0"));
    golden(Profile::Vllm0_17, OwnedEvent::Stored(on_gpu()), &format!("99{STORED}a3475055c0c0"));
    golden(Profile::Vllm0_20, OwnedEvent::Stored(on_gpu()), &format!("9a{STORED}a3475055c0c0c0"));
    let tail = "a3475055c092c093a66c6f72612d6192a66d6d68617368fda473616c7400ae66756c6c5f617474656e74696f6ec0";
    golden(Profile::Vllm0_22, OwnedEvent::Stored(described()), &format!("9c{STORED}{tail}"));
}

#[test]
fn stores_as_maps() {
    let maps = Profile::ALL.into_iter().filter(|profile| profile.is_at_least(Profile::Vllm0_24));
    for profile in maps {
        golden(profile, OwnedEvent::Stored(described()), STORED_24);
    }
    let placeholder = OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(0xffff_ffff_ffff_fffe)],
        medium: Some("STORAGE".into()),
        group: Some(0),
        locality: Some("REMOTE".into()),
        ..OwnedStored::default()
    };
    golden(Profile::Vllm0_26, OwnedEvent::Stored(placeholder), PLACEHOLDER);
    let newest = OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(0xffff_ffff_ffff_fffe)],
        parent: None,
        token_ids: vec![1, 2],
        extra_keys: Some(vec![None]),
        session_id: Some("s".into()),
        ..described()
    };
    golden(Profile::Vllm0_32, OwnedEvent::Stored(newest), STORED_32);
}

#[test]
fn digests_instead_of_integers() {
    let digest = |fill: u8| OwnedHash::Bytes(vec![fill; 32]);
    let event = OwnedStored {
        block_hashes: vec![digest(0xab)],
        parent: Some(digest(0xcd)),
        token_ids: vec![1, 2],
        extra_keys: Some(vec![None]),
        ..described()
    };
    let hex = STORED_32
        .replace("8ca4", "8ba4")
        .replace("91cffffffffffffffffe", &format!("91c420{}", "ab".repeat(32)))
        .replace("68617368c0a9", &format!("68617368c420{}a9", "cd".repeat(32)))
        .replace("aa73657373696f6e5f6964a173", "");
    golden(Profile::Vllm0_24, OwnedEvent::Stored(event), &hex);
}

#[test]
fn removals_and_clears() {
    golden(Profile::Vllm0_9, removed(None, None), &format!("92{REMOVED}"));
    for profile in [Profile::Vllm0_10, Profile::Vllm0_14, Profile::Vllm0_17] {
        golden(profile, removed(Some("GPU"), None), &format!("93{REMOVED}a3475055"));
    }
    for profile in [Profile::Vllm0_20, Profile::Vllm0_22] {
        golden(profile, removed(Some("GPU"), Some(0)), &format!("94{REMOVED}a347505500"));
    }
    for profile in Profile::ALL {
        if profile.is_at_least(Profile::Vllm0_24) {
            golden(profile, removed(Some("GPU"), Some(0)), REMOVED_24);
        }
        if profile.events_are_maps() {
            golden(profile, OwnedEvent::Cleared, "81a474797065b0416c6c426c6f636b73436c6561726564");
        } else {
            golden(profile, OwnedEvent::Cleared, "91b0416c6c426c6f636b73436c6561726564");
        }
    }
}

#[test]
fn a_rank_that_is_not_reported_is_nil() {
    let batch = encode_batch(Profile::Vllm0_22, 1_700_000_000.5, None, &[OwnedEvent::Cleared]);
    assert_eq!(batch, bytes("93cb41d954fc402000009191b0416c6c426c6f636b73436c6561726564c0"));
}

#[test]
fn names_come_back() {
    for profile in Profile::ALL {
        assert_eq!(profile.to_string().parse(), Ok(profile));
    }
    assert_eq!("vllm-0.30".parse(), Ok(Profile::Vllm0_32));
    assert_eq!("0.14".parse(), Ok(Profile::Vllm0_14));
    assert_eq!("sglang-0.5.23".parse(), Ok(Profile::Sglang0_5_22));
    assert_eq!("vllm-1".parse::<Profile>(), Err(UnknownProfile("vllm-1".into())));
    let with_topic = Profile::ALL.into_iter().filter(|profile| profile.replay_has_topic());
    assert_eq!(with_topic.count(), 5);
    let names = |profile: Profile| profile.as_str().split('-').next().unwrap_or_default();
    assert!(Profile::ALL.into_iter().all(|profile| profile.engine().as_str() == names(profile)));
    assert!(!Profile::Sglang0_5_22.is_at_least(Profile::Vllm0_9));
}
