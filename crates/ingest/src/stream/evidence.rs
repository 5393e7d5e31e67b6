//! What the engine reports about requests, as evidence for a stream whose past is not known.
//!
//! The rules are the journal's. Here is what keeps a report from costing anything while it is of no use:
//! whether one would be accepted is known without waiting for a batch that is being applied.

use kvplane_stream::RequestMark;
use tracing::info;

use super::Stream;

impl Stream {
    /// From now on reports are accepted. Before the first batch: what was stored earlier is not known to it.
    pub(crate) fn accept_evidence(&self) {
        self.inner.lock().recorder.accept_evidence();
    }

    /// A request is about to be sent to the engine. `None` where its report would be of no use: the stream is
    /// exact, not live, or of an engine whose reports prove nothing.
    ///
    /// What was applied after the last whole batch makes the mark an old one, with which nothing is proven.
    pub fn begin_evidence(&self) -> Option<RequestMark> {
        *self.mark.lock()
    }

    /// The engine reported how many tokens of a plain prompt it had cached, for a request that was sent after
    /// `mark`. Only whole blocks count. Says how many blocks are held by that; 0 where the report cannot be
    /// used. Takes a while for a long prompt.
    pub fn prove_prefix(&self, mark: RequestMark, tokens: &[u32], cached_tokens: u64) -> usize {
        let mut proven = 0;
        self.feed(|recorder, _| {
            proven = recorder.prove_prefix(mark, tokens, cached_tokens);
        });
        self.announce();
        if proven > 0 && !self.healed.swap(true, std::sync::atomic::Ordering::Relaxed) {
            info!(stream = %self.id, blocks = proven, "cached prefix proven by a request");
        }
        proven
    }
}
