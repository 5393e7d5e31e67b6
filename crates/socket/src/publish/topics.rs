//! The topics that one subscriber wants.

use std::collections::BTreeSet;
use std::ops::Bound::{Included, Unbounded};

use crate::connection::Refusal;

/// Prefixes that one subscriber may ask for, and their bytes together.
pub(super) const MAX_TOPICS: usize = 1024;
pub(super) const MAX_TOPIC_BYTES: usize = 64 << 10;

/// A set of prefixes. As with libzmq's XPUB, asking for one twice is asking for it once.
#[derive(Debug, Default)]
pub(super) struct Topics {
    prefixes: BTreeSet<Vec<u8>>,
    bytes: usize,
}

impl Topics {
    /// Adds a prefix.
    pub(super) fn subscribe(&mut self, prefix: &[u8]) -> Result<(), Refusal> {
        if self.prefixes.contains(prefix) {
            return Ok(());
        }
        if self.prefixes.len() >= MAX_TOPICS || self.bytes + prefix.len() > MAX_TOPIC_BYTES {
            return Err(Refusal::Subscriptions);
        }
        self.bytes += prefix.len();
        self.prefixes.insert(prefix.to_vec());
        Ok(())
    }

    /// Removes a prefix.
    pub(super) fn cancel(&mut self, prefix: &[u8]) {
        if self.prefixes.remove(prefix) {
            self.bytes -= prefix.len();
        }
    }

    /// Whether a topic begins with one of the prefixes.
    ///
    /// Looks at the greatest prefix that is not above the topic. If the topic does not begin with it, any
    /// other prefix of the topic is below it, and so a prefix of what the two have in common.
    pub(super) fn matches(&self, topic: &[u8]) -> bool {
        let mut known = topic;
        loop {
            let below = self.prefixes.range::<[u8], _>((Unbounded, Included(known)));
            let Some(nearest) = below.into_iter().next_back() else { return false };
            if known.starts_with(nearest) {
                return true;
            }
            let common = nearest.iter().zip(known).take_while(|(ours, theirs)| ours == theirs).count();
            known = &known[..common];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_peer_may_ask_for_so_much_and_no_more() {
        let mut topics = Topics::default();
        for n in 0..MAX_TOPICS {
            topics.subscribe(&(n as u64).to_be_bytes()).unwrap();
        }
        topics.subscribe(&0_u64.to_be_bytes()).unwrap();
        assert_eq!(topics.subscribe(b"x"), Err(Refusal::Subscriptions));
        topics.cancel(&0_u64.to_be_bytes());
        topics.subscribe(b"x").unwrap();
        let mut topics = Topics::default();
        topics.subscribe(&vec![1; MAX_TOPIC_BYTES]).unwrap();
        assert_eq!(topics.subscribe(b"x"), Err(Refusal::Subscriptions));
        topics.cancel(&vec![1; MAX_TOPIC_BYTES]);
        topics.subscribe(b"x").unwrap();
    }

    proptest! {
        /// Beside a list that is searched from one end to the other.
        #[test]
        fn a_topic_matches_if_it_begins_with_a_prefix(
            changes in prop::collection::vec((any::<bool>(), prop::collection::vec(0_u8..3, 0..5)), 0..20),
            asked in prop::collection::vec(prop::collection::vec(0_u8..3, 0..7), 1..20),
        ) {
            let (mut topics, mut model) = (Topics::default(), Vec::<Vec<u8>>::new());
            for (wanted, prefix) in changes {
                model.retain(|known| *known != prefix);
                if wanted {
                    topics.subscribe(&prefix).unwrap();
                    model.push(prefix);
                } else {
                    topics.cancel(&prefix);
                }
            }
            for topic in asked {
                let expected = model.iter().any(|prefix| topic.starts_with(prefix));
                prop_assert_eq!(topics.matches(&topic), expected, "{:?} of {:?}", topic, model);
            }
        }
    }
}
