//! Whether an engine's events arrive.

use kvplane_ingest::Events;

use crate::seen::{EngineSeen, Peer, RankSeen, RingEnd, Way};
use crate::{Code, Finding, Severity};

/// The finding about an engine that only a plane reaches.
pub(super) fn elsewhere(seen: &EngineSeen) -> Finding {
    Finding::new(
        Code::EndpointUnreachable,
        Severity::Info,
        &seen.id,
        "kvplane receives its events, at an address that cannot be reached from here",
        "nothing; to look at the engine itself, run the doctor where kvplane runs",
    )
}

/// What keeps a server from being called or drained.
pub(super) fn judge_server(seen: &EngineSeen) -> Vec<Finding> {
    let Some((address, peer)) = seen.server.as_ref().filter(|(_, peer)| peer.is_absent()) else {
        return Vec::new();
    };
    // A server that speaks first, or not at all to strangers, is there.
    if *peer == Peer::Mute {
        return Vec::new();
    }
    vec![unreachable(&seen.id, address, peer)]
}

/// What keeps a rank's events from being heard.
pub(super) fn judge(seen: &EngineSeen, rank: &RankSeen) -> Vec<Finding> {
    let subject = seen.stream(rank.rank);
    let found = match &rank.events {
        // Nobody knows who is there; that it is so is said once, of all engines.
        _ if rank.events_peer == Some(Peer::NoDescriptors) => None,
        Events::Connect(address) => connected(seen, rank, &subject, address),
        Events::Bind(address) => bound(seen, rank, &subject, address),
        // There is no address to listen at: who should have named it is judged by its word.
        Events::Shared(_) | Events::Awaited => None,
    };
    found.into_iter().collect()
}

/// The engine should listen there, and we connect.
fn connected(seen: &EngineSeen, rank: &RankSeen, subject: &str, address: &str) -> Option<Finding> {
    let peer = rank.events_peer.as_ref()?;
    if rank.called == Some(true) {
        return Some(Finding::new(
            Code::PublisherConnects,
            Severity::Error,
            subject,
            format!("nothing listens at {address}; a publisher connected when the doctor listened there"),
            format!(
                "let kvplane listen: events = \"bind:{address}\"; or let the engine: vLLM and SGLang do so when the host of their endpoint is *"
            ),
        ));
    }
    if peer.is_absent() {
        let others_are_there = seen.ranks.iter().any(|other| other.rank != rank.rank && other.is_there());
        if others_are_there {
            return Some(Finding::new(
                Code::RankMissing,
                Severity::Error,
                subject,
                format!("{address}: {}; other ranks of the engine are there", peer.words()),
                "configure as many ranks as the engine has, or start the missing one; rank r publishes at port + r",
            ));
        }
        return Some(unreachable(subject, address, peer));
    }
    if !peer.is(&["PUB", "XPUB"]) {
        return Some(wrong_socket(subject, address, peer));
    }
    heard(seen, rank, subject, address)
}

/// Publishers should connect, and we listen.
fn bound(seen: &EngineSeen, rank: &RankSeen, subject: &str, address: &str) -> Option<Finding> {
    match &rank.events_peer {
        // The address was free, and we listened.
        None => {}
        Some(peer) if peer.is(&["PUB", "XPUB"]) => {
            return Some(Finding::new(
                Code::WrongSocket,
                Severity::Error,
                subject,
                format!("an engine publishes at {address} itself, where kvplane is configured to listen"),
                format!("leave out bind: events = {address:?}"),
            ));
        }
        Some(peer) => {
            return Some(Finding::new(
                Code::AddressInUse,
                Severity::Info,
                subject,
                format!("{address} is in use: {}", peer.words()),
                "if that is kvplane, ask it: kvplane doctor --server; otherwise choose another port",
            ));
        }
    }
    if rank.called == Some(false) && rank.live.batches == 0 && rank.other_topics.is_empty() {
        return Some(Finding::new(
            Code::EndpointUnreachable,
            Severity::Error,
            subject,
            format!("no publisher connected to {address} within {}", seconds(rank)),
            "start the engine; its endpoint must name this machine and port, without a * for the host",
        ));
    }
    heard(seen, rank, subject, address)
}

/// A publisher is there; does it say anything?
fn heard(seen: &EngineSeen, rank: &RankSeen, subject: &str, address: &str) -> Option<Finding> {
    // What is no batch is judged by its form.
    if rank.live.batches > 0 || rank.live.malformed > 0 {
        return None;
    }
    if !rank.other_topics.is_empty() {
        let topics: Vec<String> = rank.other_topics.keys().map(|topic| crate::heard::shown(topic)).collect();
        return Some(Finding::new(
            Code::TopicMismatch,
            Severity::Error,
            subject,
            format!(
                "{address} publishes under {}, and no topic begins with the configured {:?}",
                topics.join(", "),
                seen.topic
            ),
            format!("set topic = {} (or \"\" for everything)", topics[0]),
        ));
    }
    let ring = rank.ring.as_ref();
    let (severity, seen_words) = match ring.and_then(|ring| ring.heard.last) {
        Some(last) => (
            Severity::Info,
            format!("idle for {}; its replay ring ends with batch {}", seconds(rank), last.sequence),
        ),
        None if seen.word().is_some() => (
            Severity::Info,
            format!("nothing within {}; the engine says that it publishes: it is idle", seconds(rank)),
        ),
        // Only a publisher that is on answers replays.
        None if ring.is_some_and(|ring| ring.end == RingEnd::Complete) => (
            Severity::Info,
            format!("nothing within {}; its replay answers, and has nothing yet: it is idle", seconds(rank)),
        ),
        None => (
            Severity::Warning,
            format!(
                "connected to {address}, and nothing came within {}: the engine is idle, or its events are off",
                seconds(rank)
            ),
        ),
    };
    let todo = "send the engine a prompt that is longer than one block and run the doctor again; if it stays silent, see how the engine was started (vLLM: --kv-events-config with enable_kv_cache_events; SGLang: --kv-events-config with publisher zmq)";
    Some(Finding::new(Code::Silent, severity, subject, seen_words, todo))
}

fn unreachable(subject: &str, address: &str, peer: &Peer) -> Finding {
    let todo = match peer {
        Peer::Refused => {
            "start the engine, or correct the address; an engine that connects by itself needs events = \"bind:…\""
        }
        _ => "check the name, the network between here and there, and firewalls",
    };
    Finding::new(
        Code::EndpointUnreachable,
        Severity::Error,
        subject,
        format!("{address}: {}", peer.words()),
        todo,
    )
}

fn wrong_socket(subject: &str, address: &str, peer: &Peer) -> Finding {
    let todo = match peer {
        peer if peer.is(&["ROUTER"]) => {
            "this is a replay socket: give it as `replay`, and the port of the events as `events`"
        }
        peer if peer.is(&["SUB", "XSUB"]) => {
            "a consumer listens there, and waits for engines that connect: give the engine's own address"
        }
        Peer::Http => {
            "this is the engine's HTTP server: give it as `http`, and kvplane asks it where it publishes"
        }
        Peer::Secured(_) => "engines publish without a security mechanism; is this the right address?",
        _ => "give the address of the engine's event socket",
    };
    Finding::new(
        Code::WrongSocket,
        Severity::Error,
        subject,
        format!("events are configured at {address}, where {}", peer.words()),
        todo,
    )
}

fn seconds(rank: &RankSeen) -> String {
    format!("{:.1} s", rank.listened.as_secs_f64())
}

/// Whether events of such an engine are published by its ranks.
pub(super) fn is_published(seen: &EngineSeen) -> bool {
    matches!(seen.way, Way::Published | Way::Discovered)
}
