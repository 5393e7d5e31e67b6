//! `inferencecache.v1alpha1`: hints for gateways, from what replicas report and from engines that are heard
//! here.
//!
//! ```text
//! ReportCacheState, PublishEvent ──> reports.rs ──┐                 ┌──> lookup.rs ──> LookupRoute
//!                                                 ├──> Book (hints) ├──> events.rs ──> StreamCacheEvents
//! journals of engines ──> feeds (report) ─────────┘                 └──> GetCacheState, /snapshot
//! ```
//!
//! | what comes | answer |
//! |---|---|
//! | a report or event that is wrong in part | the rest is taken, the part is counted by reason, `accepted` |
//! | one of the reserved tenant | nothing happens, `accepted` |
//! | a message of more than 4 MiB, too many entries, names or streams | `RESOURCE_EXHAUSTED` |
//! | a write from another machine, unless `hints.accept_reports` says otherwise | `PERMISSION_DENIED` |
//! | a lookup that cannot be used, whatever is wrong | no hint, with the reason in `kvplane-reason` |
//! | what the contract has and nobody fills | `UNIMPLEMENTED` |

mod bounded;
mod events;
mod heard;
mod lookup;
mod options;
mod reports;
mod service;
mod text;

use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{ErrorCode, PublicError};
use kvplane_hints::Book;
use kvplane_ingest::Plane;
use kvplane_metrics::hint_counters::{Counters, Refusal};
use kvplane_prompt::Prompts;
use kvplane_report::unix_us;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub(crate) use bounded::Bounded;
pub use options::{AcceptReports, HintsOptions};
pub(crate) use reports::take_update;
pub(crate) use service::HintsService;

use crate::value::Value;
use events::Events;
use heard::Heard;
use kvplane_access::{Caller, Proof};

/// A message that is larger is refused: as much as peers' servers take.
pub(crate) const MAX_MESSAGE: usize = 4 << 20;
/// Report streams at the same time. Peers open one per flush, for milliseconds.
const MAX_REPORT_STREAMS: usize = 1024;
/// Long lookups at the same time, on threads that expiry and feeds need too.
const MAX_LONG_LOOKUPS: usize = 4;
/// Old entries are looked for at least so often.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// … and at most so often, however short they live: lookups do not see them meanwhile.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// Everything that hints are made of.
#[derive(Debug)]
pub(crate) struct Hints {
    pub(crate) book: Arc<Book>,
    pub(crate) options: HintsOptions,
    pub(crate) counters: Arc<Counters>,
    /// Tokens asked for and found, over all protocols.
    pub(crate) value: Arc<Value>,
    /// Makes ids of prompts that are given as text.
    pub(crate) prompts: Prompts,
    plane: Arc<Plane>,
    heard: Heard,
    events: Arc<Events>,
    report_streams: Arc<Semaphore>,
    long_lookups: Arc<Semaphore>,
}

impl Hints {
    /// Nothing is known yet.
    pub(crate) fn new(plane: Arc<Plane>, options: HintsOptions, value: Arc<Value>, prompts: Prompts) -> Self {
        let events = Arc::new(Events::default());
        let book = Book::new(options.limits.clone(), options.policies.clone(), Some(events.clone()));
        Self {
            book: Arc::new(book),
            options,
            counters: Arc::default(),
            value,
            prompts,
            plane,
            heard: Heard::default(),
            events,
            report_streams: Arc::new(Semaphore::new(MAX_REPORT_STREAMS)),
            long_lookups: Arc::new(Semaphore::new(MAX_LONG_LOOKUPS)),
        }
    }

    /// A message was refused for its size.
    pub(crate) fn count_oversized(&self) {
        self.counters.refused.count(Refusal::Oversized);
    }

    /// Refuses unknown writers. Callers with a key have shown their role before this.
    fn check_writer(&self, caller: Option<&Caller>) -> Result<(), PublicError> {
        let known = caller.is_some_and(|caller| caller.proof != Proof::Nothing);
        if known || self.options.accept_reports == AcceptReports::Anyone {
            return Ok(());
        }
        self.counters.refused.count(Refusal::Forbidden);
        let message = "without [auth] reports are taken from this machine only";
        let next = "configure [auth] and send a token, or set hints.accept_reports = \"anyone\"";
        Err(PublicError::new(ErrorCode::Forbidden, message).with_next(next))
    }

    /// How many listen to changes.
    pub(crate) fn listeners(&self) -> usize {
        self.events.listeners()
    }

    /// Forgets old entries, again and again, until `stop`.
    pub(crate) async fn forget_old(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(self.pause())).await.is_some() {
            let book = self.book.clone();
            // It may look at everything that there is.
            let looked = tokio::task::spawn_blocking(move || book.expire(unix_us())).await;
            if looked.is_err() {
                tracing::error!("old hints no longer expire: the sweep failed");
                return;
            }
        }
    }

    /// Until old entries are looked for again: a tenth of the shortest life.
    fn pause(&self) -> Duration {
        let policies = self.book.policies();
        let lives = policies.by_tenant.values().chain([&policies.default]).map(|policy| policy.ttl);
        (lives.min().unwrap_or(LONGEST_PAUSE) / 10).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use kvplane_ingest::PlaneOptions;

    use super::*;
    use kvplane_access::Role;

    fn hints(options: HintsOptions) -> Hints {
        let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
        Hints::new(plane, options, Arc::new(Value::new("test")), Prompts::default())
    }

    #[tokio::test]
    async fn writers_are_known_unless_anyone_may() {
        let of = |accept_reports| hints(HintsOptions { accept_reports, ..HintsOptions::default() });
        let (local, anyone) = (of(AcceptReports::Loopback), of(AcceptReports::Anyone));
        let caller =
            |proof| Caller { name: "somebody".into(), roles: Role::Report.into(), proof, peer: None };
        for proof in [Proof::Loopback, Proof::Token, Proof::Certificate] {
            assert_eq!(local.check_writer(Some(&caller(proof))), Ok(()), "{proof:?}");
        }
        for stranger in [Some(caller(Proof::Nothing)), None] {
            let refused = local.check_writer(stranger.as_ref()).unwrap_err();
            assert_eq!(refused.code, ErrorCode::Forbidden, "{stranger:?}");
            assert!(refused.next.contains("hints.accept_reports"), "{}", refused.next);
            assert_eq!(anyone.check_writer(stranger.as_ref()), Ok(()), "{stranger:?}");
        }
        assert_eq!(local.counters.refused.of(Refusal::Forbidden), 2);
    }

    #[tokio::test]
    async fn short_lives_are_looked_after_sooner() {
        let mut options = HintsOptions::default();
        assert_eq!(hints(options.clone()).pause(), LONGEST_PAUSE);
        let short = kvplane_hints::Policy { ttl: Duration::from_secs(20), ..Default::default() };
        options.policies.by_tenant.insert("a".to_owned(), short);
        assert_eq!(hints(options.clone()).pause(), Duration::from_secs(2));
        options.policies.default.ttl = Duration::from_millis(1);
        assert_eq!(hints(options).pause(), SHORTEST_PAUSE);
    }
}
