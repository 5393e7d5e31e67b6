//! Load records: an engine's own stream carries them beside its events, and a gateway that does not get them routes on
//! old loads. They are passed on as the engine encoded them.

use bytes::{BufMut as _, Bytes, BytesMut};
use kvplane_proto::Encoded;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

/// Field of `KvEventBatch` that holds the load.
const LOAD: u32 = 8;
/// Field of the load that says that the batch holds nothing else.
const LOAD_ONLY: u32 = 9;

/// The load of an engine's batch as a batch of its own; `None` when it has none, or cannot be read.
pub(super) fn load_only(batch: &Encoded) -> Option<Bytes> {
    let load = field(&batch.0, LOAD)?;
    let mut marked = BytesMut::from(&load[..]);
    // The last of several values counts.
    encode_key(LOAD_ONLY, WireType::Varint, &mut marked);
    encode_varint(1, &mut marked);
    let mut message = BytesMut::new();
    encode_key(LOAD, WireType::LengthDelimited, &mut message);
    encode_varint(marked.len() as u64, &mut message);
    message.put(marked);
    Some(message.freeze())
}

/// The last length-delimited field of that number.
fn field(message: &Bytes, wanted: u32) -> Option<Bytes> {
    let mut rest = message.clone();
    let mut found = None;
    while !rest.is_empty() {
        let (number, wire_type) = decode_key(&mut rest).ok()?;
        let length = match wire_type {
            WireType::Varint => {
                decode_varint(&mut rest).ok()?;
                continue;
            }
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => usize::try_from(decode_varint(&mut rest).ok()?).ok()?,
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        if rest.len() < length {
            return None;
        }
        let value = rest.split_to(length);
        if number == wanted && wire_type == WireType::LengthDelimited {
            found = Some(value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvplane_proto::smg::KvEventBatch;
    use prost::Message as _;

    #[test]
    fn a_load_is_passed_on_alone_and_marked() {
        let load = Bytes::from_static(&[8, 3, 0xf2, 1, 2, 7, 7]); // running = 3, and a field that nobody here knows
        let batch = KvEventBatch { sequence_number: 9, timestamp: 1.0, load: Some(load.clone()), ..Default::default() };
        let passed = load_only(&Encoded(batch.encode_to_vec().into())).unwrap();
        let passed = KvEventBatch::decode(passed).unwrap();
        assert_eq!(passed.sequence_number, 0);
        assert_eq!(passed.load.unwrap(), [&load[..], &[9 << 3, 1]].concat());
        assert!(load_only(&Encoded(KvEventBatch::default().encode_to_vec().into())).is_none());
        assert!(load_only(&Encoded(Bytes::from_static(&[0x42, 200]))).is_none());
    }
}
