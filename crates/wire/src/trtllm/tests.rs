use bytes::Bytes;

use super::encode::*;
use super::*;
use crate::{
    Batch, Created, DecodeError, Decoder, Dialect, Event, ExtraKey, Layout, Moved, RejectReason, Rejected,
    RejectedKind, Stored,
};

const CREATED: &str =
    r#"{"event_id":0,"data":{"type":"created","num_blocks_per_cache_level":[101230,0]},"window_size":4096}"#;
const STORED: &str = r#"{"event_id":1,"data":{"type":"stored","parent_hash":null,"blocks":[{"type":"stored_block","block_hash":4203099703668305365,"tokens":[{"type":"unique_token","token_id":1,"token_extra_id":0}],"cache_level":0,"priority":35,"mm_keys":[],"cache_salt":null}]},"window_size":4096,"attention_dp_rank":0,"hash_algo":"v1_block_key","layer_group_id":0}"#;
const REMOVED: &str =
    r#"{"event_id":2,"data":{"type":"removed","block_hashes":[4203099703668305365]},"window_size":4096}"#;
const UPDATED: &str = r#"{"event_id":3,"data":{"type":"updated","block_hash":4203099703668305365,"cache_level":{"type":"event_diff","new_value":1,"old_value":0},"priority":{"type":"event_diff","new_value":35,"old_value":50}},"window_size":4096}"#;

const HASH: u64 = 4_203_099_703_668_305_365;

fn cut(body: &str) -> Result<Drained, SplitError> {
    split(&Bytes::copy_from_slice(body.as_bytes()))
}

fn decode<'d>(decoder: &'d mut Decoder, payload: &'d str) -> Batch<'d, 'd> {
    decoder.decode_as(Dialect::TrtllmJson, payload.as_bytes()).unwrap()
}

/// An event with nothing but data.
fn event(data: &str) -> String {
    format!(r#"{{"event_id":7,"data":{data}}}"#)
}

fn stored_event(blocks: &[String]) -> String {
    event(&format!(r#"{{"type":"stored","parent_hash":5,"blocks":[{}]}}"#, blocks.join(",")))
}

fn block(hash: &str, tokens: &[&str], more: &str) -> String {
    let token = |id: &&str| format!(r#"{{"type":"unique_token","token_id":{id},"token_extra_id":0}}"#);
    let tokens: Vec<_> = tokens.iter().map(token).collect();
    format!(r#"{{"block_hash":{hash},"tokens":[{}],"cache_level":0{more}}}"#, tokens.join(","))
}

fn stores<'b, 'f>(batch: &'b Batch<'_, 'f>) -> Vec<&'b Stored<'f>> {
    assert_eq!(batch.broken, None);
    let stored = |event: &'b Event<'f>| match event {
        Event::Stored(stored) => stored,
        other => panic!("{other:?}"),
    };
    batch.events.iter().map(stored).collect()
}

fn bits(batch: &Batch<'_, '_>, stored: &Stored<'_>) -> Vec<u64> {
    batch.stored_hashes(stored).iter().map(|hash| hash.bits).collect()
}

/// The one event of a payload that cannot be read.
fn reason(payload: &str) -> (RejectedKind, RejectReason) {
    let mut decoder = Decoder::default();
    let batch = decode(&mut decoder, payload);
    assert_eq!(batch.broken, None, "{payload}");
    match batch.events[..] {
        [Event::Rejected(Rejected { kind, reason })] => (kind, reason),
        ref other => panic!("{payload}: {other:?}"),
    }
}

#[test]
fn events_are_the_servers_bytes() {
    let event = |event_id, data| TrtEvent {
        event_id,
        data,
        window_size: Some(4096),
        attention_dp_rank: None,
        hash_algo: None,
        layer_group_id: None,
    };
    let hash = TrtHash::Number(HASH);
    let block = TrtBlock {
        block_hash: hash.clone(),
        tokens: vec![1.into()],
        cache_level: 0,
        priority: 35,
        mm_keys: vec![],
        cache_salt: None,
    };
    let events = [
        event(0, TrtData::Created { num_blocks_per_cache_level: vec![101_230, 0] }),
        TrtEvent {
            attention_dp_rank: Some(0),
            hash_algo: Some(HashAlgo::V1BlockKey),
            layer_group_id: Some(0),
            ..event(1, TrtData::Stored { parent_hash: None, blocks: vec![block] })
        },
        event(2, TrtData::Removed { block_hashes: vec![hash.clone()] }),
        event(
            3,
            TrtData::Updated {
                block_hash: hash,
                cache_level: Some(TrtDiff { new_value: 1, old_value: 0 }),
                priority: Some(TrtDiff { new_value: 35, old_value: 50 }),
            },
        ),
    ];
    let written = String::from_utf8(encode_events(&events)).unwrap();
    assert_eq!(written, format!("[{CREATED},{STORED},{REMOVED},{UPDATED}]"));
}

#[test]
fn the_servers_events_are_read() {
    let drained = cut(&format!("[{CREATED},{STORED},{REMOVED},{UPDATED}]")).unwrap();
    assert_eq!((drained.events, drained.unreadable, drained.parts.len()), (4, 0, 1));
    let part = &drained.parts[0];
    assert_eq!((part.rank, part.first_id, part.last_id, part.count, part.created), (0, 0, 3, 4, true));
    let mut decoder = Decoder::default();
    let batch = decoder.decode_as(Dialect::TrtllmJson, &part.payload).unwrap();
    assert_eq!((batch.rank, batch.unknown_fields, batch.broken), (Some(0), 0, None));
    let [Event::Created(created), Event::Stored(stored), Event::Removed(removed), Event::Moved(moved)] =
        &batch.events[..]
    else {
        panic!("{:?}", batch.events)
    };
    assert_eq!(
        *created,
        Created { device_blocks: 101_230, other_blocks: 0, group: Some(4096), window: Some(4096) }
    );
    assert_eq!((stored.group, stored.sliding_window, stored.medium), (Some(0), Some(4096), Some("GPU")));
    assert_eq!((stored.block_size, stored.parent, stored.cache_salt), (1, None, None));
    assert_eq!((bits(&batch, stored), batch.tokens(stored).ids()), (vec![HASH], &[1][..]));
    assert_eq!(batch.layout(stored), Layout::Dense);
    assert!(stored.extra_keys.is_none());
    assert_eq!((removed.group, removed.anywhere, removed.medium), (Some(4096), true, None));
    assert_eq!(batch.removed_hashes(removed)[0].bits, HASH);
    let Moved { hash, from, to, group, window: _ } = moved;
    assert_eq!((hash.bits, *from, *to, *group), (HASH, "GPU", "CPU", Some(4096)));
}

#[test]
fn each_rank_counts_for_itself() {
    let of = |rank: u32, id: u64| {
        format!(
            r#"{{"event_id":{id},"attention_dp_rank":{rank},"data":{{"type":"removed","block_hashes":[{rank}{id}]}}}}"#
        )
    };
    let body = format!("[{},{},{} , {},{}]", of(1, 7), of(0, 7), of(1, 8), of(1, 9), of(0, 8));
    let drained = cut(&body).unwrap();
    let parts: Vec<_> = drained.parts.iter().map(|p| (p.rank, p.first_id, p.last_id, p.count)).collect();
    assert_eq!(parts, [(0, 7, 8, 2), (1, 7, 9, 3)]);
    let texts: Vec<_> = drained.parts.iter().map(|p| std::str::from_utf8(&p.payload).unwrap()).collect();
    assert_eq!(texts[0], format!("{},{}", of(0, 7), of(0, 8)));
    assert_eq!(texts[1], format!("{},{},{}", of(1, 7), of(1, 8), of(1, 9)));
    let mut decoder = Decoder::default();
    let batch = decode(&mut decoder, texts[1]);
    assert_eq!((batch.rank, batch.events.len(), batch.broken), (Some(1), 3, None));
}

#[test]
fn parts_end_at_holes_and_when_they_are_full() {
    let of = |id: usize| format!(r#"{{"event_id":{id}}}"#);
    let ids = (0..3).chain(5..6 + PART_EVENTS).chain([3, 3, 4]);
    let body = format!("[{}]", ids.map(of).collect::<Vec<_>>().join(","));
    let drained = cut(&body).unwrap();
    let parts: Vec<_> = drained.parts.iter().map(|p| (p.first_id, p.last_id, p.count)).collect();
    let full = PART_EVENTS as u64;
    assert_eq!(
        parts,
        [(0, 2, 3), (5, 4 + full, PART_EVENTS), (5 + full, 5 + full, 1), (3, 3, 1), (3, 4, 2)],
        "a number that comes again begins a part too"
    );
    let last = format!(r#"[{{"event_id":{}}},{{"event_id":0}}]"#, u64::MAX);
    assert_eq!(cut(&last).unwrap().parts.len(), 2);
}

#[test]
fn a_part_shares_the_body_when_it_can() {
    let body = Bytes::from(format!("[ {CREATED} ,\n{STORED}]"));
    let part = &split(&body).unwrap().parts[0];
    assert!(body.as_ptr_range().contains(&part.payload.as_ptr()));
    assert_eq!(&part.payload[..], format!("{CREATED} ,\n{STORED}").as_bytes());
}

#[test]
fn what_has_no_place_spoils_nothing_else() {
    let junk = [
        "null",
        "7",
        "[1]",
        r#""text""#,
        "{}",
        r#"{"event_id":-1}"#,
        r#"{"event_id":1.0}"#,
        r#"{"event_id":"1"}"#,
        r#"{"event_id":18446744073709551616}"#,
        r#"{"event_id":1,"attention_dp_rank":-1}"#,
        r#"{"event_id":1,"attention_dp_rank":4294967296}"#,
        r#"{"event_id":1,"attention_dp_rank":[]}"#,
    ];
    for junk in junk {
        let body = format!("[{CREATED},{junk},{STORED}]");
        let drained = cut(&body).unwrap();
        assert_eq!((drained.events, drained.unreadable, drained.parts.len()), (3, 1, 1), "{junk}");
        assert_eq!(&drained.parts[0].payload[..], format!("{CREATED},{STORED}").as_bytes());
    }
}

#[test]
fn what_is_no_list() {
    use SplitError::{NotAList, NotJson, Truncated};
    let whole = format!("[{CREATED},{STORED}]");
    for end in 1..whole.len() {
        assert_eq!(cut(&whole[..end]), Err(Truncated), "{}", &whole[..end]);
    }
    let cases = [
        ("", Truncated),
        ("  ", Truncated),
        ("<html><body>502 Bad Gateway</body></html>", NotJson),
        ("Internal Server Error", NotJson),
        (r#"{"error":"no"}"#, NotAList),
        (r#"{"error":"#, Truncated),
        (r#""[]""#, NotAList),
        ("null", NotAList),
        ("12", NotAList),
        ("[] []", NotJson),
        ("[}", NotJson),
        ("[{]", NotJson),
        ("[1 2]", NotJson),
        ("[1,]", NotJson),
        (r#"[{"a" 1}]"#, NotJson),
        ("[{1:1}]", NotJson),
        (r#"[{"a":[}]}]"#, NotJson),
    ];
    for (body, error) in cases {
        assert_eq!(cut(body), Err(error), "{body}");
    }
    assert_eq!(cut("[]").unwrap(), Drained { parts: vec![], events: 0, unreadable: 0 });
    assert_eq!(SplitError::TooLarge.as_str(), "too_large");
}

#[test]
fn what_is_too_much() {
    let large = Bytes::from(vec![b' '; MAX_BODY_BYTES + 1]);
    assert_eq!(split(&large), Err(SplitError::TooLarge));
    let holes: Vec<_> = (0..70_000).map(|n| format!(r#"{{"event_id":{}}}"#, 2 * n)).collect();
    assert_eq!(cut(&format!("[{}]", holes.join(","))), Err(SplitError::TooLarge));
    for bracket in ["[", r#"{"a":"#] {
        assert_eq!(cut(&format!("[{}", bracket.repeat(100_000))), Err(SplitError::NotJson));
    }
    let nulls = "null,".repeat(100_000);
    let mut decoder = Decoder::default();
    assert_eq!(decode(&mut decoder, &nulls).broken, Some(DecodeError::NotABatch));
}

#[test]
fn blocks_that_differ_are_stores_of_their_own() {
    let blocks = [
        block("1", &["1", "2"], ""),
        block("2", &["3", "4"], r#","mm_keys":[],"priority":35"#),
        block("3", &["5", "6"], "").replace(r#""cache_level":0"#, r#""cache_level":1"#),
        block("4", &["7", "8"], r#","cache_salt":"a""#),
        block("5", &["9"], r#","cache_salt":"a""#),
    ];
    let mut decoder = Decoder::default();
    let payload = stored_event(&blocks);
    let batch = decode(&mut decoder, &payload);
    let read: Vec<_> = stores(&batch)
        .into_iter()
        .map(|s| {
            let parent = s.parent.map(|parent| parent.bits);
            (bits(&batch, s), parent, s.block_size, s.medium, s.cache_salt, batch.tokens(s).ids())
        })
        .collect();
    let (device, host) = (Some("GPU"), Some("CPU"));
    assert_eq!(
        read,
        [
            (vec![1, 2], Some(5), 2, device, None, &[1, 2, 3, 4][..]),
            (vec![3], Some(2), 2, host, None, &[5, 6]),
            (vec![4], Some(3), 2, device, Some("a"), &[7, 8]),
            (vec![5], Some(4), 1, device, Some("a"), &[9]),
        ]
    );
    assert_eq!(batch.unknown_fields, 0);
    let none = stored_event(&[]);
    assert_eq!(decode(&mut decoder, &none).events, []);
}

#[test]
fn hashes_of_any_width() {
    let digest: String = (0..32).map(|byte| format!("{byte:02x}")).collect();
    let payload = stored_event(&[
        block("18446744073709551615", &["1"], ""),
        block(&format!("\"{digest}\""), &["1"], ""),
    ]);
    let mut decoder = Decoder::default();
    let batch = decode(&mut decoder, &payload);
    let hashes = batch.stored_hashes(stores(&batch)[0]);
    assert_eq!((hashes[0].bits, hashes[0].is_wide(), hashes[0].negative), (u64::MAX, false, false));
    assert_eq!(hashes[1].bits, 0x0001_0203_0405_0607, "the first eight bytes, not the last");
    assert_eq!(batch.wide(hashes[1]).unwrap(), (0..32).collect::<Vec<u8>>());
    for bad in [
        "null",
        "18446744073709551616",
        "-1",
        "1.5",
        "1e3",
        "true",
        "[]",
        r#""""#,
        r#""00""#,
        r#""000000000000000""#,
        r#""00000000000000zz""#,
    ] {
        let payload = stored_event(&[block(bad, &["1"], "")]);
        assert_eq!(reason(&payload), (RejectedKind::Store, RejectReason::BadHash), "{bad}");
    }
}

#[test]
fn what_else_a_block_is_made_of() {
    let token = |id: &str, extra: &str| format!(r#"{{"token_id":{id},"token_extra_id":{extra}}}"#);
    let tokens = [
        token(r#""ab""#, "0"),
        token(r#""ab""#, "0"),
        token(r#""cd""#, "0"),
        token("9", "3"),
        token("9", "3"),
        token("9", "18446744073709551615"),
        token("4294967295", "0"),
    ];
    let keys = r#"[{"type":"mm_key","hash":"f\u0030","start_offset":12,"uuid":"u"}]"#;
    let keyed =
        format!(r#"{{"mm_keys":{keys},"cache_level":0,"block_hash":1,"tokens":[{}]}}"#, tokens.join(","));
    let plain = block("2", &["1", "2", "3", "4", "5", "6", "7"], r#","mm_keys":null"#);
    let payload = stored_event(&[keyed, plain]);
    let mut decoder = Decoder::default();
    let batch = decode(&mut decoder, &payload);
    let stored = stores(&batch)[0];
    assert_eq!(batch.tokens(stored).ids()[..7], [0, 0, 0, 9, 9, 9, u32::MAX]);
    assert_eq!(
        batch.extra_keys(stored, 0),
        [
            ExtraKey::Multimodal { id: "ab", offset: 0 },
            ExtraKey::Multimodal { id: "cd", offset: 2 },
            ExtraKey::Integer(3),
            ExtraKey::Integer(3),
            ExtraKey::Integer(5),
            ExtraKey::Integer(-1),
            ExtraKey::Multimodal { id: "f0", offset: 12 },
        ]
    );
    assert_eq!(batch.extra_keys(stored, 1), []);
    assert_eq!(batch.unknown_fields, 0);
}

#[test]
fn salts_are_read_as_they_were_meant() {
    let mut decoder = Decoder::default();
    for (written, salt) in [
        ("tenant-ä", "tenant-ä"),
        (r#"a\"b\\c\/\n\u00e4\ud83d\ude00"#, "a\"b\\c/\n\u{e4}\u{1f600}"),
        (r"}]\\", r"}]\"),
    ] {
        let payload = stored_event(&[block("1", &["1"], &format!(r#","cache_salt":"{written}""#))]);
        let batch = decode(&mut decoder, &payload);
        assert_eq!(stores(&batch)[0].cache_salt, Some(salt));
    }
    for bad in [r"\ud800", r"\x"] {
        let payload = stored_event(&[block("1", &["1"], &format!(r#","cache_salt":"{bad}""#))]);
        assert_eq!(reason(&payload), (RejectedKind::Store, RejectReason::BadType), "{bad}");
    }
}

#[test]
fn malformed_events_say_why_and_cost_only_themselves() {
    use RejectReason::{BadBlockSize, BadToken, BadType, MissingField, NoKind};
    use RejectedKind::{Removal, Store, Unknown};
    let good = block("1", &["1"], "");
    let stored = |block: &str| stored_event(&[good.clone(), block.to_owned()]);
    let cases = [
        ("7".to_owned(), Unknown, NoKind),
        ("{}".to_owned(), Unknown, NoKind),
        (event("null"), Unknown, NoKind),
        (event("{}"), Unknown, NoKind),
        (event(r#"{"type":5}"#), Unknown, NoKind),
        (event(r#"{"type":"created"}"#), Unknown, MissingField),
        (event(r#"{"type":"created","num_blocks_per_cache_level":[]}"#), Unknown, MissingField),
        (event(r#"{"type":"created","num_blocks_per_cache_level":[-1]}"#), Unknown, BadType),
        (event(r#"{"type":"removed"}"#), Removal, MissingField),
        (event(r#"{"type":"removed","block_hashes":[null]}"#), Removal, RejectReason::BadHash),
        (event(r#"{"type":"removed","block_hashes":7}"#), Removal, BadType),
        (event(r#"{"type":"updated","cache_level":null}"#), Removal, MissingField),
        (event(r#"{"type":"updated","block_hash":1,"cache_level":7}"#), Removal, BadType),
        (event(r#"{"type":"updated","block_hash":1,"cache_level":{"new_value":1}}"#), Removal, MissingField),
        (event(r#"{"type":"stored","blocks":[]}"#), Store, MissingField),
        (event(r#"{"type":"stored","parent_hash":null}"#), Store, MissingField),
        (event(r#"{"type":"stored","parent_hash":null,"blocks":null}"#), Store, BadType),
        (stored("null"), Store, BadType),
        (stored("{}"), Store, MissingField),
        (stored(r#"{"block_hash":1,"tokens":[{"token_id":1}]}"#), Store, MissingField),
        (stored(r#"{"block_hash":1,"cache_level":0}"#), Store, MissingField),
        (stored(&block("1", &[], "")), Store, BadBlockSize),
        (stored(&block("1", &["-1"], "")), Store, BadToken),
        (stored(&block("1", &["4294967296"], "")), Store, BadToken),
        (stored(&block("1", &["null"], "")), Store, BadToken),
        (stored(&block("1", &[r#""not hex""#], "")), Store, BadToken),
        (stored(r#"{"block_hash":1,"cache_level":0,"tokens":[1]}"#), Store, BadToken),
        (stored(r#"{"block_hash":1,"cache_level":0,"tokens":7}"#), Store, BadToken),
        (stored(&block("1", &["1"], r#","cache_salt":7"#)), Store, BadType),
        (stored(&block("1", &["1"], r#","mm_keys":[{"hash":"a"}]"#)), Store, MissingField),
        (stored(&block("1", &["1"], r#","cache_level":-1"#)), Store, BadType),
        (
            format!(r#"{{"window_size":"x","data":{}}}"#, r#"{"type":"removed","block_hashes":[]}"#),
            Removal,
            BadType,
        ),
    ];
    let mut decoder = Decoder::default();
    for (bad, kind, reason) in cases {
        let payload = format!("{REMOVED},{bad}, {REMOVED}");
        let batch = decode(&mut decoder, &payload);
        assert_eq!((batch.broken, batch.events.len()), (None, 3), "{bad}");
        assert_eq!(batch.events[1], Event::Rejected(Rejected { kind, reason }), "{bad}");
        assert!(matches!((&batch.events[0], &batch.events[2]), (Event::Removed(_), Event::Removed(_))));
        assert_eq!((batch.hashes.len(), batch.tokens.len()), (2, 0), "nothing of the rejected one stays");
    }
}

#[test]
fn fields_may_stand_anywhere_and_more_than_once() {
    let payload = format!(
        r#" {{ "layer_group_id" : 3 , "new" : [ {{}} ] , "data" : 7 , "data" : {{ "blocks" : [ {} ] ,
            "other" : "x" , "parent_hash" : null , "type" : "stored" }} , "window_size" : null }} "#,
        block("1", &["1"], r#","tokens":[ { "token_id" : 2 , "type" : "unique_token" } ],"flavour":0"#)
    );
    // An invalid first `data` is as bad as an invalid only one.
    assert_eq!(reason(&payload), (RejectedKind::Unknown, RejectReason::NoKind));
    let payload = payload
        .replace(r#""data" : 7"#, &format!(r#""data":{}"#, r#"{"type":"removed","block_hashes":[1]}"#));
    let mut decoder = Decoder::default();
    let batch = decode(&mut decoder, &payload);
    let stored = stores(&batch)[0];
    assert_eq!((stored.group, stored.sliding_window, stored.parent), (Some(3), None, None));
    assert_eq!((batch.tokens(stored).ids(), bits(&batch, stored)), (&[2][..], vec![1]));
    assert_eq!(batch.unknown_fields, 5, "new, data again, other, tokens again, flavour");
}

#[test]
fn updates_without_a_move_are_nothing() {
    let level = |level: &str| {
        event(&format!(r#"{{"type":"updated","block_hash":1,"cache_level":{level},"priority":null}}"#))
    };
    let mut decoder = Decoder::default();
    let payload = [
        level("null"),
        level(r#"{"new_value":1,"old_value":1}"#),
        event(r#"{"type":"updated","block_hash":1,"priority":{"new_value":1,"old_value":2}}"#),
        level(r#"{"type":"event_diff","new_value":2,"old_value":9}"#),
        event(r#"{"type":"renamed","block_hash":1}"#),
    ]
    .join(",");
    let batch = decode(&mut decoder, &payload);
    let [Event::Moved(moved), Event::Unknown { kind: "renamed" }] = &batch.events[..] else {
        panic!("{:?}", batch.events)
    };
    assert_eq!((moved.from, moved.to), ("UNKNOWN_LEVEL", "DISK"));
}

#[test]
fn a_broken_payload_keeps_what_came_before() {
    let mut decoder = Decoder::default();
    for (tail, error) in [
        (&STORED[..STORED.len() - 1], DecodeError::Truncated),
        (r#"{"data":{"type":"stored","blocks":[}}"#, DecodeError::NotJson),
        ("}", DecodeError::NotJson),
        ("<html>", DecodeError::NotJson),
    ] {
        let payload = format!("{REMOVED},{tail}");
        let batch = decode(&mut decoder, &payload);
        assert_eq!((batch.events.len(), batch.broken), (1, Some(error)), "{tail}");
        assert_eq!((batch.hashes.len(), batch.tokens.len()), (1, 0));
    }
    let two = format!("{REMOVED} {REMOVED}");
    assert_eq!(decode(&mut decoder, &two).broken, Some(DecodeError::NotJson));
    assert_eq!(decode(&mut decoder, " ").events, []);
}
