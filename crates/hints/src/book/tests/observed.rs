//! What an observer is notified of.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::*;

type Name = (Arc<str>, Arc<str>, Arc<str>);
type Held = BTreeMap<(Name, Arc<str>, PrefixHash), usize>;

/// Knows what it was notified of: in how many schemes a replica holds a prefix.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    held: Mutex<Held>,
    updates: Mutex<usize>,
    deaf: std::sync::atomic::AtomicBool,
}

impl Mirror {
    pub(super) fn held(&self) -> Held {
        self.held.lock().clone()
    }
}

impl Observer for Mirror {
    fn listens(&self) -> bool {
        !self.deaf.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn happened(&self, whose: Whose<'_>, what: Happened<'_>) {
        let name: Name = (whose.tenant.into(), whose.model.into(), whose.replica.into());
        let mut held = self.held.lock();
        match what {
            Happened::Added { hash, adapter } => {
                *held.entry((name, adapter.into(), hash.clone())).or_default() += 1;
            }
            Happened::Evicted { hash, adapter } => {
                let key = (name, adapter.into(), hash.clone());
                let schemes = held.get_mut(&key).expect("it was added");
                *schemes -= 1;
                if *schemes == 0 {
                    held.remove(&key);
                }
            }
            Happened::Cleared => held.retain(|(of, ..), _| *of != name),
            Happened::Updated => *self.updates.lock() += 1,
        }
    }
}

#[test]
fn only_changes_are_reported_and_only_to_those_who_listen() {
    let mirror = Arc::new(Mirror::default());
    let book = Book::new(Limits::default(), Policies::default(), Some(mirror.clone()));
    book.reported("r", NOW, &entries(0..3));
    book.reported("r", NOW + 9 * SECOND, &entries(0..3));
    assert!(mirror.held().values().all(|schemes| *schemes == 1));
    assert_eq!(mirror.held().len(), 3);
    book.set_stats(whose("r"), Stats::default(), NOW).unwrap();
    book.alive(whose("r"), NOW);
    book.alive(whose("nobody"), NOW);
    assert_eq!(*mirror.updates.lock(), 2);
    mirror.deaf.store(true, std::sync::atomic::Ordering::Relaxed);
    book.reported("r", NOW, &entries(7..9));
    assert_eq!(mirror.held().len(), 3);
}
