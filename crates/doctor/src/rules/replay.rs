//! Whether what was missed can be had again: from the engine's replay ring, and from the plane's window.

use kvplane_ingest::Events;

use super::REACH_BACK_SECONDS;
use super::reach::is_published;
use crate::seen::{EngineSeen, RankSeen, RingEnd, Window};
use crate::{Code, Finding, Heard, Severity};

const START_WITH_REPLAY: &str =
    "start the engine with a replay_endpoint in --kv-events-config, and configure it as `replay`";

/// What is wrong with a rank's replay.
pub(super) fn judge(seen: &EngineSeen, rank: &RankSeen) -> Vec<Finding> {
    if !is_published(seen) || matches!(rank.events, Events::Awaited) {
        return Vec::new();
    }
    let subject = seen.stream(rank.rank);
    let found = match (&rank.replay, &rank.replay_peer, &rank.ring) {
        (None, ..) => Some(unconfigured(seen, rank, subject)),
        (Some(address), Some(peer), _) if peer.is_absent() => Some(Finding::new(
            Code::ReplayAbsent,
            Severity::Error,
            subject,
            format!("replay is configured at {address}: {}", peer.words()),
            START_WITH_REPLAY,
        )),
        (Some(address), Some(peer), _) if !peer.is(&["ROUTER"]) => {
            Some(wrong_peer(seen, rank, subject, address))
        }
        (Some(address), _, Some(ring)) => answered(seen, rank, subject, address, &ring.heard, ring.end),
        (Some(_), ..) => None,
    };
    found.into_iter().collect()
}

/// Whether a plane's window reaches back far enough at the rate of this stream.
pub(super) fn judge_window(seen: &EngineSeen, rank: &RankSeen, window: &Window) -> Option<Finding> {
    let heard = super::both(rank).find(|heard| heard.rate().is_some())?;
    let rate = heard.rate()?;
    let batch_bytes = (heard.bytes as f64 / heard.batches as f64).max(1.0);
    let held = (window.max_batches as f64).min(window.max_bytes as f64 / batch_bytes);
    window_too_short(seen.stream(rank.rank), rate, held)
}

/// The finding about a window that holds so many batches at such a rate, if it is one.
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
        format!(
            "replay is configured at {address}, where {}",
            peer.map(crate::Peer::words).unwrap_or_default()
        ),
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
    let said =
        || seen.word()?.says.iter().find(|other| other.events.address() == address).map(|other| other.rank);
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
    ring: &Heard,
    end: RingEnd,
) -> Option<Finding> {
    let is_alone = seen.ranks.len() == 1;
    let unanswered = |seen: String| {
        let todo = "see the engine's log; engines answer replays between two batches, within 100 ms";
        Some(Finding::new(Code::ReplayAbsent, Severity::Error, subject.clone(), seen, todo))
    };
    match end {
        RingEnd::Silent => return unanswered(format!("{address} does not answer a replay request")),
        RingEnd::Nonsense(why) => {
            return unanswered(format!("{address} answers what is no replay ({why})"));
        }
        RingEnd::Complete | RingEnd::Cut => {}
    }
    let own = |other: i64| {
        // A rank that is an engine of its own names itself alike on both sockets.
        other == i64::from(rank.rank)
            || (is_alone && (rank.live.ranks.is_empty() || rank.live.ranks.contains(&other)))
    };
    if let Some(other) = ring.ranks.iter().find(|other| !own(**other)) {
        return Some(Finding::new(
            Code::ReplayOnNextRanksPort,
            Severity::Error,
            subject,
            format!("{address} replays batches of rank {other}"),
            "leave as many ports between events and replay as there are ranks; rank r answers at the port of `replay` + r",
        ));
    }
    let heard_some = rank.live.last.is_some_and(|last| last.sequence > 0);
    let Some((first, last)) = ring.first.zip(ring.last) else {
        return (heard_some && ring.batches == 0).then(|| {
            Finding::new(
                Code::ReplayTooShort,
                Severity::Error,
                subject,
                format!("{address} has nothing to replay, although the engine publishes"),
                "raise buffer_steps in the engine's --kv-events-config",
            )
        });
    };
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
                ring.batches
            ),
            format!(
                "raise buffer_steps in the engine's --kv-events-config, so that it lasts {REACH_BACK_SECONDS:.0} s or longer"
            ),
        )
    })
}
