//! The messages in hexadecimal were written by Python's protobuf from `smg-grpc-proto` 0.4.28.

use proptest::prelude::*;

use super::{Completed, GenerateService, MAX_TOKENS, PlainPrompt, Unusable};

use GenerateService::{Sglang, Tokenspeed, Trtllm, Vllm};

const ALL: [GenerateService; 4] = [Vllm, Sglang, Tokenspeed, Trtllm];
const TOKENS: [u32; 8] = [1, 2, 300, 70_000, 5, 6, 7, 8];

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn prompt(service: GenerateService, hex: &str) -> Result<PlainPrompt, Unusable> {
    service.plain_prompt(&bytes(hex))
}

#[test]
fn plain_prompts_of_every_service_are_read() {
    for (service, rank, hex) in [
        // With temperature, max_tokens, n = 1, a stop string, a logit bias, a schema and a seed.
        (
            Vllm,
            Some(1),
            "0a017212100a0178120b0102ac02f0a20405060708221e0d0000003f400352016578018201027b7dc00107d201070805150000803f28014801",
        ),
        (Sglang, Some(2), "0a017212100a0178120b0102ac02f0a2040506070822080d0000003f880101800102880101"),
        (Tokenspeed, Some(2), "0a017212100a0b0102ac02f0a204050607081201781a070d0000003f780140016002"),
        (Trtllm, None, "0a017212100a0178120b0102ac02f0a204050607081a09080110014d0000003f28043001"),
    ] {
        let expected = PlainPrompt { tokens: TOKENS.to_vec(), rank };
        assert_eq!(prompt(service, hex), Ok(expected), "{service:?}");
    }
    // Numbers that are not packed mean the same.
    let apart = PlainPrompt { tokens: vec![1, 300], rank: None };
    assert_eq!(prompt(Vllm, "1205100110ac02"), Ok(apart));
}

#[test]
fn whatever_may_change_the_blocks_is_not_plain() {
    for (service, what, hex) in [
        (Vllm, "truncate_prompt_tokens", "120d120b0102ac02f0a204050607082203d80104"),
        (Vllm, "text", "1a0568656c6c6f"),
        (Vllm, "mm_inputs", "120d120b0102ac02f0a204050607083a03320161"),
        (Vllm, "kv_transfer_params_json", "120d120b0102ac02f0a2040506070842027b7d"),
        (Vllm, "media_refs", "120d120b0102ac02f0a204050607085200"),
        (Vllm, "a field that is not known", "120d120b0102ac02f0a20405060708980601"),
        (Vllm, "no prompt", "0a0172"),
        (Sglang, "lora_id", "120d120b0102ac02f0a204050607087a0161"),
        (Tokenspeed, "mm_inputs", "120d0a0b0102ac02f0a204050607084a00"),
        (Trtllm, "cache_salt_id", "120d120b0102ac02f0a20405060708980107"),
        (Trtllm, "lora_config", "120d120b0102ac02f0a204050607086a00"),
    ] {
        assert_eq!(prompt(service, hex), Err(Unusable::NotPlain), "{service:?} {what}");
    }
    for (service, hex) in [
        (Vllm, "120d120b0102ac02f0a2040506070822027802"),
        (Sglang, "120d120b0102ac02f0a204050607082203880102"),
        (Tokenspeed, "120d0a0b0102ac02f0a204050607081a027802"),
        (Trtllm, "120d120b0102ac02f0a204050607081a020802"),
    ] {
        assert_eq!(prompt(service, hex), Err(Unusable::ManyOutputs), "{service:?}");
    }
    for (what, hex) in [
        ("a negative rank", "120d120b0102ac02f0a2040506070848ffffffffffffffffff01"),
        ("half a message", "120d120b0102ac02f0a204050607"),
        ("two prompts", "120412020102120412020304"),
        ("a token beyond 32 bits", "12071205ffffffff1f"),
    ] {
        assert_eq!(prompt(Vllm, hex), Err(Unusable::Malformed), "{what}");
    }
}

#[test]
fn too_many_tokens_are_refused() {
    let length = MAX_TOKENS + 1;
    let varint = |mut rest: usize, out: &mut Vec<u8>| {
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    };
    let mut packed = vec![0x12];
    varint(length, &mut packed);
    packed.resize(packed.len() + length, 1);
    let mut message = vec![0x12];
    varint(packed.len(), &mut message);
    message.extend(packed);
    assert_eq!(Vllm.plain_prompt(&message), Err(Unusable::Malformed));
}

#[test]
fn what_was_cached_is_in_the_last_message() {
    let whole = Completed { prompt_tokens: 8, cached_tokens: 4, index: 0, served: true };
    for (service, hex) in [
        (Vllm, "12130a0309ac02120473746f701808200228045009"),
        (Sglang, "0a01721a110a010912066c656e677468180820012804"),
        (Tokenspeed, "0a01721a0f0a0109120473746f70180820012804"),
        (Trtllm, "0a01721a0f0a01091a0473746f70280830013804"),
    ] {
        assert_eq!(service.completed(&bytes(hex)), Ok(Some(whole)), "{service:?}");
    }
    let chunk = "0a090a0109100818012004";
    assert_eq!(Vllm.completed(&bytes(chunk)), Ok(None));
    let aborted = Completed { served: false, ..whole };
    assert_eq!(Vllm.completed(&bytes("120b120561626f727418082804")), Ok(Some(aborted)));
    let second = Completed { index: 1, ..whole };
    assert_eq!(Vllm.completed(&bytes("120c120473746f70180828044001")), Ok(Some(second)));
}

#[test]
fn a_prompt_does_not_show_its_tokens() {
    let shown = format!("{:?}", PlainPrompt { tokens: vec![424_242], rank: None });
    assert!(!shown.contains("424242"), "{shown}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(message in proptest::collection::vec(any::<u8>(), 0..200)) {
        for service in ALL {
            let _ = service.plain_prompt(&message);
            let _ = service.completed(&message);
        }
    }

    /// Any one byte of a whole message may be anything.
    #[test]
    fn damaged_messages_never_panic(at in 0_usize..57, byte: u8) {
        let mut message = bytes("0a017212100a0178120b0102ac02f0a20405060708221e0d0000003f400352016578018201027b7dc00107d201070805150000803f28014801");
        message[at] = byte;
        for service in ALL {
            let _ = service.plain_prompt(&message);
            let _ = service.completed(&message);
        }
    }
}
