//! From what the engine says and what the operator said to where each rank is.

use std::collections::{BTreeMap, BTreeSet};

use super::{Description, Publisher};
use crate::address::{AddressError, for_rank};
use crate::spec::{Events, RankSpec, Told};
use crate::trouble::{BAD_ANSWER, NO_SOURCES, SHARED_ADDRESS};

/// Where an engine's ranks are, and what is wrong with some of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) ranks: Vec<RankSpec>,
    pub(crate) topic: String,
    /// What the engine says its block size is.
    pub(crate) block_size: Option<u32>,
    /// The engine serves adapters, and its events do not name them.
    pub(crate) untold_adapters: bool,
    /// Ranks that cannot be heard, or not whole, as they are described.
    pub(crate) troubles: BTreeMap<u32, &'static str>,
    /// The same in words, for the log.
    pub(crate) complaints: Vec<String>,
}

/// Puts every rank in its place. `host` stands for wildcards.
pub(super) fn place(told: &Told, host: &str, found: &Description) -> Placed {
    let wanted: Vec<u32> = match told.ranks {
        Some(ranks) => (0..ranks).collect(),
        None => found.publishers.keys().copied().collect(),
    };
    let (block_size, untold_adapters) = (found.block_size, found.untold_adapters);
    let mut placed = Placed { block_size, untold_adapters, ..Placed::default() };
    placed.topic = told.topic.clone().unwrap_or_else(|| common_topic(found));
    let mut taken = BTreeSet::new();
    for rank in wanted {
        let publisher = found.publishers.get(&rank);
        let spec = match events_of(rank, told, host, publisher) {
            Ok(Some(events)) if taken.insert(events.clone()) => {
                let replay = placed.replay_of(rank, told, host, publisher).filter(|replay| *replay != events);
                RankSpec { rank, events: Events::Connect(events), replay }
            }
            Ok(Some(events)) => placed.complain(
                rank,
                SHARED_ADDRESS,
                format!("rank {rank} is at {events}, as another rank is"),
            ),
            Ok(None) => {
                placed.complain(rank, NO_SOURCES, format!("the engine names no publisher of rank {rank}"))
            }
            Err(error) => placed.complain(rank, BAD_ANSWER, error.to_string()),
        };
        placed.ranks.push(spec);
    }
    placed
}

impl Placed {
    /// A rank that stays unheard.
    fn complain(&mut self, rank: u32, trouble: &'static str, complaint: String) -> RankSpec {
        self.troubles.insert(rank, trouble);
        self.complaints.push(complaint);
        RankSpec::awaited(rank)
    }

    /// A replay address that cannot be used is one less; the events can be heard without it.
    fn replay_of(
        &mut self,
        rank: u32,
        told: &Told,
        host: &str,
        publisher: Option<&Publisher>,
    ) -> Option<String> {
        let replay = match (&told.replay, publisher.and_then(|publisher| publisher.replay.as_deref())) {
            (Some(replay), _) => for_rank(replay, rank, true),
            (None, Some(replay)) => connectable(replay, host),
            (None, None) => return None,
        };
        match replay {
            Ok(replay) => Some(replay),
            Err(error) => {
                self.complain(rank, BAD_ANSWER, error.to_string());
                None
            }
        }
    }
}

fn events_of(
    rank: u32,
    told: &Told,
    host: &str,
    publisher: Option<&Publisher>,
) -> Result<Option<String>, AddressError> {
    match (&told.events, publisher.and_then(|publisher| publisher.events.as_deref())) {
        (Some(events), _) => for_rank(events, rank, true).map(Some),
        (None, Some(events)) => connectable(events, host).map(Some),
        (None, None) => Ok(None),
    }
}

/// The topic of all publishers. Where they differ there is none: every publisher has a socket of its own, and whatever comes
/// over it is its own.
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

    fn rank(rank: u32, events: &str, replay: Option<&str>) -> RankSpec {
        RankSpec { rank, events: Events::Connect(events.to_owned()), replay: replay.map(str::to_owned) }
    }

    #[test]
    fn wildcards_become_the_engine_s_host() {
        for wildcard in ["*", "0.0.0.0", "[::]", "::", ""] {
            let events = format!("tcp://{wildcard}:5557");
            let placed =
                place(&Told::default(), "gpu-7", &found(&[(0, &events, Some("tcp://10.0.0.9:5558"))]));
            assert_eq!(placed.ranks, [rank(0, "tcp://gpu-7:5557", Some("tcp://10.0.0.9:5558"))]);
            assert_eq!((placed.topic.as_str(), placed.block_size), ("kv", Some(16)));
            assert!(placed.troubles.is_empty());
        }
        let ipc = place(&Told::default(), "gpu-7", &found(&[(0, "ipc:///run/kv", None)]));
        assert_eq!(ipc.ranks, [rank(0, "ipc:///run/kv", None)]);
    }

    #[test]
    fn what_the_operator_said_wins_key_by_key() {
        let engine = found(&[(0, "tcp://*:5557", Some("tcp://*:6000")), (1, "tcp://*:5558", None)]);
        let told = |change: fn(&mut Told)| {
            let mut told = Told::default();
            change(&mut told);
            place(&told, "h", &engine)
        };
        let events = told(|told| told.events = Some("tcp://nat:9000".to_owned()));
        assert_eq!(
            events.ranks,
            [rank(0, "tcp://nat:9000", Some("tcp://h:6000")), rank(1, "tcp://nat:9001", None)]
        );
        let replay = told(|told| told.replay = Some("tcp://nat:9100".to_owned()));
        assert_eq!(replay.ranks[1], rank(1, "tcp://h:5558", Some("tcp://nat:9101")));
        assert_eq!(told(|told| told.topic = Some("mine".to_owned())).topic, "mine");
        assert_eq!(told(|told| told.ranks = Some(1)).ranks, [rank(0, "tcp://h:5557", Some("tcp://h:6000"))]);
        let more = told(|told| told.ranks = Some(3));
        assert_eq!(more.ranks[2], RankSpec::awaited(2));
        assert_eq!(more.troubles, BTreeMap::from([(2, NO_SOURCES)]));
    }

    #[test]
    fn what_cannot_be_is_named_and_the_others_are_heard() {
        let placed = place(
            &Told::default(),
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
        let troubles = [(0, BAD_ANSWER), (1, SHARED_ADDRESS), (2, BAD_ANSWER), (3, BAD_ANSWER)];
        assert_eq!(placed.troubles, BTreeMap::from(troubles));
        assert!(placed.ranks[1..4].iter().all(|rank| rank.events == Events::Awaited));
    }
}
