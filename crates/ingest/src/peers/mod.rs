//! Other indexers, whose dumps give streams back what happened before they were heard.
//!
//! Peers are asked only while some stream lacks its past; a stream with a ring that reaches back never asks.
//! One task does it for all streams: nothing here is on the way of a batch, and what fails is tried again
//! later.

mod dump;
mod recovery;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvplane_transport::HttpClient;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(crate) use recovery::recover;

/// Peers are a handful of other indexers.
pub const MAX_PEERS: usize = 1024;
/// Pauses after failures double from the first to the last of these.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// Peers that are configured, and how they are asked.
#[derive(Debug, Clone)]
pub struct PeerOptions {
    /// Their addresses, in the order in which they are asked.
    pub urls: Vec<String>,
    /// Where the token is that these are shown. Peers that registered themselves are shown none.
    pub token_file: Option<PathBuf>,
    /// Asks them.
    pub client: HttpClient,
    /// The largest dump that is read, in bytes.
    pub max_dump: usize,
    /// How long reading one may take.
    pub deadline: Duration,
}

impl Default for PeerOptions {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            token_file: None,
            client: HttpClient::with_tls(None).unwrap_or_default(),
            max_dump: 256 << 20,
            deadline: Duration::from_mins(1),
        }
    }
}

/// What was counted of peers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerCounts {
    /// Peers that are known.
    pub peers: u64,
    /// Dumps that were read.
    pub dumps: u64,
    /// Dumps that could not be had or read.
    pub failures: u64,
    /// Dumps of a stream that were too old, too new or of another life of its engine.
    pub unfit: u64,
    /// Streams that took one.
    pub recoveries: u64,
    /// Blocks that these brought.
    pub blocks: u64,
}

/// There are too many peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there may be {MAX_PEERS} peers at most")]
pub struct TooManyPeers;

/// The peers of a plane.
#[derive(Debug)]
pub struct Peers {
    options: PeerOptions,
    list: Mutex<Vec<Peer>>,
    changed: Notify,
    dumps: AtomicU64,
    failures: AtomicU64,
    unfit: AtomicU64,
    recoveries: AtomicU64,
    blocks: AtomicU64,
}

#[derive(Debug, Clone)]
struct Peer {
    url: String,
    /// It is in the configuration: it may be shown the token.
    configured: bool,
    pause: Pause,
}

impl Peers {
    pub(crate) fn new(options: PeerOptions) -> Self {
        let peer = |url: &String| Peer { url: url.clone(), configured: true, pause: Pause::default() };
        Self {
            list: Mutex::new(options.urls.iter().map(peer).collect()),
            options,
            changed: Notify::new(),
            dumps: AtomicU64::default(),
            failures: AtomicU64::default(),
            unfit: AtomicU64::default(),
            recoveries: AtomicU64::default(),
            blocks: AtomicU64::default(),
        }
    }

    /// Adds a peer, unless it is known.
    pub fn add(&self, url: String) -> Result<(), TooManyPeers> {
        let mut list = self.list.lock();
        if !list.iter().any(|peer| peer.url == url) {
            if list.len() >= MAX_PEERS {
                return Err(TooManyPeers);
            }
            list.push(Peer { url, configured: false, pause: Pause::default() });
        }
        drop(list);
        self.changed.notify_one();
        Ok(())
    }

    /// Removes a peer. False if it is not known.
    pub fn remove(&self, url: &str) -> bool {
        let mut list = self.list.lock();
        let before = list.len();
        list.retain(|peer| peer.url != url);
        list.len() < before
    }

    /// Their addresses, in the order in which they are asked.
    pub fn urls(&self) -> Vec<String> {
        self.list.lock().iter().map(|peer| peer.url.clone()).collect()
    }

    /// What was counted.
    pub fn counts(&self) -> PeerCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PeerCounts {
            peers: self.list.lock().len() as u64,
            dumps: read(&self.dumps),
            failures: read(&self.failures),
            unfit: read(&self.unfit),
            recoveries: read(&self.recoveries),
            blocks: read(&self.blocks),
        }
    }
}

/// When something that failed is tried again.
#[derive(Debug, Clone, Copy, Default)]
struct Pause {
    failures: u32,
    /// On the monotonic clock.
    until: Option<Duration>,
}

impl Pause {
    fn is_over(&self, now: Duration) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    fn fail(&mut self, now: Duration) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LAST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.until = Some(now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let mut pause = Pause::default();
        assert!(pause.is_over(Duration::ZERO));
        let mut pauses = Vec::new();
        for _ in 0..40 {
            pause.fail(Duration::ZERO);
            pauses.push(pause.until.unwrap());
        }
        assert_eq!((pauses[0], pauses[1], pauses[39]), (FIRST_PAUSE, 2 * FIRST_PAUSE, LAST_PAUSE));
    }

    #[test]
    fn the_list_is_bounded_and_keeps_its_order() {
        let peers = Peers::new(PeerOptions { urls: vec!["b".into(), "a".into()], ..PeerOptions::default() });
        peers.add("c".into()).unwrap();
        peers.add("a".into()).unwrap();
        assert_eq!(peers.urls(), ["b", "a", "c"]);
        assert!(peers.remove("a") && !peers.remove("a"));
        for number in 0..MAX_PEERS - 2 {
            peers.add(number.to_string()).unwrap();
        }
        assert_eq!(peers.add("one more".into()), Err(TooManyPeers));
        assert_eq!(peers.counts().peers, MAX_PEERS as u64);
    }
}
