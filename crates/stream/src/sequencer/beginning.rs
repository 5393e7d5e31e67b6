//! The first batch of a life, known by how it begins.

use bytes::Bytes;
use kvplane_core::digest;

use super::hold::Held;
use super::{EpochCause, Origin, Sequencer};
use crate::clock::Now;

impl Sequencer {
    /// A live frame under number 0 arrived that begins by clearing the cache, as `SGLang` does when it
    /// starts. The caller that feeds this has looked into the batch; this machine never does.
    ///
    /// Under a number that has passed it proves another life. A ring is asked all the same: it knows what
    /// came since. Only if it does not answer, the beginning decides.
    pub fn began(&mut self, now: Now, payload: Bytes) {
        if !self.hears() || self.interleaved {
            self.live(now, 0, payload);
            return;
        }
        let digest = digest(&payload);
        let known = self.last.is_none() || self.recent.get(0) == Some(digest) || self.recent.is_lost(0);
        if !known {
            self.stamp += 1;
            let stamp = self.stamp;
            let held = Held { digest, payload: payload.clone(), origin: Origin::Live, stamp, readable: true };
            if !self.options.replay {
                self.restart(now, EpochCause::StartUpClear, Some((0, held)));
                return;
            }
            self.beginning = Some(held);
        }
        self.live(now, 0, payload);
    }
}
