//! From what the engine says and what the operator said to where each rank is.

use std::collections::{BTreeMap, BTreeSet};

use kvplane_core::Trouble;

use super::address::{AddressError, for_rank};
use super::spec::Overrides;
use super::{Description, Publisher};

/// One rank of an engine that was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRank {
    /// Its number.
    pub rank: u32,
    /// Where it publishes; absent while that is unknown.
    pub events: Option<String>,
    /// Its replay socket.
    pub replay: Option<String>,
}

impl FoundRank {
    /// A rank without a known address.
    pub fn unknown(rank: u32) -> Self {
        Self { rank, events: None, replay: None }
    }
}

/// Where an engine's ranks are, and what is wrong with some of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Its ranks, in the order of their numbers.
    pub ranks: Vec<FoundRank>,
    /// Topic prefix.
    pub topic: String,
    /// The engine's block size.
    pub block_size: Option<u32>,
    /// The engine serves adapters, and its events do not name them.
    pub untold_adapters: bool,
    /// Ranks that cannot be followed, or not completely.
    pub troubles: BTreeMap<u32, Trouble>,
    /// The same in words, for the log.
    pub complaints: Vec<String>,
}

/// Puts every rank in its place. `host` stands for wildcards.
pub(super) fn place(overrides: &Overrides, host: &str, found: &Description) -> Found {
    let wanted: Vec<u32> = match overrides.ranks {
        Some(ranks) => (0..ranks).collect(),
        None => found.publishers.keys().copied().collect(),
    };
    let (block_size, untold_adapters) = (found.block_size, found.untold_adapters);
    let mut placed = Found { block_size, untold_adapters, ..Found::default() };
    placed.topic = overrides.topic.clone().unwrap_or_else(|| common_topic(found));
    let mut taken = BTreeSet::new();
    for rank in wanted {
        let publisher = found.publishers.get(&rank);
        let spec = match events_of(rank, overrides, host, publisher) {
            Ok(Some(events)) if taken.insert(events.clone()) => {
                let replay =
                    placed.replay_of(rank, overrides, host, publisher).filter(|replay| *replay != events);
                FoundRank { rank, events: Some(events), replay }
            }
            Ok(Some(events)) => placed.complain(
                rank,
                Trouble::SharedAddress,
                format!("rank {rank} is at {events}, as another rank is"),
            ),
            Ok(None) => placed.complain(
                rank,
                Trouble::NoSources,
                format!("the engine names no publisher of rank {rank}"),
            ),
            Err(error) => placed.complain(rank, Trouble::BadAnswer, error.to_string()),
        };
        placed.ranks.push(spec);
    }
    placed
}

impl Found {
    /// A rank that stays unheard.
    fn complain(&mut self, rank: u32, trouble: Trouble, complaint: String) -> FoundRank {
        self.troubles.insert(rank, trouble);
        self.complaints.push(complaint);
        FoundRank::unknown(rank)
    }

    /// A replay address that cannot be used is one less; the events can be heard without it.
    fn replay_of(
        &mut self,
        rank: u32,
        overrides: &Overrides,
        host: &str,
        publisher: Option<&Publisher>,
    ) -> Option<String> {
        let replay = match (&overrides.replay, publisher.and_then(|publisher| publisher.replay.as_deref())) {
            (Some(replay), _) => for_rank(replay, rank, true),
            (None, Some(replay)) => connectable(replay, host),
            (None, None) => return None,
        };
        match replay {
            Ok(replay) => Some(replay),
            Err(error) => {
                self.complain(rank, Trouble::BadAnswer, error.to_string());
                None
            }
        }
    }
}

fn events_of(
    rank: u32,
    overrides: &Overrides,
    host: &str,
    publisher: Option<&Publisher>,
) -> Result<Option<String>, AddressError> {
    match (&overrides.events, publisher.and_then(|publisher| publisher.events.as_deref())) {
        (Some(events), _) => for_rank(events, rank, true).map(Some),
        (None, Some(events)) => connectable(events, host).map(Some),
        (None, None) => Ok(None),
    }
}

/// The topic of all publishers. Where they differ there is none: every publisher has a socket of its own, and
/// whatever comes over it is its own.
fn common_topic(found: &Description) -> String {
    let mut topics = found.publishers.values().map(|publisher| &publisher.topic);
    let first = topics.next().cloned().unwrap_or_default();
    if topics.all(|topic| *topic == first) { first } else { String::new() }
}

/// An engine's own address as one to connect to: where it binds every interface, it is at `host`.
fn connectable(address: &str, host: &str) -> Result<String, AddressError> {
    let bound = address.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':'));
    match bound {
        Some(("*" | "0.0.0.0" | "[::]" | "::" | "", port)) => {
            for_rank(&format!("tcp://{host}:{port}"), 0, true)
        }
        _ => for_rank(address, 0, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(publishers: &[(u32, &str, Option<&str>)]) -> Description {
        let publishers = publishers.iter().map(|&(rank, events, replay)| {
            let publisher = Publisher {
                events: Some(events.to_owned()),
                replay: replay.map(str::to_owned),
                topic: "kv".to_owned(),
            };
            (rank, publisher)
        });
        Description { publishers: publishers.collect(), block_size: Some(16), ..Description::default() }
    }

    fn rank(rank: u32, events: &str, replay: Option<&str>) -> FoundRank {
        FoundRank { rank, events: Some(events.to_owned()), replay: replay.map(str::to_owned) }
    }

    #[test]
    fn wildcards_become_the_engine_s_host() {
        for wildcard in ["*", "0.0.0.0", "[::]", "::", ""] {
            let events = format!("tcp://{wildcard}:5557");
            let placed =
                place(&Overrides::default(), "gpu-7", &found(&[(0, &events, Some("tcp://10.0.0.9:5558"))]));
            assert_eq!(placed.ranks, [rank(0, "tcp://gpu-7:5557", Some("tcp://10.0.0.9:5558"))]);
            assert_eq!((placed.topic.as_str(), placed.block_size), ("kv", Some(16)));
            assert!(placed.troubles.is_empty());
        }
        let ipc = place(&Overrides::default(), "gpu-7", &found(&[(0, "ipc:///run/kv", None)]));
        assert_eq!(ipc.ranks, [rank(0, "ipc:///run/kv", None)]);
    }

    #[test]
    fn what_the_operator_said_wins_key_by_key() {
        let engine = found(&[(0, "tcp://*:5557", Some("tcp://*:6000")), (1, "tcp://*:5558", None)]);
        let changed = |change: fn(&mut Overrides)| {
            let mut changed = Overrides::default();
            change(&mut changed);
            place(&changed, "h", &engine)
        };
        let events = changed(|changed| changed.events = Some("tcp://nat:9000".to_owned()));
        assert_eq!(
            events.ranks,
            [rank(0, "tcp://nat:9000", Some("tcp://h:6000")), rank(1, "tcp://nat:9001", None)]
        );
        let replay = changed(|changed| changed.replay = Some("tcp://nat:9100".to_owned()));
        assert_eq!(replay.ranks[1], rank(1, "tcp://h:5558", Some("tcp://nat:9101")));
        assert_eq!(changed(|changed| changed.topic = Some("mine".to_owned())).topic, "mine");
        assert_eq!(
            changed(|changed| changed.ranks = Some(1)).ranks,
            [rank(0, "tcp://h:5557", Some("tcp://h:6000"))]
        );
        let more = changed(|changed| changed.ranks = Some(3));
        assert_eq!(more.ranks[2], FoundRank::unknown(2));
        assert_eq!(more.troubles, BTreeMap::from([(2, Trouble::NoSources)]));
    }

    #[test]
    fn what_cannot_be_is_named_and_the_others_are_heard() {
        let placed = place(
            &Overrides::default(),
            "h",
            &found(&[
                (0, "tcp://a:5557", Some("inproc://x")),
                (1, "tcp://a:5557", None),
                (2, "tcp://*:0", None),
                (3, "inproc://events", None),
                (4, "tcp://a:5558", Some("tcp://a:5558")),
            ]),
        );
        assert_eq!(placed.ranks[0], rank(0, "tcp://a:5557", None));
        assert_eq!(placed.ranks[4], rank(4, "tcp://a:5558", None));
        let troubles = [
            (0, Trouble::BadAnswer),
            (1, Trouble::SharedAddress),
            (2, Trouble::BadAnswer),
            (3, Trouble::BadAnswer),
        ];
        assert_eq!(placed.troubles, BTreeMap::from(troubles));
        assert!(placed.ranks[1..4].iter().all(|rank| rank.events.is_none()));
    }
}
