//! The bytes of `SGLang`, `TokenSpeed` and TensorRT-LLM, one set per wire shape.
//!
//! `SGLang`'s and `TokenSpeed`'s were written by the releases' own structs. TensorRT-LLM's by structs of the
//! same declaration: its own need the native library.

use super::*;

const TAIL: &str = "fe01d3fedcba98765432119401cc80cd0100ce0001117002";
const ARRAY: &str = "ab426c6f636b53746f72656492";
const BIGRAMS: &str =
    "97ab426c6f636b53746f72656491fed3fedcba9876543211929201cc8092cc80cd010002c0aa4350555f50494e4e4544";
const SALT_MAP: &str = "81aa63616368655f73616c74a874656e616e742d41";
const REMOVED: &str = "ac426c6f636b52656d6f76656491fe";
const MAP: &str = "a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392fe01b1706172656e745f626c6f636b5f68617368d3fedcba9876543211a9746f6b656e5f6964739401cc80cd0100ce00011170aa626c6f636b5f73697a6502a76c6f72615f6964c0";
const GPU: &str = "a66d656469756da3475055";
const SALT_AND_SESSION: &str = "aa63616368655f73616c74a874656e616e742d41aa73657373696f6e5f6964a173";
const LORA_NAME: &str = "a96c6f72615f6e616d65a26164";
const BIGRAMS_MAP: &str = "87a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391feb1706172656e745f626c6f636b5f68617368d3fedcba9876543211a9746f6b656e5f696473929201cc8092cc80cd0100aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756daa4350555f50494e4e4544";
const REMOVED_MAP: &str =
    "83a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391fea66d656469756da3475055";
/// The sample of the newest map release with a parent of nil.
const FIRST_MAP: &str = "87a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391feb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055";
const TRTLLM: &str = "a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cffffffffffffffffe01b1706172656e745f626c6f636b5f68617368cf0123456789abcdefa9746f6b656e5f6964739401cc80cd0100ce00011170aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0";
const TRTLLM_REMOVED: &str = "83a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cffffffffffffffffea66d656469756da3475055";

const ARRAYS: [Profile; 4] =
    [Profile::Sglang0_4_6, Profile::Sglang0_4_7, Profile::Sglang0_5_9, Profile::Sglang0_5_18];
const MAPS: [Profile; 2] = [Profile::Sglang0_5_20, Profile::Sglang0_5_22];

fn sglang() -> OwnedStored {
    OwnedStored {
        block_hashes: vec![OwnedHash::Signed(-2), OwnedHash::Unsigned(1)],
        parent: Some(OwnedHash::Signed(0xfedc_ba98_7654_3211_u64.cast_signed())),
        ..stored()
    }
}

fn sglang_on_gpu() -> OwnedStored {
    OwnedStored { medium: Some("GPU".into()), ..sglang() }
}

fn bigrams() -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored {
        block_hashes: vec![OwnedHash::Signed(-2)],
        token_ids: vec![1, 128, 128, 256],
        bigrams: true,
        medium: Some("CPU_PINNED".into()),
        ..sglang()
    })
}

fn sglang_removed(medium: Option<&str>) -> OwnedEvent {
    OwnedEvent::Removed(OwnedRemoved {
        block_hashes: vec![OwnedHash::Signed(-2)],
        medium: medium.map(str::to_owned),
        ..OwnedRemoved::default()
    })
}

#[test]
fn sglang_arrays() {
    for profile in &ARRAYS[..2] {
        golden(*profile, OwnedEvent::Stored(sglang()), &format!("96{ARRAY}{TAIL}c0"));
        golden(*profile, sglang_removed(None), &format!("92{REMOVED}"));
    }
    for profile in &ARRAYS[2..] {
        golden(*profile, OwnedEvent::Stored(sglang_on_gpu()), &format!("97{ARRAY}{TAIL}c0a3475055"));
        golden(*profile, OwnedEvent::Stored(sglang()), &format!("97{ARRAY}{TAIL}c0c0"));
        golden(*profile, bigrams(), BIGRAMS);
        golden(*profile, sglang_removed(Some("GPU")), &format!("93{REMOVED}a3475055"));
    }
    let salted = OwnedStored { cache_salt: Some("tenant-A".into()), ..sglang_on_gpu() };
    let hex = format!("98{ARRAY}{TAIL}c0a3475055{SALT_MAP}");
    golden(Profile::Sglang0_5_18, OwnedEvent::Stored(salted), &hex);
}

#[test]
fn sglang_maps() {
    let salted =
        OwnedStored { cache_salt: Some("tenant-A".into()), session_id: Some("s".into()), ..sglang_on_gpu() };
    let first = OwnedStored {
        block_hashes: vec![OwnedHash::Signed(-2)],
        parent: None,
        token_ids: vec![1, 2],
        ..sglang_on_gpu()
    };
    for profile in MAPS {
        golden(profile, OwnedEvent::Stored(sglang_on_gpu()), &format!("87{MAP}{GPU}"));
        golden(profile, OwnedEvent::Stored(sglang()), &format!("86{MAP}"));
        golden(profile, OwnedEvent::Stored(salted.clone()), &format!("89{MAP}{GPU}{SALT_AND_SESSION}"));
        golden(profile, OwnedEvent::Stored(first.clone()), FIRST_MAP);
        golden(profile, bigrams(), BIGRAMS_MAP);
        golden(profile, sglang_removed(Some("GPU")), REMOVED_MAP);
    }
    let adapted = OwnedStored { lora_name: Some("ad".into()), ..salted };
    let hex = format!("8a{MAP}{GPU}{SALT_AND_SESSION}{LORA_NAME}");
    golden(Profile::Sglang0_5_22, OwnedEvent::Stored(adapted), &hex);
}

#[test]
fn tokenspeed() {
    let profile = Profile::Tokenspeed0_1_1;
    golden(profile, OwnedEvent::Stored(sglang()), &format!("95{ARRAY}{TAIL}"));
    golden(profile, sglang_removed(None), &format!("92{REMOVED}"));
    let event = OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(0xffff_ffff_ffff_fffe)],
        parent: None,
        token_ids: vec![1, 2],
        ..sglang()
    };
    golden(profile, OwnedEvent::Stored(event), "95ab426c6f636b53746f72656491cffffffffffffffffec092010202");
}

#[test]
fn trtllm() {
    let profile = Profile::TrtllmZmq;
    golden(profile, OwnedEvent::Stored(on_gpu()), &format!("88{TRTLLM}"));
    golden(profile, removed(Some("GPU"), None), TRTLLM_REMOVED);
    let image = OwnedExtraKey::Multimodal("ab".repeat(32), 0);
    let event = OwnedStored { extra_keys: Some(vec![None, Some(vec![image])]), ..on_gpu() };
    let items = format!(
        "a76d6d5f6b65797392909183a474797065a66d6d5f6b6579a468617368d940{}ac73746172745f6f666673657400",
        "6162".repeat(32)
    );
    golden(profile, OwnedEvent::Stored(event), &format!("89{TRTLLM}{items}"));
}

#[test]
fn a_digest_as_digits() {
    let event = OwnedStored {
        block_hashes: vec![OwnedHash::Hex(vec![0xab; 32]), OwnedHash::Unsigned(1)],
        ..on_gpu()
    };
    let digits = format!("92d940{}01", "6162".repeat(32));
    golden(
        Profile::TrtllmZmq,
        OwnedEvent::Stored(event),
        &format!("88{}", TRTLLM.replace("92cffffffffffffffffe01", &digits)),
    );
}
