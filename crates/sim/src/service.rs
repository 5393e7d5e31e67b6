//! How an engine's server answers requests for tokens: how fast, how many at once, and what goes wrong with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::{Mutex as Turns, MutexGuard, watch};

/// How fast an engine is, and how much it takes. The default takes no time and everything.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pace {
    /// Uncached tokens of prompts in a second, one prompt after the other; 0: at once.
    pub prefill: f64,
    /// How long each generated token takes.
    pub token: Duration,
    /// Requests at the same time; more are answered with 503.
    pub max_requests: Option<usize>,
}

impl Pace {
    /// How long this many tokens take before the first one is generated.
    pub(crate) fn prefill_of(&self, uncached: usize) -> Duration {
        if self.prefill > 0.0 {
            Duration::try_from_secs_f64(uncached as f64 / self.prefill).unwrap_or_default()
        } else {
            Duration::ZERO
        }
    }
}

/// What goes wrong with the next requests. Each one replaces the one before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServiceFault {
    /// They are answered with this status.
    pub status: Option<u16>,
    /// The connection ends after this many tokens.
    pub die_after: Option<usize>,
    /// They are taken, and not begun until faults are set again.
    pub hold: bool,
    /// The header that names a rank is refused.
    pub no_ranks: bool,
    /// Chats are rendered by another template than the model's.
    pub other_template: bool,
    /// For this many requests; for all without.
    pub count: Option<u32>,
}

/// What requests share.
#[derive(Debug)]
pub(crate) struct Service {
    fault: Mutex<ServiceFault>,
    /// How often faults were set: what is held waits for the next time.
    sets: watch::Sender<u64>,
    /// One prompt after the other, on each rank.
    prefills: Vec<Turns<()>>,
    under_way: AtomicUsize,
    held: AtomicUsize,
}

/// A request's place, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Service>);

impl Service {
    pub(crate) fn new(ranks: usize) -> Self {
        Self {
            fault: Mutex::default(),
            sets: watch::Sender::new(0),
            prefills: (0..ranks).map(|_| Turns::default()).collect(),
            under_way: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
        }
    }

    pub(crate) fn set(&self, fault: ServiceFault) {
        *self.fault.lock() = fault;
        self.sets.send_modify(|sets| *sets += 1);
    }

    /// What goes wrong with the next request.
    pub(crate) fn next(&self) -> ServiceFault {
        let mut fault = self.fault.lock();
        let taken = fault.clone();
        if let Some(count) = &mut fault.count {
            *count = count.saturating_sub(1);
            if *count == 0 {
                *fault = ServiceFault::default();
            }
        }
        taken
    }

    /// How chats are rendered now.
    pub(crate) fn has_other_template(&self) -> bool {
        self.fault.lock().other_template
    }

    /// A place among those under way, if there is one.
    pub(crate) fn enter(self: &Arc<Self>, most: Option<usize>) -> Option<Place> {
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        let place = Place(self.clone());
        most.is_none_or(|most| before < most).then_some(place)
    }

    /// Waits until faults are set again.
    pub(crate) async fn lifted(&self) {
        let mut sets = self.sets.subscribe();
        self.held.fetch_add(1, Ordering::Relaxed);
        let _held = Held(&self.held);
        // The sender is here: this ends when they are.
        let _ = sets.changed().await;
    }

    /// Requests that wait to be begun.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// A rank's turn to prefill.
    pub(crate) async fn prefill(&self, rank: u32) -> Option<MutexGuard<'_, ()>> {
        Some(self.prefills.get(rank as usize)?.lock().await)
    }
}

/// Counted as long as it waits.
struct Held<'s>(&'s AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_for_so_many_requests() {
        let service = Arc::new(Service::new(1));
        service.set(ServiceFault { status: Some(503), count: Some(2), ..ServiceFault::default() });
        let statuses: Vec<_> = (0..3).map(|_| service.next().status).collect();
        assert_eq!(statuses, [Some(503), Some(503), None]);
    }

    #[test]
    fn places_are_given_back() {
        let service = Arc::new(Service::new(1));
        let first = service.enter(Some(1)).unwrap();
        assert!(service.enter(Some(1)).is_none());
        drop(first);
        assert!(service.enter(Some(1)).is_some() && service.enter(None).is_some());
    }

    #[test]
    fn prefill_takes_time_by_what_is_not_cached() {
        let pace = Pace { prefill: 1_000.0, ..Pace::default() };
        assert_eq!(pace.prefill_of(500), Duration::from_millis(500));
        assert_eq!(Pace::default().prefill_of(500), Duration::ZERO);
    }
}
