//! Peers' dumps.

use super::Stream;

impl Stream {
    /// Whether a peer's dump would be taken. If so, the stream makes ready for it: ask the peer after this.
    pub(crate) fn expect_dump(&self) -> bool {
        let mut inner = self.inner.lock();
        !inner.closed && inner.recorder.expect_dump()
    }
}
