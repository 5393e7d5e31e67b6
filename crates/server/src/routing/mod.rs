//! Where prompts go, and what came of it: the decisions of `kvplane-route` over the catalog, and their
//! receipts.

mod books;
pub(crate) mod links;
pub(crate) mod loads;
pub(crate) mod peers;
mod pick;
mod replay;
mod report;
mod scene;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use kvplane_core::{ErrorCode, PublicError};
use kvplane_ingest::Plane;
use kvplane_metrics::{Latencies, LatenciesRead, RouteRows};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_receipts::{Cause, History, Ledger, LedgerTotals, ReceiptId, Unledgered};
use kvplane_route::{LoadSource, Options, Why};
use parking_lot::Mutex;

use books::Books;
use loads::Polls;
use peers::{Joined, Way};
pub(crate) use pick::{Endpoint, MAX_ENDPOINTS, Passed, Picked, Wish};
pub(crate) use report::{Report, State};

/// Updates of other planes that are taken while decisions wait.
const TAKEN_AT_ONCE: usize = 128;
/// Receipts that are kept.
const RECEIPT_BYTES: usize = 32 << 20;
/// Prefixes that are remembered as asked for.
const HISTORY: usize = 1 << 20;
/// Upper ends of the buckets, in seconds.
const BOUNDS: [f64; 11] =
    [0.000_005, 0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01];

/// Where an exact prediction and what was delivered disagreed last.
#[derive(Debug, Clone)]
pub(crate) struct LastDrift {
    pub(crate) receipt: String,
    pub(crate) engine: String,
    pub(crate) rank: u32,
    pub(crate) kind: &'static str,
    pub(crate) at_ms: u64,
}

/// All of it. One per plane: routers that ask the same plane share their bookings.
#[derive(Debug)]
pub(crate) struct Routing {
    books: Mutex<Books>,
    receipts: Mutex<Receipts>,
    origin: Instant,
    /// Tells receipts of this process from those of the one before it.
    salt: u32,
    whys: [AtomicU64; Why::ALL.len()],
    took: Latencies,
    polls: Polls,
    last_drift: Mutex<Option<LastDrift>>,
    /// Milliseconds after `origin` of the last pick, plus one; 0 before the first.
    last_pick: AtomicU64,
}

#[derive(Debug)]
struct Receipts {
    ledger: Ledger,
    history: History,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            books: Mutex::new(Books::new(Options::default())),
            receipts: Mutex::new(Receipts {
                ledger: Ledger::new(RECEIPT_BYTES),
                history: History::new(HISTORY),
            }),
            origin: kvplane_runtime::now(),
            salt: kvplane_runtime::unix_time().as_micros() as u32,
            whys: Default::default(),
            took: Latencies::new(&BOUNDS),
            polls: Polls::default(),
            last_drift: Mutex::default(),
            last_pick: AtomicU64::new(0),
        }
    }
}

impl Routing {
    fn now(&self) -> f64 {
        kvplane_runtime::now().duration_since(self.origin).as_secs_f64()
    }

    /// The name of a receipt, for others.
    fn name(&self, ReceiptId(number): ReceiptId) -> String {
        format!("{:08x}-{number:x}", self.salt)
    }

    /// The receipt of a name.
    fn receipt_id(&self, name: &str) -> Result<ReceiptId, PublicError> {
        let parse = |text: &str| {
            let (salt, number) = text.split_once('-')?;
            let ours = salt.len() == 8 && u32::from_str_radix(salt, 16) == Ok(self.salt);
            u64::from_str_radix(number, 16).ok().filter(|_| ours)
        };
        parse(name).map(ReceiptId).ok_or_else(|| no_such_receipt(name))
    }

    /// Whether a report needs the stream to be replayed: that takes long.
    pub(crate) fn needs_replay(&self, name: &str, cached: u64) -> bool {
        self.receipt_id(name).is_ok_and(|id| self.receipts.lock().ledger.needs_replay(id, cached))
    }

    /// A plane shares its bookings from here on, until it leaves. `None` when there are too many.
    pub(crate) fn join(&self, plane: &Plane, way: Way) -> Option<Joined> {
        self.books.lock().join(plane, way, self.now())
    }

    /// A plane shares no more.
    pub(crate) fn leave(&self, plane: &Plane, number: u64) {
        self.books.lock().leave(plane, number, self.now());
    }

    /// Takes what a plane shares. False where it is no peer any more.
    pub(crate) fn take(&self, plane: &Plane, number: u64, updates: &[proto::BookingUpdate]) -> bool {
        // A message has tens of thousands: decisions go on between them.
        updates.chunks(TAKEN_AT_ONCE).all(|updates| {
            let mut books = self.books.lock();
            let now = self.now();
            books.router.expire(now);
            updates.iter().all(|update| books.take(plane, number, update, now))
        })
    }

    /// What all receipts came to.
    pub(crate) fn totals(&self) -> LedgerTotals {
        self.receipts.lock().ledger.totals()
    }

    /// The last drift, if there was one.
    pub(crate) fn last_drift(&self) -> Option<LastDrift> {
        self.last_drift.lock().clone()
    }

    fn count(&self, why: Why, took: std::time::Duration) {
        let at = Why::ALL.iter().position(|known| *known == why).unwrap_or(0);
        self.whys[at].fetch_add(1, Ordering::Relaxed);
        self.took.record(took);
        self.last_pick.store((self.now() * 1e3) as u64 + 1, Ordering::Relaxed);
    }

    /// Whether anybody picked within this many seconds.
    fn is_busy(&self, seconds: f64) -> bool {
        let last = self.last_pick.load(Ordering::Relaxed);
        last > 0 && self.now() - last as f64 / 1e3 < seconds
    }

    fn took(&self) -> LatenciesRead {
        self.took.read()
    }

    /// Requests at each endpoint, and their tokens that are still to be computed.
    pub(crate) fn live(&self) -> Vec<(kvplane_core::StreamId, u32, u64)> {
        self.books.lock().live()
    }

    /// For `/metrics`.
    pub(crate) fn rows(&self) -> RouteRows {
        let now = self.now();
        let (books, sources, peers) = {
            let books = self.books.lock();
            (books.router.totals(), books.router.load_sources(now), books.peers.rows())
        };
        let totals = self.totals();
        let whys = Why::ALL.iter().zip(&self.whys);
        RouteRows {
            decisions: whys.map(|(why, count)| (why.as_str(), count.load(Ordering::Relaxed))).collect(),
            took: self.took(),
            tokens: [
                totals.prompt,
                totals.ceiling,
                totals.fleet,
                totals.eligible,
                totals.predicted,
                totals.delivered,
                totals.gained,
            ],
            lost: Cause::ALL.iter().map(|cause| (cause.as_str(), totals.losses.of(*cause))).collect(),
            unledgered: Unledgered::ALL
                .iter()
                .zip(totals.unledgered)
                .map(|(why, n)| (why.as_str(), n))
                .collect(),
            receipts: [totals.settled, totals.equal],
            drifts: totals.drifts,
            loads: LoadSource::ALL.iter().map(|source| source.as_str()).zip(sources).collect(),
            polls: self.polls.outcomes(),
            bookings: books.bookings as u64,
            remote_bookings: peers.remote,
            planes: peers.planes,
            updates: peers.updates,
            updates_refused: peers.refused.to_vec(),
            expired: books.expired,
            refused: books.refused,
            unpredicted: books.unpredicted,
            receipt_bytes: self.receipts.lock().ledger.bytes() as u64,
        }
    }
}

fn no_such_receipt(name: &str) -> PublicError {
    let shown: String = name.chars().take(40).collect();
    PublicError::new(ErrorCode::NotFound, format!("no receipt {shown:?}"))
        .with_next("use the id of an answer of /v1/pick; receipts are kept until newer ones need their room, or a restart")
}
