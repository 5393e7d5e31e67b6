//! Looking at one engine: at its servers and at every rank, at the same time.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use kvplane_ingest::{EngineSpec, Events, RankSpec, Source};
use kvplane_socket::{Endpoint, Sockets};

use super::ear::{Catch, Ear};
use super::{Ears, greet, ring, word};
use crate::Heard;
use crate::place::{place_of, without_userinfo};
use crate::seen::{EngineSeen, Peer, RankSeen, Said, Way};

/// A machine that is there answers within a second.
const GREET_WITHIN: Duration = Duration::from_secs(2);
/// An address is not kept from an engine that is about to listen there for longer than this. Publishers that
/// connect try again ten times a second.
const BIND_FOR: Duration = Duration::from_secs(1);
/// From an engine's first batch on, so long is enough to tell its rate where its ring does not: one that says
/// fewer batches than it takes is too slow to matter.
const RATE_WITHIN: Duration = Duration::from_secs(2);
/// Messages under other topics that tell that none of ours will come.
const ENOUGH_OTHERS: u64 = 64;

/// Looks at one engine.
pub(super) async fn look(sockets: &Sockets, ears: &Ears, spec: &EngineSpec, listen: Duration) -> EngineSeen {
    let server = spec.source.server().map(str::to_owned);
    let way = match &spec.source {
        Source::Discovered(_) => Way::Discovered,
        Source::Drained(_) => Way::Drained,
        _ if server.is_some() => Way::Called,
        _ => Way::Published,
    };
    let greeted = async {
        match server {
            Some(url) => Some((without_userinfo(&url), greet(&place_of(&url), GREET_WITHIN).await)),
            None => None,
        }
    };
    let mut seen = EngineSeen {
        id: spec.id.to_string(),
        kind: spec.kind,
        model: spec.model.clone(),
        topic: spec.topic.clone(),
        block_size: spec.block_size,
        way,
        http: spec.http.as_deref().map(without_userinfo),
        said: Said::default(),
        ranks: Vec::new(),
        server: None,
        heard_by_plane: BTreeSet::new(),
    };
    // Where the ranks are is known before, or only once the engine has said so.
    if way == Way::Discovered {
        seen.said = word::ask(spec).await;
        let (mut ranks, mut topic) = (spec.source.ranks(), spec.topic.clone());
        if let Some(word) = seen.word() {
            ranks = word.followed.iter().cloned().map(RankSpec::from).collect();
            topic = word.followed_topic.clone();
        }
        seen.ranks = look_at_ranks(sockets, ears, &ranks, &topic, listen).await;
        seen.topic = topic;
    } else {
        let ranks = spec.source.ranks();
        (seen.said, seen.ranks, seen.server) = futures::join!(
            word::ask(spec),
            look_at_ranks(sockets, ears, &ranks, &spec.topic, listen),
            greeted
        );
    }
    seen
}

async fn look_at_ranks(
    sockets: &Sockets,
    ears: &Ears,
    ranks: &[RankSpec],
    topic: &str,
    listen: Duration,
) -> Vec<RankSeen> {
    join_all(ranks.iter().map(|rank| look_at_rank(sockets, ears, rank, topic, listen))).await
}

async fn look_at_rank(
    sockets: &Sockets,
    ears: &Ears,
    spec: &RankSpec,
    topic: &str,
    listen: Duration,
) -> RankSeen {
    let mut seen = RankSeen::new(spec.rank, spec.events.clone(), spec.replay.clone());
    match &spec.events {
        Events::Shared(_) | Events::Awaited => return seen,
        Events::Connect(address) => seen.events_peer = Some(greet(address, GREET_WITHIN).await),
        Events::Bind(address) if !ears.contains_key(address) => {
            seen.events_peer = Some(greet(address, GREET_WITHIN).await);
        }
        Events::Bind(_) => {}
    }
    if seen.events_peer == Some(Peer::Refused) {
        (seen.called, seen.listened) = hear_a_call(sockets, &spec.events, topic, listen).await;
    }
    // Listening begins before the ring is read, so that nothing falls between the two.
    let own = own_ear(sockets, &seen, topic);
    let ear = own.as_ref().or_else(|| ears.get(spec.events.address()));
    let began = kvplane_runtime::now();
    if let Some(address) = &spec.replay {
        let peer = greet(address, GREET_WITHIN).await;
        if peer.is(&["ROUTER"]) {
            seen.ring = Some(ring::read(sockets, address, listen).await);
        }
        seen.replay_peer = Some(peer);
    }
    let Some(ear) = ear else { return seen };
    let we_bound = matches!(spec.events, Events::Bind(_));
    let left = || listen.saturating_sub(began.elapsed());
    let something = |caught: &Catch| {
        let others: u64 = caught.others.values().sum();
        let Heard { batches, malformed, .. } = caught.heard;
        // What is no batch is as good a sign as one.
        (!we_bound && others >= ENOUGH_OTHERS) || malformed > 0 || batches > 0
    };
    ear.listen(topic, left(), something).await;
    let ring_tells_rate = seen.ring.as_ref().is_some_and(|ring| ring.heard.rate().is_some());
    let enough =
        |caught: &Catch| ring_tells_rate || caught.heard.batches == 0 || caught.heard.rate().is_some();
    let Catch { heard, others, connected } = ear.listen(topic, left().min(RATE_WITHIN), enough).await;
    (seen.live, seen.other_topics, seen.listened) = (heard, others, began.elapsed());
    if we_bound {
        seen.called = Some(connected);
    }
    seen
}

/// A socket of this rank's own, connected to its publisher.
fn own_ear(sockets: &Sockets, seen: &RankSeen, topic: &str) -> Option<Ear> {
    let Events::Connect(address) = &seen.events else { return None };
    let peer = seen.events_peer.as_ref()?;
    let endpoint = peer.is(&["PUB", "XPUB"]).then(|| Endpoint::Connect(address.clone()))?;
    Ear::open(sockets, endpoint, [topic.to_owned()]).ok()
}

/// Nobody listens at an address: listens there for a moment, and says whether a publisher connected, and how
/// long it took. Absent where it is no address of this machine, or taken by now.
async fn hear_a_call(
    sockets: &Sockets,
    events: &Events,
    topic: &str,
    listen: Duration,
) -> (Option<bool>, Duration) {
    let began = kvplane_runtime::now();
    let called = async {
        let Events::Connect(address) = events else { return None };
        let endpoint = Endpoint::Bind(bindable(address).await?);
        let ear = Ear::open(sockets, endpoint, [topic.to_owned()]).ok()?;
        Some(ear.listen(topic, listen.min(BIND_FOR), |caught| caught.connected).await.connected)
    };
    (called.await, began.elapsed())
}

/// The address with a number for the host: of several that of IPv4, as `ZeroMQ` connects by default. Whether
/// it is this machine's shows when it is bound.
async fn bindable(address: &str) -> Option<String> {
    let place = address.strip_prefix("tcp://")?;
    let resolved = tokio::time::timeout(GREET_WITHIN, tokio::net::lookup_host(place)).await.ok()?.ok()?;
    Some(format!("tcp://{}", resolved.min_by_key(|address| !address.is_ipv4())?))
}
