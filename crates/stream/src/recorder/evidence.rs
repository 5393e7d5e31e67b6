//! What the engine reports of requests that somebody sees: `cached_tokens` as evidence of the prefix that was
//! hit.

use std::sync::Arc;

use super::Recorder;
use crate::interpreter::RequestMark;
use crate::memory::Step;

impl Recorder {
    /// From now on reports about requests are accepted. Call it before the first batch.
    pub fn accept_evidence(&mut self) {
        self.interpreter.accept_evidence(&self.ledger);
        self.note_alone(|| Step::AcceptEvidence);
    }

    /// How many blocks are held because the engine reported them as cached.
    pub fn evidence_blocks(&self) -> u64 {
        self.interpreter.evidence_blocks()
    }

    /// A request is about to be sent to the engine. `None` where nothing that it reports could be recorded.
    pub fn mark_request(&self) -> Option<RequestMark> {
        self.interpreter.mark_request(&self.ledger)
    }

    /// The engine reported how many tokens of a plain prompt it had cached. Says how many blocks are held by
    /// that.
    pub fn prove_prefix(&mut self, mark: RequestMark, tokens: &[u32], cached_tokens: u64) -> usize {
        let proven = self.interpreter.prove_prefix(&mut self.ledger, mark, tokens, cached_tokens);
        self.note_alone(|| Step::ProvePrefix { mark, tokens: Arc::from(tokens), cached: cached_tokens });
        proven
    }
}
