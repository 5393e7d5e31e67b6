//! What is made of a snapshot for subscribers, once for all who are sent it.

use std::sync::{Arc, Weak};

use kvplane_stream::Snapshot;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Snapshots that are taken and planned for subscribers at a time: others wait, and queries keep their
/// threads.
pub(crate) static BUILDS: Semaphore = Semaphore::const_new(2);

/// What was made of snapshots that are still in use.
pub(crate) struct Plans<T>(Mutex<Vec<Known<T>>>);

struct Known<T> {
    snapshot: Weak<Snapshot>,
    variant: u8,
    plan: Weak<T>,
}

impl<T> Plans<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// What is made of a snapshot, in one of its variants.
    pub(crate) fn of(
        &self,
        snapshot: &Arc<Snapshot>,
        variant: u8,
        make: impl FnOnce(&Snapshot) -> T,
    ) -> Arc<T> {
        let known = self.0.lock().iter().find_map(|known| {
            let same = known.variant == variant && known.snapshot.as_ptr() == Arc::as_ptr(snapshot);
            known.plan.upgrade().filter(|_| same)
        });
        if let Some(plan) = known {
            return plan;
        }
        let plan = Arc::new(make(snapshot));
        let mut all = self.0.lock();
        // A plan lives no longer than those who are sent it; a snapshot's address is not used again while it
        // is known.
        all.retain(|known| known.plan.strong_count() > 0);
        all.push(Known { snapshot: Arc::downgrade(snapshot), variant, plan: Arc::downgrade(&plan) });
        plan
    }
}

#[cfg(test)]
mod tests {
    use kvplane_core::{EngineId, StreamId};
    use kvplane_ingest::Stream;
    use kvplane_stream::{JournalOptions, Options};

    use super::*;

    #[tokio::test]
    async fn subscribers_that_begin_together_share_a_snapshot_and_what_is_made_of_it() {
        let id = StreamId::new(EngineId::new("e"), 0);
        let stream = Stream::in_process(id, Options::default(), JournalOptions::default());
        let (one, two) = (stream.snapshot_to_follow().await, stream.snapshot_to_follow().await);
        assert!(Arc::ptr_eq(&one, &two));
        // A reader that wants the current state gets it.
        assert!(!Arc::ptr_eq(&one, &stream.snapshot().await));
        let plans: Plans<Vec<u32>> = Plans::new();
        let first = plans.of(&one, 0, Snapshot::parents_first);
        assert!(Arc::ptr_eq(&first, &plans.of(&two, 0, |_| unreachable!("it is known"))));
        assert!(!Arc::ptr_eq(&first, &plans.of(&two, 1, Snapshot::parents_first)));
        drop(first);
        plans.of(&one, 2, Snapshot::parents_first);
        assert_eq!(plans.0.lock().len(), 1);
    }
}
