//! A message that is already encoded, or is not to be looked into.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_varint, encode_key, encode_varint, skip_field};

/// The wire form of some message, passed through as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded(pub Bytes);

impl prost::Message for Encoded {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.0);
    }

    /// Keeps the field as it came, unknown ones included.
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        let mut kept = BytesMut::from(&self.0[..]);
        let take = |buffer: &mut dyn Buf, kept: &mut BytesMut, count: usize| {
            if buffer.remaining() < count {
                return false;
            }
            kept.put_slice(&buffer.copy_to_bytes(count));
            true
        };
        encode_key(tag, wire_type, &mut kept);
        let whole = match wire_type {
            WireType::Varint => {
                encode_varint(decode_varint(buffer)?, &mut kept);
                true
            }
            WireType::SixtyFourBit => take(buffer, &mut kept, 8),
            WireType::ThirtyTwoBit => take(buffer, &mut kept, 4),
            WireType::LengthDelimited => {
                let length = decode_varint(buffer)?;
                encode_varint(length, &mut kept);
                usize::try_from(length).is_ok_and(|length| take(buffer, &mut kept, length))
            }
            WireType::StartGroup | WireType::EndGroup => return skip_field(wire_type, tag, buffer, context),
        };
        if !whole {
            // Reading a field that is not all there: let the library say so in its own words.
            return skip_field(wire_type, tag, buffer, context);
        }
        self.0 = kept.freeze();
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0 = Bytes::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smg::{KvEventBatch, KvSnapshotChunk};
    use prost::Message as _;

    #[test]
    fn passes_messages_through_unchanged() {
        let message = KvEventBatch {
            sequence_number: 1 << 60,
            timestamp: 1.5,
            dp_rank: Some(-1),
            snapshot: Some(KvSnapshotChunk { index: 1, count: 2, blocks: 3, unknown_before: 4 }),
            load: Some(Bytes::from_static(&[8, 1])),
            ..KvEventBatch::default()
        };
        let bytes = message.encode_to_vec();
        let passed = Encoded::decode(&bytes[..]).unwrap();
        assert_eq!(passed.0, bytes);
        assert_eq!(KvEventBatch::decode(&passed.encode_to_vec()[..]).unwrap(), message);
        assert!(Encoded::decode(&bytes[..bytes.len() - 1]).is_err());
    }
}
