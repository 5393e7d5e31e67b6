//! Which connection of a bound socket a stream's messages come over.
//!
//! Engines that connect to us do not say who they are: a stream is known by the topic of its messages. So a
//! stream claims the connection over which its last message came, and only proofs of that connection are its
//! own. A stream that has claimed none (its engine has published nothing since it connected) must be behind a
//! connection that nobody has claimed: the oldest proof among those holds for it.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::Instant;

/// Connections, and the streams behind them.
#[derive(Debug)]
pub(crate) struct Claims<S> {
    /// The last proof of every connection that is there.
    proofs: HashMap<u64, Option<Instant>>,
    claimed: HashMap<S, u64>,
}

impl<S> Default for Claims<S> {
    fn default() -> Self {
        Self { proofs: HashMap::new(), claimed: HashMap::new() }
    }
}

impl<S: Eq + Hash + Clone> Claims<S> {
    pub(crate) fn connected(&mut self, connection: u64) {
        self.proofs.insert(connection, None);
    }

    pub(crate) fn disconnected(&mut self, connection: u64) {
        self.proofs.remove(&connection);
        self.claimed.retain(|_, claimed| *claimed != connection);
    }

    /// A message of the stream came over the connection.
    pub(crate) fn heard(&mut self, stream: &S, connection: u64) {
        match self.claimed.get_mut(stream) {
            Some(claimed) => *claimed = connection,
            None => {
                self.claimed.insert(stream.clone(), connection);
            }
        }
    }

    /// The publisher behind the connection was there at `at`.
    pub(crate) fn proven(&mut self, connection: u64, at: Instant) {
        let proof = self.proofs.entry(connection).or_default();
        *proof = (*proof).max(Some(at));
    }

    /// The oldest proof among the connections that nobody has claimed; `None` if there is none, or one
    /// without proof.
    pub(crate) fn unclaimed(&self) -> Option<Instant> {
        let claimed: HashSet<u64> = self.claimed.values().copied().collect();
        let unclaimed = self.proofs.iter().filter(|(connection, _)| !claimed.contains(connection));
        // `None`, a connection without proof, is the oldest.
        unclaimed.map(|(_, proof)| *proof).min().flatten()
    }

    /// When the publisher of the stream was last there, as far as that can be known. `unclaimed` is what
    /// [`Self::unclaimed`] says: it is the same for all streams.
    pub(crate) fn proof_of(&self, stream: &S, unclaimed: Option<Instant>) -> Option<Instant> {
        match self.claimed.get(stream) {
            Some(connection) => self.proofs.get(connection).copied().flatten(),
            None => unclaimed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_stream_is_proven_by_the_connection_that_it_was_heard_over() {
        let start = kvplane_runtime::now();
        let later = start + Duration::from_secs(5);
        let mut claims = Claims::default();
        for connection in [1, 2] {
            claims.connected(connection);
            claims.proven(connection, start);
        }
        claims.heard(&"a", 1);
        claims.heard(&"b", 2);
        claims.proven(2, later);
        assert_eq!(
            (claims.proof_of(&"a", claims.unclaimed()), claims.proof_of(&"b", claims.unclaimed())),
            (Some(start), Some(later))
        );
        claims.disconnected(1);
        assert_eq!(
            claims.proof_of(&"a", claims.unclaimed()),
            None,
            "the other connection is somebody else's"
        );
        claims.connected(3);
        assert_eq!(claims.proof_of(&"a", claims.unclaimed()), None, "nothing has come over it yet");
        claims.proven(3, later);
        assert_eq!(claims.proof_of(&"a", claims.unclaimed()), Some(later), "nobody else is behind it");
    }

    #[test]
    fn a_stream_that_was_not_heard_has_the_oldest_proof_that_may_be_its_own() {
        let start = kvplane_runtime::now();
        let mut claims = Claims::default();
        claims.connected(1);
        claims.connected(2);
        claims.proven(1, start);
        assert_eq!(claims.proof_of(&"a", claims.unclaimed()), None);
        claims.proven(2, start + Duration::from_secs(1));
        assert_eq!(claims.proof_of(&"a", claims.unclaimed()), Some(start));
        claims.heard(&"b", 1);
        assert_eq!(claims.proof_of(&"a", claims.unclaimed()), Some(start + Duration::from_secs(1)));
    }
}
