//! Whether what was missed can be had again: from the engine's replay ring, and from the plane's window.

use kvplane_ingest::Events;

use super::REACH_BACK_SECONDS;
use super::reach::is_published;
use crate::seen::{EngineSeen, Peer, RankSeen, RingEnd, RingSeen, Window};
use crate::{Code, Finding, Heard, Severity};

const START_WITH_REPLAY: &str =
    "start the engine with a replay_endpoint in --kv-events-config, and configure it as `replay`";

/// What is wrong with a rank's replay.
pub(super) fn judge(seen: &EngineSeen, rank: &RankSeen) -> Vec<Finding> {
    if !is_published(seen) || matches!(rank.events, Events::Awaited) {
        return Vec::new();
    }
    let subject = seen.stream(rank.rank);
    match (&rank.replay, &rank.replay_peer, &rank.ring) {
        (None, ..) => vec![unconfigured(seen, rank, subject)],
        // Nobody is there at all, which is said of the events.
        (Some(_), Some(peer), _) if peer.is_absent() && is_gone(rank) => Vec::new(),
        (Some(_), Some(Peer::NoDescriptors), _) => Vec::new(),
        (Some(address), Some(peer), _) if peer.is_absent() => vec![Finding::new(
            Code::ReplayAbsent,
            Severity::Error,
            subject,
            format!("replay is configured at {address}: {}", peer.words()),
            START_WITH_REPLAY,
        )],
        (Some(address), Some(peer), _) if !peer.is(&["ROUTER"]) => {
            vec![wrong_peer(seen, rank, subject, address)]
        }
        (Some(address), _, Some(ring)) => answered(seen, rank, subject, address, ring),
        (Some(_), ..) => Vec::new(),
    }
}

/// Whether neither a publisher is at the event address, nor one connects to it.
fn is_gone(rank: &RankSeen) -> bool {
    // Where we listened ourselves, nobody was looked for.
    let nobody = rank.events_peer.as_ref().map_or_else(|| rank.called == Some(false), Peer::is_absent);
    nobody && rank.called != Some(true)
}

/// Whether a plane's window reaches back far enough at the rate of this stream.
pub(super) fn judge_window(seen: &EngineSeen, rank: &RankSeen, window: &Window) -> Option<Finding> {
    let heard = super::both(rank).find(|heard| heard.rate().is_some())?;
    let rate = heard.rate()?;
    let batch_bytes = (heard.bytes as f64 / heard.batches as f64).max(1.0);
    let held = (window.max_batches as f64).min(window.max_bytes as f64 / batch_bytes);
    window_too_short(seen.stream(rank.rank), rate, held)
}

/// The finding about a window that holds this many batches at such a rate, if it is one.
pub(super) fn window_too_short(subject: String, rate: f64, held: f64) -> Option<Finding> {
    let lasts = held / rate;
    (lasts < REACH_BACK_SECONDS).then(|| {
        Finding::new(
            Code::WindowBelowRate,
            Severity::Warning,
            subject,
            format!("{rate:.0} batches a second: a window of {held:.0} batches lasts {lasts:.1} s"),
            format!(
                "raise journal.max_batches to {:.0} or more, and journal.max_bytes with it",
                (rate * REACH_BACK_SECONDS).ceil()
            ),
        )
    })
}

fn unconfigured(seen: &EngineSeen, rank: &RankSeen, subject: String) -> Finding {
    let said = seen.word().and_then(|word| word.says.iter().find(|said| said.rank == rank.rank));
    match said.and_then(|said| said.replay.as_ref()) {
        Some(address) => Finding::new(
            Code::ReplayAbsent,
            Severity::Warning,
            subject,
            format!("no replay is configured, and the engine says that it has one at {address}"),
            "configure it as `replay` (that of rank 0), or say discover = true",
        ),
        None => Finding::new(
            Code::ReplayAbsent,
            Severity::Warning,
            subject,
            "no replay is configured",
            START_WITH_REPLAY,
        ),
    }
}

/// Something else than a replay socket is at the address. Is it another rank's publisher?
fn wrong_peer(seen: &EngineSeen, rank: &RankSeen, subject: String, address: &str) -> Finding {
    let peer = rank.replay_peer.as_ref();
    let is_publisher = peer.is_some_and(|peer| peer.is(&["PUB", "XPUB"]));
    if is_publisher && let Some(other) = publisher_at(seen, rank, address) {
        return Finding::new(
            Code::ReplayOnNextRanksPort,
            Severity::Error,
            subject,
            format!("replay is configured at {address}, where rank {other} publishes its events"),
            "leave as many ports between events and replay as there are ranks, in the engine and here",
        );
    }
    Finding::new(
        Code::WrongSocket,
        Severity::Error,
        subject,
        format!("replay is configured at {address}, where {}", peer.map(Peer::words).unwrap_or_default()),
        if is_publisher {
            "this is an event socket: give it as `events`, and the port of the replay as `replay`"
        } else {
            "give the address of the engine's replay socket"
        },
    )
}

/// The rank that publishes at an address: as configured, as the engine says, or by counting ports up.
fn publisher_at(seen: &EngineSeen, rank: &RankSeen, address: &str) -> Option<u32> {
    let configured =
        seen.ranks.iter().find(|other| other.events.address() == address).map(|other| other.rank);
    let said = || {
        seen.word()?
            .says
            .iter()
            .find(|other| other.events.as_deref() == Some(address))
            .map(|other| other.rank)
    };
    let counted = || {
        let (host, port) = port_of(address)?;
        let (events_host, events_port) = port_of(rank.events.address())?;
        let next = port == events_port.checked_add(1)?;
        (host == events_host && next).then(|| rank.rank + 1)
    };
    configured.or_else(said).or_else(counted)
}

fn port_of(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

/// A replay socket answered; is it ours, and does it reach back far enough?
fn answered(
    seen: &EngineSeen,
    rank: &RankSeen,
    subject: String,
    address: &str,
    ring: &RingSeen,
) -> Vec<Finding> {
    let unanswered = |seen: String| {
        let todo = "see the engine's log; engines answer replays between two batches, within 100 ms";
        vec![Finding::new(Code::ReplayAbsent, Severity::Error, &subject, seen, todo)]
    };
    match ring.end {
        RingEnd::Silent => unanswered(format!("{address} does not answer a replay request")),
        RingEnd::Nonsense(why) => unanswered(format!("{address} sends an invalid replay ({why})")),
        RingEnd::Complete | RingEnd::Cut => match foreign_ring(seen, rank, &subject, address, &ring.heard) {
            // How long somebody else's is does not matter.
            Some(foreign) if foreign.severity == Severity::Error => vec![foreign],
            foreign => foreign.into_iter().chain(too_short(rank, subject, address, ring)).collect(),
        },
    }
}

/// A ring whose batches name another rank.
fn foreign_ring(
    seen: &EngineSeen,
    rank: &RankSeen,
    subject: &str,
    address: &str,
    ring: &Heard,
) -> Option<Finding> {
    let is_alone = seen.ranks.len() == 1;
    // A rank that is an engine of its own names itself alike on both sockets.
    let own = |other: i64| other == i64::from(rank.rank) || (is_alone && rank.live.ranks.contains(&other));
    let other = ring.ranks.iter().find(|other| !own(**other))?;
    let (severity, todo) = if is_alone && rank.live.ranks.is_empty() {
        (
            Severity::Info,
            "nothing, if this rank of the engine is a process of its own; otherwise leave as many ports between events and replay as there are ranks. Run the doctor again while the engine works: what it publishes then tells which it is",
        )
    } else {
        (
            Severity::Error,
            "leave as many ports between events and replay as there are ranks; rank r answers at the port of `replay` + r",
        )
    };
    let seen = format!("{address} replays batches of rank {other}");
    Some(Finding::new(Code::ReplayOnNextRanksPort, severity, subject, seen, todo))
}

/// A ring that does not reach back far enough.
fn too_short(rank: &RankSeen, subject: String, address: &str, ring: &RingSeen) -> Option<Finding> {
    let RingSeen { heard, end } = ring;
    let Some(first) = heard.first else {
        // Listening began before the ring was read: an engine that has just begun is heard from its first
        // batch on.
        let had_some = rank.live.first.is_some_and(|first| first.sequence > 0);
        return (had_some && heard.batches == 0).then(|| {
            Finding::new(
                Code::ReplayTooShort,
                Severity::Error,
                subject,
                format!("{address} has nothing to replay, although the engine publishes"),
                "raise buffer_steps in the engine's --kv-events-config",
            )
        });
    };
    // Of a ring that is too large to be read the end is known only by what the engine says now.
    let last = if *end == RingEnd::Cut { rank.live.last } else { heard.last }?;
    let span = last.timestamp - first.timestamp;
    // A ring that begins with the first batch ever is as long as it can be.
    let is_cut = first.sequence > 0;
    (is_cut && span < REACH_BACK_SECONDS).then(|| {
        Finding::new(
            Code::ReplayTooShort,
            Severity::Warning,
            subject,
            format!(
                "the ring holds {} batches, {span:.1} s of events: what was lost before that cannot be had again",
                last.sequence.saturating_sub(first.sequence) + 1
            ),
            format!(
                "raise buffer_steps in the engine's --kv-events-config, so that it lasts {REACH_BACK_SECONDS:.0} s or longer"
            ),
        )
    })
}
