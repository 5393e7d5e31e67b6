//! Looking at one engine: at its servers and at every rank, at the same time.

use std::time::{Duration, Instant};

use futures::future::join_all;
use kvplane_ingest::{EngineSpec, Events, Feed, RankSpec};
use kvplane_socket::{Endpoint, Sockets};

use super::ear::{Catch, Ear};
use super::{Ears, greet, ring, word};
use crate::seen::{EngineSeen, Peer, RankSeen, RingSeen, Said, Way};

/// A machine that is there answers within a second.
const GREET_WITHIN: Duration = Duration::from_secs(2);
/// Batches that tell an engine's rate where it has no ring to tell it; and messages under other topics that tell that none of
/// ours will come.
const ENOUGH_BATCHES: u64 = 64;

/// Looks at one engine.
pub(super) async fn look(sockets: &Sockets, ears: &Ears, spec: &EngineSpec, listen: Duration) -> EngineSeen {
    let (way, server) = match &spec.feed {
        Feed::Discovered(_) => (Way::Discovered, None),
        Feed::Drained(drain) => (Way::Drained, Some(drain.url.clone())),
        Feed::Subscribed(grpc) => (Way::Called, Some(grpc.url.clone())),
        Feed::Linked(link) => (Way::Called, Some(link.url.clone())),
        Feed::Published | Feed::Mirrored(_) => (Way::Published, None),
    };
    let greeted = async {
        match server {
            Some(url) => Some((url.clone(), greet(&place_of(&url), GREET_WITHIN).await)),
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
        http: spec.http.clone(),
        said: Said::default(),
        ranks: Vec::new(),
        server: None,
    };
    // Where the ranks are is known before, or only once the engine has said so.
    if way == Way::Discovered {
        seen.said = word::ask(spec).await;
        let (mut ranks, mut topic) = (spec.ranks.clone(), spec.topic.clone());
        if let Some(word) = seen.word() {
            (ranks, topic) = (word.followed.clone(), word.followed_topic.clone());
        }
        seen.ranks = look_at_ranks(sockets, ears, &ranks, &topic, listen).await;
        seen.topic = topic;
    } else {
        (seen.said, seen.ranks, seen.server) = futures::join!(
            word::ask(spec),
            look_at_ranks(sockets, ears, &spec.ranks, &spec.topic, listen),
            greeted
        );
    }
    seen
}

/// `http://host` as the place of a TCP connection.
fn place_of(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let authority = rest.split('/').next().unwrap_or(rest);
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    match (has_port, scheme) {
        (true, _) => authority.to_owned(),
        (false, "https") => format!("{authority}:443"),
        (false, _) => format!("{authority}:80"),
    }
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
    // Listening begins before the ring is read, so that nothing falls between the two.
    let own = own_ear(sockets, &seen, topic).await;
    let ear = own.as_ref().or_else(|| ears.get(spec.events.address()));
    let began = Instant::now();
    if let Some(address) = &spec.replay {
        let peer = greet(address, GREET_WITHIN).await;
        if peer.is(&["ROUTER"]) {
            seen.ring = Some(ring::read(sockets, address, listen).await);
        }
        seen.replay_peer = Some(peer);
    }
    let Some(ear) = ear else { return seen };
    let we_bound = matches!(spec.events, Events::Bind(_)) || seen.events_peer == Some(Peer::Refused);
    let ring_tells = ring_tells(seen.ring.as_ref());
    let enough_batches = if ring_tells { 1 } else { ENOUGH_BATCHES };
    let enough = |caught: &Catch| {
        if seen.events_peer == Some(Peer::Refused) {
            // Somebody connects to where nobody listened: that is all there is to know.
            return caught.connected;
        }
        let others: u64 = caught.others.values().sum();
        (!we_bound && others >= ENOUGH_BATCHES) || caught.heard.batches >= enough_batches
    };
    let left = listen.saturating_sub(began.elapsed());
    let Catch { heard, others, connected } = ear.listen(topic, left, enough).await;
    (seen.live, seen.other_topics, seen.listened) = (heard, others, began.elapsed());
    seen.called = we_bound.then_some(connected);
    seen
}

/// A socket of this rank's own: connected to its publisher; or, where nobody listens at an address of this machine, listening
/// there for whoever connects.
async fn own_ear(sockets: &Sockets, seen: &RankSeen, topic: &str) -> Option<Ear> {
    let Events::Connect(address) = &seen.events else { return None };
    let endpoint = match seen.events_peer.as_ref()? {
        peer if peer.is(&["PUB", "XPUB"]) => Endpoint::Connect(address.clone()),
        Peer::Refused => Endpoint::Bind(bindable(address).await?),
        _ => return None,
    };
    Ear::open(sockets, endpoint, [topic.to_owned()]).ok()
}

/// The address with a number for the host. Whether it is this machine's shows when it is bound.
async fn bindable(address: &str) -> Option<String> {
    let place = address.strip_prefix("tcp://")?;
    let resolved =
        tokio::time::timeout(GREET_WITHIN, tokio::net::lookup_host(place)).await.ok()?.ok()?.next()?;
    Some(format!("tcp://{resolved}"))
}

/// Whether the ring says how fast the engine publishes, and in which form.
fn ring_tells(ring: Option<&RingSeen>) -> bool {
    ring.is_some_and(|ring| ring.heard.batches > 0)
}
