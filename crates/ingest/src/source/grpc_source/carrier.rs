//! Carries messages of one call to the ranks that they are about.

use std::sync::Arc;

use bytes::Bytes;
use kvplane_stream::{Ask, Recorder};
use kvplane_wire::smg::{Outline, outline};

use crate::feeder::Feeder;
use crate::shared_source::Ranks;

/// What a burst of messages led to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Carried {
    /// A batch was put in order.
    pub(super) advanced: bool,
    /// A rank wants another subscription: what this one still brings is void.
    pub(super) again: bool,
    /// A message failed to parse; drop this connection.
    pub(super) nonsense: bool,
}

/// The ranks of one call.
#[derive(Debug)]
pub(super) struct Carrier {
    ranks: Arc<Ranks>,
    /// The number that was subscribed with.
    start: u64,
    /// Those that know of the call.
    announced: Vec<u32>,
}

impl Carrier {
    pub(super) fn new(ranks: Arc<Ranks>, start: u64) -> Self {
        Self { ranks, start, announced: Vec::new() }
    }

    /// Tells a rank of the call.
    pub(super) fn tell(&mut self, feeder: &Feeder) {
        feeder.tell(|recorder, now| recorder.relay_subscribed(now, self.start));
        self.announced.push(feeder.stream().id().rank);
    }

    /// Carries messages, in order. Stops at the first that makes those behind it void.
    pub(super) fn carry(&mut self, burst: Vec<Bytes>) -> Carried {
        let mut carried = Carried::default();
        let mut reached: Vec<Feeder> = Vec::new();
        for message in burst {
            let Ok(outline) = outline(&message) else {
                carried.nonsense = true;
                for feeder in self.ranks.all() {
                    feeder.stream().count_malformed_frame();
                }
                break;
            };
            if outline.load_only {
                continue;
            }
            // A rank beyond the limit was logged where it was rejected.
            let Some(feeder) = self.feeder(&outline) else { continue };
            let asks = feeder.feed(|recorder, now| {
                carried.advanced |= recorder.relayed(now, &outline, message);
            });
            if reached.iter().all(|known| known.stream().id() != feeder.stream().id()) {
                reached.push(feeder);
            }
            if asks.contains(&Ask::Resubscribe) {
                carried.again = true;
                break;
            }
        }
        for feeder in reached {
            feeder.stream().announce();
        }
        carried
    }

    /// The rank that a message is about. A server that names none has one, or makes one of all.
    fn feeder(&mut self, outline: &Outline) -> Option<Feeder> {
        let rank = outline.rank.unwrap_or(0);
        let feeder = self.ranks.feeder(rank)?;
        if !self.announced.contains(&rank) {
            for other in self.ranks.all() {
                other.tell(Recorder::relay_accompanied);
            }
            self.tell(&feeder);
        }
        Some(feeder)
    }
}
