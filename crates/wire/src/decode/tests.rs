use super::*;
use crate::event::{Layout, Tokens};
use crate::msgpack::Writer;

/// Writes a batch around what `write` puts in as `count` events.
fn batch(count: usize, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.array(3);
    writer.double(1.5);
    writer.array(count);
    write(&mut writer);
    writer.nil();
    writer.into_bytes()
}

fn hashes(writer: &mut Writer, hashes: &[u64]) {
    writer.array(hashes.len());
    for hash in hashes {
        writer.unsigned(*hash);
    }
}

fn removal(writer: &mut Writer, hash: u64) {
    writer.array(2);
    writer.text("BlockRemoved");
    hashes(writer, &[hash]);
}

/// A store by position, with every part open to spoiling.
fn store(
    writer: &mut Writer,
    write_hashes: impl FnOnce(&mut Writer),
    tokens: impl FnOnce(&mut Writer),
    size: i64,
) {
    writer.array(5);
    writer.text("BlockStored");
    write_hashes(writer);
    writer.nil();
    tokens(writer);
    writer.signed(size);
}

fn only<'f>(decoder: &mut Decoder, frame: &'f [u8]) -> Event<'f> {
    let mut batch = decoder.decode(frame).unwrap();
    assert_eq!((batch.events.len(), batch.broken), (1, None));
    batch.events.remove(0)
}

fn rejected(kind: RejectedKind, reason: RejectReason) -> Event<'static> {
    Event::Rejected(Rejected { kind, reason })
}

fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn sglang_arrays() {
    let mut decoder = Decoder::default();
    let base = "ab426c6f636b53746f72656492fe01d3fedcba98765432119401cc80cd0100ce0001117002c0a3475055";
    let frame = batch(3, |w| {
        w.raw(&hex(&format!("97{base}")));
        w.raw(&hex(&format!("98{base}81aa63616368655f73616c74a874656e616e742d41")));
        w.raw(&hex("97ab426c6f636b53746f72656491fed3fedcba9876543211929201cc8092cc80cd010002c0aa4350555f50494e4e4544"));
    });
    let read = decoder.decode(&frame).unwrap();
    assert_eq!((read.unknown_fields, read.broken), (0, None));
    let stores: Vec<_> = read
        .events
        .iter()
        .map(|event| match event {
            Event::Stored(stored) => stored,
            other => panic!("{other:?}"),
        })
        .collect();
    let first = read.stored_hashes(stores[0])[0];
    assert_eq!((first.bits, first.negative, first.is_wide()), (-2i64 as u64, true, false));
    assert_eq!(stores[0].parent.map(|p| p.bits), Some(0xfedc_ba98_7654_3211));
    assert_eq!(stores.iter().map(|s| s.cache_salt).collect::<Vec<_>>(), [None, Some("tenant-A"), None]);
    assert_eq!(stores[1].lora_name, None);
    assert_eq!(read.tokens(stores[2]), Tokens::Bigrams(&[1, 128, 128, 256]));
    assert_eq!(read.layout(stores[2]), Layout::Dense);
    assert_eq!(stores[2].medium, Some("CPU_PINNED"));
}

#[test]
fn tokenspeed_stops_after_the_block_size() {
    let mut decoder = Decoder::default();
    let frame = batch(1, |w| w.raw(&hex("95ab426c6f636b53746f72656491cffffffffffffffffec092010202")));
    let Event::Stored(stored) = only(&mut decoder, &frame) else { panic!() };
    assert_eq!((stored.block_size, stored.medium, stored.parent), (2, None, None));
}

#[test]
fn the_type_may_come_last_and_unknown_keys_anywhere() {
    let mut decoder = Decoder::default();
    let frame = batch(1, |w| {
        w.map(5);
        w.text("novelty");
        w.raw(&[0x92, 0x81, 0xa1, b'k', 0xc4, 1, 0, 0x90]);
        w.text("block_hashes");
        hashes(w, &[9]);
        w.unsigned(17);
        w.text("a key that is no text");
        w.text("token_ids");
        w.text("which a removal has not");
        w.text("type");
        w.text("BlockRemoved");
    });
    let read = decoder.decode(&frame).unwrap();
    let [Event::Removed(removed)] = &read.events[..] else { panic!("{:?}", read.events) };
    assert_eq!(read.removed_hashes(removed)[0].bits, 9);
    assert_eq!((read.unknown_fields, read.broken), (3, None));
}

#[test]
fn trailing_elements_are_counted() {
    let mut writer = Writer::default();
    writer.array(5);
    writer.unsigned(3);
    writer.array(1);
    writer.array(3);
    writer.text("AllBlocksCleared");
    writer.text("kvcr");
    writer.nil();
    writer.signed(-1);
    writer.map(0);
    writer.text("more");
    let frame = writer.into_bytes();
    let mut decoder = Decoder::default();
    let read = decoder.decode(&frame).unwrap();
    assert_eq!(read.events, [Event::Cleared { ownership: Some("kvcr") }]);
    assert_eq!((read.rank, read.unknown_fields, read.broken), (Some(-1), 3, None));
    assert!((read.timestamp - 3.0).abs() < f64::EPSILON);
}

#[test]
fn malformed_stores_say_why() {
    type Part = fn(&mut Writer);
    let two: Part = |w| hashes(w, &[1, 2]);
    let four: Part = |w| hashes(w, &[1, 2, 3, 4]);
    let cases: [(Part, Part, i64, RejectReason); 13] = [
        (|w| w.raw(&[0x91, 0xc0]), four, 2, RejectReason::BadHash),
        (|w| w.raw(&[0x91, 0xa2, b'f', b'f']), four, 2, RejectReason::BadHash),
        (|w| w.raw(&[0x91, 0xc4, 1, 0]), four, 2, RejectReason::BadHash),
        (|w| w.raw(&[0x91, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0]), four, 2, RejectReason::BadHash),
        (Writer::nil, four, 2, RejectReason::BadType),
        (two, |w| w.raw(&[0x91, 0xff]), 2, RejectReason::BadToken),
        (two, |w| w.raw(&[0x92, 0x01, 0xa1, b'a']), 2, RejectReason::BadToken),
        (two, |w| w.raw(&[0x92, 0x92, 1, 2, 3]), 2, RejectReason::BadToken),
        (two, |w| w.raw(&[0x91, 0x93, 1, 2, 3]), 2, RejectReason::BadToken),
        (two, Writer::nil, 2, RejectReason::BadType),
        (two, four, 0, RejectReason::BadBlockSize),
        (two, four, -1, RejectReason::BadBlockSize),
        (two, four, 3, RejectReason::TooFewTokens),
    ];
    let mut decoder = Decoder::default();
    for (hashes, tokens, size, reason) in cases {
        let frame = batch(3, |w| {
            removal(w, 7);
            store(w, hashes, tokens, size);
            removal(w, 8);
        });
        let read = decoder.decode(&frame).unwrap();
        assert_eq!(read.events[1], rejected(RejectedKind::Store, reason));
        let kept: Vec<_> = [&read.events[0], &read.events[2]]
            .map(|event| match event {
                Event::Removed(removed) => read.removed_hashes(removed)[0].bits,
                other => panic!("{other:?}"),
            })
            .into();
        assert_eq!((kept, read.broken), (vec![7, 8], None));
        assert_eq!((read.hashes.len(), read.tokens.len()), (2, 0), "nothing of the rejected one stays");
    }
}

#[test]
fn other_malformed_events() {
    type Write = fn(&mut Writer);
    let unknown = rejected(RejectedKind::Unknown, RejectReason::NoKind);
    let cases: [(Write, Event<'static>); 12] = [
        (Writer::nil, unknown.clone()),
        (|w| w.array(0), unknown.clone()),
        (|w| w.map(0), unknown.clone()),
        (|w| w.raw(&[0x92, 0x05, 0x91, 0xc0]), unknown.clone()),
        (|w| w.raw(&[0x91, 0xa1, 0xff]), unknown),
        (|w| w.raw(&[0x92, 0xa1, b'X', 0xc0]), Event::Unknown { kind: "X" }),
        (
            |w| {
                w.array(1);
                w.text("BlockRemoved");
            },
            rejected(RejectedKind::Removal, RejectReason::MissingField),
        ),
        (
            |w| {
                w.array(3);
                w.text("BlockRemoved");
                w.raw(&[0x91, 0xc0]);
                w.text("GPU");
            },
            rejected(RejectedKind::Removal, RejectReason::BadHash),
        ),
        (
            |w| {
                w.array(3);
                w.text("BlockRemoved");
                w.raw(&[0x90, 0x05]);
            },
            rejected(RejectedKind::Removal, RejectReason::BadType),
        ),
        (
            |w| {
                w.array(4);
                w.text("BlockStored");
                w.raw(&[0x90, 0xc0, 0x90]);
            },
            rejected(RejectedKind::Store, RejectReason::MissingField),
        ),
        (
            |w| {
                w.array(10);
                w.text("BlockStored");
                w.raw(&[0x91, 1, 0xc0, 0x91, 1, 1, 0xc0, 0xc0, 0xc0, 0xc0, 0xff]);
            },
            rejected(RejectedKind::Store, RejectReason::BadType),
        ),
        (
            |w| {
                w.array(9);
                w.text("BlockStored");
                w.raw(&[0x91, 1, 0xc0, 0x91, 1, 1, 0xc0, 0xc0, 0xc0, 0x92, 0xc0, 0xc0]);
            },
            rejected(RejectedKind::Store, RejectReason::BadType),
        ),
    ];
    let mut decoder = Decoder::default();
    for (write, expected) in cases {
        let frame = batch(1, write);
        assert_eq!(only(&mut decoder, &frame), expected);
    }
}

#[test]
fn shapes_that_look_odd_but_are_not() {
    let mut decoder = Decoder::default();
    let frame = batch(4, |w| {
        store(w, |w| hashes(w, &[]), |w| hashes(w, &[1, 2, 3, 4]), 2);
        store(w, |w| hashes(w, &[5]), |w| hashes(w, &[]), 0);
        store(w, |w| hashes(w, &[5, 6]), |w| hashes(w, &[]), 16);
        store(w, |w| hashes(w, &[5, 8]), |w| hashes(w, &[1, 2, 3, 4]), 1);
    });
    let read = decoder.decode(&frame).unwrap();
    let layouts: Vec<_> = read
        .events
        .iter()
        .map(|event| match event {
            Event::Stored(stored) => read.layout(stored),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(layouts, [Layout::Sparse, Layout::HashOnly, Layout::HashOnly, Layout::Sparse]);
}

#[test]
fn digests_shorten_to_their_tail() {
    let mut decoder = Decoder::default();
    let digest: Vec<u8> = (0..32).collect();
    let frame = batch(1, |w| {
        w.array(2);
        w.text("BlockRemoved");
        w.array(1);
        w.binary(&digest);
    });
    let read = decoder.decode(&frame).unwrap();
    let [Event::Removed(removed)] = &read.events[..] else { panic!() };
    let hash = read.removed_hashes(removed)[0];
    assert_eq!(hash.bits, 0x1819_1a1b_1c1d_1e1f);
    assert_eq!(read.wide(hash), Some(&digest[..]));
}

#[test]
fn hexadecimal_digests_shorten_to_their_head() {
    let mut decoder = Decoder::default();
    let frame = batch(1, |w| {
        w.array(2);
        w.text("BlockRemoved");
        w.array(3);
        w.text(&"0123456789aBcDeF".repeat(4));
        w.text("fedcba9876543210");
        w.unsigned(7);
    });
    let read = decoder.decode(&frame).unwrap();
    let [Event::Removed(removed)] = &read.events[..] else { panic!("{:?}", read.events) };
    let [wide, short, integer] = read.removed_hashes(removed) else { panic!() };
    assert_eq!((wide.bits, short.bits, integer.bits), (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 7));
    assert_eq!(read.wide(*wide).map(<[u8]>::len), Some(32));
    for bad in ["", "0123456789abcde", "0123456789abcdeg", &"00".repeat(65)] {
        let frame = batch(1, |w| {
            w.array(2);
            w.text("BlockRemoved");
            w.array(1);
            w.text(bad);
        });
        assert_eq!(only(&mut decoder, &frame), rejected(RejectedKind::Removal, RejectReason::BadHash));
    }
}

/// A store as TensorRT-LLM pushes it: hashes, the two lists that may tell of images, and a block size of 2.
fn trtllm_store(w: &mut Writer, blocks: usize, tokens: impl FnOnce(&mut Writer), items: Option<&[u8]>) {
    w.map(5 + usize::from(items.is_some()));
    w.text("type");
    w.text("BlockStored");
    w.text("block_hashes");
    hashes(w, &(1..=blocks as u64).collect::<Vec<_>>());
    w.text("parent_block_hash");
    w.nil();
    if let Some(items) = items {
        w.text("mm_keys");
        w.raw(items);
    }
    w.text("token_ids");
    tokens(w);
    w.text("block_size");
    w.unsigned(2);
}

#[test]
fn texts_among_the_tokens_are_keys_of_their_block() {
    let (cat, dog) = ("ca".repeat(32), "d0".repeat(32));
    let mut decoder = Decoder::default();
    let frame = batch(1, |w| {
        let tokens = |w: &mut Writer| {
            w.array(8);
            w.unsigned(5);
            for text in [&cat, &cat, &cat, &dog, &cat] {
                w.text(text);
            }
            w.unsigned(70000);
            w.unsigned(6);
        };
        trtllm_store(w, 4, tokens, None);
    });
    let read = decoder.decode(&frame).unwrap();
    let [Event::Stored(stored)] = &read.events[..] else { panic!("{:?}", read.events) };
    assert_eq!(read.tokens(stored), Tokens::Flat(&[5, 0, 0, 0, 0, 0, 70000, 6]));
    let keys = |block| -> Vec<_> {
        let own = |key: &ExtraKey<'_>| match *key {
            ExtraKey::Multimodal { id, offset } => (id.to_owned(), offset),
            other => panic!("{other:?}"),
        };
        read.extra_keys(stored, block).iter().map(own).collect()
    };
    assert_eq!(keys(0), [(cat.clone(), 1)]);
    assert_eq!(keys(1), [(cat.clone(), 0)], "one key for a run, in each block that it reaches");
    assert_eq!(keys(2), [(dog, 0), (cat, 1)]);
    assert_eq!(keys(3), []);
}

#[test]
fn items_and_texts_go_together() {
    let item = hex("9183a474797065a66d6d5f6b6579a468617368a26162ac73746172745f6f666673657407");
    let text = "ee".repeat(16);
    let tokens = |w: &mut Writer| {
        w.array(2);
        w.text(&text);
        w.unsigned(1);
    };
    let mut decoder = Decoder::default();
    let frame = batch(1, |w| trtllm_store(w, 1, tokens, Some(&[&[0x91], &item[..]].concat())));
    let read = decoder.decode(&frame).unwrap();
    let [Event::Stored(stored)] = &read.events[..] else { panic!("{:?}", read.events) };
    let multimodal = |id, offset| ExtraKey::Multimodal { id, offset };
    assert_eq!(read.extra_keys(stored, 0), [multimodal(&text, 0), multimodal("ab", 7)]);
    assert_eq!(read.unknown_fields, 0);

    let spoilt: [(usize, Vec<u8>, RejectReason); 4] = [
        // Two blocks, a list for one.
        (2, [&[0x91], &item[..]].concat(), RejectReason::BadType),
        // An item without a hash; something that is not an item.
        (1, hex("919181ac73746172745f6f666673657407"), RejectReason::BadType),
        (1, vec![0x91, 0x91, 0x05], RejectReason::BadType),
        // Texts on a store with holes: three positions, one block of two.
        (1, vec![0xc0], RejectReason::BadToken),
    ];
    for (blocks, items, reason) in spoilt {
        let tokens = |w: &mut Writer| {
            let count = if reason == RejectReason::BadToken { 3 } else { 2 * blocks };
            w.array(count);
            w.text(&text);
            w.raw(&vec![1; count - 1]);
        };
        let frame = batch(1, |w| trtllm_store(w, blocks, tokens, Some(&items)));
        assert_eq!(only(&mut decoder, &frame), rejected(RejectedKind::Store, reason), "{items:x?}");
    }
}

#[test]
fn extra_keys_of_every_shape() {
    let mut decoder = Decoder::default();
    let frame = batch(1, |w| {
        w.array(9);
        w.text("BlockStored");
        w.raw(&[0x92, 1, 2, 0xc0, 0x92, 1, 2, 1, 0xc0, 0xc0, 0xc0]);
        w.array(2);
        w.nil();
        w.array(6);
        w.text("salt");
        w.binary(&[7; 3]);
        w.signed(-5);
        w.raw(&[0x92, 0xa2, b'm', b'm', 0xfd]);
        w.raw(&[0x91, 0xc3]);
        w.unsigned(u64::MAX);
    });
    let read = decoder.decode(&frame).unwrap();
    let [Event::Stored(stored)] = &read.events[..] else { panic!("{:?}", read.events) };
    assert_eq!(read.extra_keys(stored, 0), []);
    assert_eq!(
        read.extra_keys(stored, 1),
        [
            ExtraKey::Text("salt"),
            ExtraKey::Bytes(&[7; 3]),
            ExtraKey::Integer(-5),
            ExtraKey::Multimodal { id: "mm", offset: -3 },
            ExtraKey::Other(&[0x91, 0xc3]),
            ExtraKey::Other(&[0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ]
    );
    assert_eq!(read.extra_keys(stored, 2), []);
}

#[test]
fn a_broken_message_keeps_what_came_before() {
    let mut decoder = Decoder::default();
    let whole = batch(2, |w| {
        removal(w, 7);
        removal(w, 8);
    });
    let first_end = whole.len() - 17;
    for cut in 11..whole.len() {
        let read = decoder.decode(&whole[..cut]).unwrap();
        let expected = if cut < first_end {
            0
        } else if cut < whole.len() - 1 {
            1
        } else {
            2
        };
        assert_eq!((read.events.len(), read.broken), (expected, Some(DecodeError::Truncated)), "{cut}");
    }
    let mut longer = whole.clone();
    longer.push(0xc0);
    let read = decoder.decode(&longer).unwrap();
    assert_eq!((read.events.len(), read.broken), (2, Some(DecodeError::TrailingBytes)));

    let mut text_as_rank = whole.clone();
    text_as_rank.pop();
    text_as_rank.extend([0xa1, b'0']);
    let read = decoder.decode(&text_as_rank).unwrap();
    assert_eq!((read.events.len(), read.broken), (2, Some(DecodeError::NotABatch)));

    let mut no_msgpack = whole;
    no_msgpack[first_end] = 0xc1;
    let read = decoder.decode(&no_msgpack).unwrap();
    assert_eq!((read.events.len(), read.broken), (1, Some(DecodeError::NotMsgpack)));
}

#[test]
fn what_is_no_batch() {
    let mut decoder = Decoder::default();
    let cases: [(&[u8], DecodeError); 8] = [
        (&[], DecodeError::Truncated),
        (&[0xc1], DecodeError::NotMsgpack),
        (&[0xc0], DecodeError::NotABatch),
        (&[0x80], DecodeError::NotABatch),
        (&[0x91, 0x01], DecodeError::NotABatch),
        (&[0x92, 0xa0, 0x90], DecodeError::NotABatch),
        (&[0x92, 0x01, 0x80], DecodeError::NotABatch),
        (&[0x92, 0xcb, 0, 0], DecodeError::Truncated),
    ];
    for (frame, error) in cases {
        assert_eq!(decoder.decode(frame).unwrap_err(), error, "{frame:x?}");
    }
    let read = decoder.decode(&[0x92, 0xca, 0x3f, 0xc0, 0, 0, 0x90]).unwrap();
    assert_eq!((read.timestamp, read.rank, read.broken), (1.5, None, None));
}

#[test]
fn events_made_to_fill_memory_are_refused() {
    let mut decoder = Decoder::default();
    let count = 1 << 20;
    let frame = batch(count, |w| w.raw(&vec![0xc0; count]));
    let read = decoder.decode(&frame).unwrap();
    assert_eq!(read.broken, Some(DecodeError::NotABatch));
    assert!(read.events.len() <= FREE_EVENTS + frame.len() / BYTES_PER_EVENT);
}
