use super::{Fault, Reader, Writer};

fn written(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    write(&mut writer);
    writer.into_bytes()
}

#[test]
fn integers_take_the_shortest_form_and_come_back() {
    let unsigned = [
        (0, 1),
        (0x7f, 1),
        (0x80, 2),
        (0xff, 2),
        (0x100, 3),
        (0xffff, 3),
        (0x1_0000, 5),
        (0xffff_ffff, 5),
        (0x1_0000_0000, 9),
        (u64::MAX, 9),
    ];
    for (value, length) in unsigned {
        let bytes = written(|w| w.unsigned(value));
        let read = Reader::new(&bytes).integer().unwrap();
        assert_eq!((read.bits, read.negative, bytes.len()), (value, false, length));
    }
    let signed = [
        (-1, 1),
        (-0x20, 1),
        (-0x21, 2),
        (-0x80, 2),
        (-0x81, 3),
        (-0x8000, 3),
        (-0x8001, 5),
        (-0x8000_0000, 5),
        (-0x8000_0001, 9),
        (i64::MIN, 9),
    ];
    for (value, length) in signed {
        let bytes = written(|w| w.signed(value));
        let read = Reader::new(&bytes).integer().unwrap();
        assert_eq!((read.as_i64(), read.as_u32(), bytes.len()), (Some(value), None, length));
    }
    assert_eq!(written(|w| w.signed(200)), written(|w| w.unsigned(200)));
}

#[test]
fn lengths_at_every_border() {
    for length in [0, 1, 0x0f, 0x10, 0x1f, 0x20, 0xff, 0x100, 0xffff, 0x1_0000] {
        let text = "x".repeat(length);
        let bytes = written(|w| w.text(&text));
        assert_eq!(Reader::new(&bytes).text(), Ok(text.as_bytes()));
        let bytes = written(|w| w.binary(text.as_bytes()));
        assert_eq!(Reader::new(&bytes).binary(), Ok(text.as_bytes()));
        assert_eq!(Reader::new(&written(|w| w.array(length))).array_len(), Ok(length));
        assert_eq!(Reader::new(&written(|w| w.map(length))).map_len(), Ok(length));
    }
}

#[test]
fn a_mismatch_consumes_nothing() {
    let bytes = written(|w| w.text("seven"));
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.integer(), Err(Fault::Mismatch));
    assert_eq!(reader.array_len(), Err(Fault::Mismatch));
    assert_eq!(reader.map_len(), Err(Fault::Mismatch));
    assert_eq!(reader.binary(), Err(Fault::Mismatch));
    assert_eq!(reader.position(), 0);
    assert_eq!(reader.text(), Ok(&b"seven"[..]));
    assert_eq!(reader.integer(), Err(Fault::Truncated));
    assert_eq!(Reader::new(&[0xc1]).integer(), Err(Fault::NotMsgpack));
}

#[test]
fn every_value_is_skipped_whole_and_none_when_cut() {
    let values: [&[u8]; 24] = [
        &[0x05],
        &[0xfe],
        &[0xc0],
        &[0xc3],
        &[0xcc, 1],
        &[0xcd, 1, 2],
        &[0xce, 1, 2, 3, 4],
        &[0xcf, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0xca, 1, 2, 3, 4],
        &[0xcb, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0xa2, b'a', b'b'],
        &[0xd9, 1, b'a'],
        &[0xda, 0, 1, b'a'],
        &[0xc4, 1, 9],
        &[0xc5, 0, 1, 9],
        &[0xc7, 1, 7, 9],
        &[0xc8, 0, 1, 7, 9],
        &[0xc9, 0, 0, 0, 1, 7, 9],
        &[0xd4, 1, 2],
        &[0xd6, 1, 2, 3, 4, 5],
        &[0x92, 0x91, 0xc0, 0x81, 0xa1, b'k', 0x90],
        &[0xdc, 0, 2, 1, 2],
        &[0xde, 0, 1, 1, 2],
        &[0xdf, 0, 0, 0, 1, 1, 2],
    ];
    for value in values {
        let mut followed = value.to_vec();
        followed.push(0x2a);
        let mut reader = Reader::new(&followed);
        assert_eq!(reader.raw_value(), Ok(value));
        assert_eq!(reader.rest(), [0x2a]);
        for cut in 0..value.len() {
            assert_eq!(Reader::new(&value[..cut]).skip_value(), Err(Fault::Truncated), "{value:x?}");
        }
    }
}

#[test]
fn depth_and_promised_lengths_cost_nothing() {
    let mut deep = vec![0x91; 1 << 20];
    deep.push(0xc0);
    assert_eq!(Reader::new(&deep).skip_value(), Ok(()));
    for head in [0xdd, 0xdf, 0xdb, 0xc6, 0xc9] {
        let huge = [head, 0xff, 0xff, 0xff, 0xff, 0, 0, 0];
        assert_eq!(Reader::new(&huge).skip_value(), Err(Fault::Truncated));
    }
    let mut ids = Vec::new();
    assert_eq!(Reader::new(&[1, 2, 3]).u32s(usize::MAX, &mut ids), Err(Fault::Truncated));
    assert_eq!(ids, [1, 2, 3]);
    assert!(ids.capacity() < 16);
}

#[test]
fn ids_stay_within_32_bits() {
    let mut ids = Vec::new();
    let bytes = [0x01, 0xcc, 0x80, 0xcd, 1, 0, 0xce, 0, 1, 0x11, 0x70, 0xd2, 0, 0, 0, 9];
    assert_eq!(Reader::new(&bytes).u32s(5, &mut ids), Ok(()));
    assert_eq!(ids, [1, 128, 256, 70000, 9]);
    for bad in [&[0xff][..], &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0], &[0xca, 0, 0, 0, 0], &[0xc0]] {
        assert_eq!(Reader::new(bad).u32s(1, &mut ids), Err(Fault::Mismatch));
    }
}
