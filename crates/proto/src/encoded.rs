//! A message that is already encoded.

use bytes::{Buf, BufMut, Bytes};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, skip_field};

/// The wire form of some message, passed through as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded(pub Bytes);

impl prost::Message for Encoded {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.0);
    }

    /// Never used: nothing is decoded into this. Fields are passed over.
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        skip_field(wire_type, tag, buffer, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0 = Bytes::new();
    }
}
