//! What every kind of source has to pass, over real sockets, with a simulated engine behind it.
//!
//! A kind is a [`Subject`]: how its engine is started, followed and made to fail. The rows below are written
//! once.
//!
//! | row | published | bound | discovered | drained | relayed | linked |
//! |---|---|---|---|---|---|---|
//! | late join: what the engine did before is known | yes | yes | yes | yes | yes | yes |
//! | gap: lost events are never credited, and the answer says so | yes | yes | yes | yes | yes | yes |
//! | restart at a lower, the same or a higher number is a new epoch | yes | yes | yes | yes | yes | yes |
//! | silence beyond `max_silence` is not live | yes | yes | (1) | yes | yes | yes |
//! | garbage is counted, and ends neither the source nor the epoch | yes | yes | yes | yes | yes | yes |
//! | removal while busy: nothing is left, and a return is a later epoch | yes | yes | yes | yes | yes | (2) |
//!
//! (1) The engine itself says where it publishes, so nothing can stand between it and the plane. Once it has
//! said so, its ranks are followed by the same code as published ones.
//!
//! (2) A mirror has the epochs and cursors of the other plane, where nothing was removed: it returns in the
//! same epoch.
//!
//! `linked` covers two types: its streams are `Source::Mirrored`, which a plane adds by itself for each
//! engine that the other plane has. The loss, the restart and their trust happen at the other plane and have
//! to arrive.
//!
//! Events that are handed over by calls in the engine's process are no source: they have no connection that
//! could fail, and `kvplane-stream` tests them as `handed`.

/// A test of every row for a kind of source; with `@without_silence`, of every row but that one.
macro_rules! conforms {
    ($subject:ty) => {
        conforms!(@without_silence $subject);
        conforms!(@row silence: $crate::conformance::silence::<$subject>());
    };
    (@without_silence $subject:ty) => {
        conforms!(@row late_join: $crate::conformance::late_join::<$subject>());
        conforms!(@row gap: $crate::conformance::gap::<$subject>());
        conforms!(@row restart_at_a_lower_number: $crate::conformance::restart::<$subject>(|_| 0));
        conforms!(@row restart_at_the_same_number: $crate::conformance::restart::<$subject>(|next| next));
        conforms!(@row restart_at_a_higher_number: $crate::conformance::restart::<$subject>(|next| next + 7));
        conforms!(@row garbage: $crate::conformance::garbage::<$subject>());
        conforms!(@row removal_while_busy: $crate::conformance::removal_while_busy::<$subject>());
    };
    (@row $name:ident: $row:expr) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            $row.await;
        }
    };
}

mod drained;
mod linked;
mod published;
mod relayed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Continuity, Reason};
use kvplane_ingest::{EngineSpec, Origin, Plane, PlaneOptions, Stream, StreamStatus};
use kvplane_testkit::{held, until};

/// A kind of source, and a simulated engine behind it with one rank.
pub(crate) trait Subject: Sized + Send + 'static {
    /// The name of its stream's engine at the plane that follows it as `e0`.
    const STREAM: &str = "e0";
    /// Whether epochs and cursors are another plane's, and outlive the stream here.
    const NUMBERS_ARE_FOREIGN: bool = false;

    /// Starts an engine that nobody follows yet.
    async fn start() -> Self;
    /// How a plane follows it as `e0`.
    fn spec(&self) -> EngineSpec;
    /// Runs this many requests. Their events have been published when this returns, but perhaps not
    /// delivered.
    fn work(&mut self, requests: usize);
    /// The number of its last batch or event.
    fn last(&self) -> Option<u64>;
    /// What it holds: hash to copies.
    fn held(&self) -> BTreeMap<u64, u64>;
    /// The next event takes its number and is lost for good.
    fn lose(&self);
    /// A new process with the old content, which has come to this number before anybody can read it.
    fn restart(&self, first: u64);
    /// Something arrives that cannot be read. Nothing of the engine's state is lost with it.
    fn send_garbage(&self);
    /// Whether the garbage has been counted.
    fn has_counted_garbage(before: &StreamStatus, now: &StreamStatus) -> bool;
    /// Nothing arrives any more, while all connections stay open.
    fn silence(&self);
    /// Everything arrives again.
    fn restore(&self);
}

/// Far above the interval of heartbeats and polls, and short enough to wait for.
const MAX_SILENCE: Duration = Duration::from_secs(2);

/// A plane that follows one engine. Ends when it is dropped.
struct Followed(Arc<Plane>);

impl Drop for Followed {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

impl Followed {
    fn start(subject: &impl Subject) -> Self {
        let options = PlaneOptions {
            replay_idle: Duration::from_millis(700),
            max_silence: MAX_SILENCE,
            ..PlaneOptions::default()
        };
        let followed = Self(Plane::start(Vec::new(), &options).unwrap());
        followed.add(subject);
        followed
    }

    fn add(&self, subject: &impl Subject) {
        let spec = EngineSpec { max_silence: Some(MAX_SILENCE), ..subject.spec() };
        self.0.add(vec![spec], Origin::Api).unwrap();
    }

    fn stream<S: Subject>(&self) -> Option<Arc<Stream>> {
        Some(self.0.engine(S::STREAM)?.streams.first()?.clone())
    }

    async fn until<S: Subject>(&self, what: &str, wanted: impl Fn(&StreamStatus) -> bool) -> StreamStatus {
        let mut last = None;
        until(what, || {
            last = self.stream::<S>().map(|stream| stream.status());
            last.as_ref().is_some_and(&wanted)
        })
        .await;
        last.unwrap()
    }

    /// Waits until the last event is known, and compares what both hold: equal where nothing is said to be
    /// missing, and never more than there is.
    async fn settled<S: Subject>(&self, subject: &S) -> StreamStatus {
        let last = subject.last();
        let settled = |s: &StreamStatus| s.continuity == Continuity::Live && s.engine_sequence == last;
        let status = self.until::<S>("settled", settled).await;
        let (ours, truth) = (held(&self.stream::<S>().unwrap()).await, subject.held());
        if is_whole(&status) {
            assert_eq!(ours, truth, "{:?}", status.trust);
        }
        assert!(ours.keys().all(|hash| truth.contains_key(hash)), "phantoms under {:?}", status.trust);
        status
    }

    /// The same, where nothing may be missing.
    async fn whole<S: Subject>(&self, subject: &S) -> StreamStatus {
        let status = self.settled(subject).await;
        assert!(is_whole(&status), "{:?}", status.trust);
        status
    }
}

/// Whether nothing is said to be missing. A relay is never believed further than that.
fn is_whole(status: &StreamStatus) -> bool {
    status.trust.active().iter().all(|degradation| degradation.reason == Reason::Relay)
}

async fn late_join<S: Subject>() {
    let mut subject = S::start().await;
    subject.work(10);
    let plane = Followed::start(&subject);
    plane.whole(&subject).await;
    subject.work(5);
    let status = plane.whole(&subject).await;
    assert!(!held(&plane.stream::<S>().unwrap()).await.is_empty());
    assert_eq!(status.counters.restarts, 0);
}

async fn gap<S: Subject>() {
    let mut subject = S::start().await;
    subject.work(5);
    let plane = Followed::start(&subject);
    let before = plane.whole(&subject).await;
    subject.lose();
    subject.work(4);
    plane.until::<S>("degraded", |status| !is_whole(status)).await;
    let after = plane.settled(&subject).await;
    assert_eq!(after.epoch, before.epoch, "a loss is not a restart");
    assert!(!is_whole(&after), "what was lost may be missing");
}

/// A restart of an engine whose new process has come to the number that `first` makes of the old one's next.
async fn restart<S: Subject>(first: fn(u64) -> u64) {
    let mut subject = S::start().await;
    subject.work(10);
    let plane = Followed::start(&subject);
    let before = plane.whole(&subject).await;
    subject.restart(first(subject.last().unwrap() + 1));
    plane.until::<S>("in another epoch", |status| status.epoch > before.epoch).await;
    subject.work(3);
    plane.whole(&subject).await;
}

async fn silence<S: Subject>() {
    let mut subject = S::start().await;
    subject.work(5);
    let plane = Followed::start(&subject);
    let before = plane.whole(&subject).await;
    subject.silence();
    let during = plane.until::<S>("silent", |status| status.continuity != Continuity::Live).await;
    assert_eq!(during.epoch, before.epoch, "silence says nothing about the process");
    subject.work(2);
    subject.restore();
    subject.work(2);
    plane.settled(&subject).await;
}

async fn garbage<S: Subject>() {
    let mut subject = S::start().await;
    subject.work(5);
    let plane = Followed::start(&subject);
    let before = plane.whole(&subject).await;
    subject.send_garbage();
    subject.work(4);
    plane.until::<S>("counted", |status| S::has_counted_garbage(&before, status)).await;
    subject.work(4);
    let after = plane.whole(&subject).await;
    assert_eq!(after.epoch, before.epoch);
}

async fn removal_while_busy<S: Subject>() {
    let mut subject = S::start().await;
    subject.work(3);
    let plane = Followed::start(&subject);
    let before = plane.whole(&subject).await;
    let stream = plane.stream::<S>().unwrap();
    let busy = tokio::task::spawn_blocking(move || {
        subject.work(60);
        subject
    });
    plane.until::<S>("busy", |status| status.cursor.sequence > before.cursor.sequence).await;
    let own = plane.0.clone();
    tokio::task::spawn_blocking(move || own.remove("e0").unwrap()).await.unwrap();
    assert!(plane.0.engines().is_empty() && stream.removed().is_cancelled());
    let mut subject = busy.await.unwrap();
    plane.add(&subject);
    subject.work(2);
    let after = plane.settled(&subject).await;
    if S::NUMBERS_ARE_FOREIGN {
        assert_eq!(after.epoch, before.epoch);
    } else {
        assert!(after.epoch > before.epoch, "the old stream's cursors must not be taken for the new one's");
    }
}
