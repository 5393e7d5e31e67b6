//! Load records: an engine's own stream carries them beside its events, and a gateway that does not get them
//! routes on old loads. They are passed on as the engine encoded them.

use std::fmt;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::stream::BoxStream;
use kvplane_proto::smg::KvEventBatch;
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};

/// Field of a load that says that its batch holds nothing else.
const LOAD_ONLY: u32 = 9;

/// Where load records come from: an engine's own stream, followed anew for every subscriber.
#[derive(Clone)]
pub(super) struct Loads(Arc<dyn Fn() -> BoxStream<'static, Bytes> + Send + Sync>);

impl Loads {
    pub(super) fn new(follow: impl Fn() -> BoxStream<'static, Bytes> + Send + Sync + 'static) -> Self {
        Self(Arc::new(follow))
    }

    pub(super) fn follow(&self) -> BoxStream<'static, Bytes> {
        (self.0)()
    }
}

impl fmt::Debug for Loads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loads").finish_non_exhaustive()
    }
}

/// A load as a batch of its own. It has no sequence: no cursor moves by it.
pub(super) fn load_only(load: &[u8]) -> Bytes {
    let mut marked = BytesMut::with_capacity(load.len() + 2);
    marked.put_slice(load);
    // The last of several values counts.
    encode_key(LOAD_ONLY, WireType::Varint, &mut marked);
    encode_varint(1, &mut marked);
    KvEventBatch { load: Some(marked.freeze()), ..KvEventBatch::default() }.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_passed_on_alone_and_marked() {
        let load = [8, 3, 0xf2, 1, 2, 7, 7]; // running = 3, and a field that nobody here knows
        let passed = KvEventBatch::decode(load_only(&load)).unwrap();
        assert_eq!((passed.sequence_number, passed.events.len()), (0, 0));
        assert_eq!(passed.load.unwrap(), [&load[..], &[9 << 3, 1]].concat());
    }
}
