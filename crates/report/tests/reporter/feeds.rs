//! Feeds of engines that come and go faster than anybody looks.

use std::collections::HashSet;
use std::sync::Arc;

use kvplane_hints::Note;
use kvplane_ingest::Origin;
use kvplane_report::{Feeds, Rules, Sink, Target};
use tokio::sync::watch;

use crate::reports::{compute, engine, planed, spec_of};
use crate::script::DEADLINE;

/// What is held, as reported by the engine's current reporter.
struct Holder(Arc<watch::Sender<HashSet<u64>>>);

impl Sink for Holder {
    fn tell(&mut self, notes: &[Note]) {
        self.0.send_modify(|held| {
            for note in notes {
                match note {
                    Note::Held(prefix) => drop(held.insert(prefix.fingerprint)),
                    Note::Gone { fingerprint, .. } => drop(held.remove(fingerprint)),
                    Note::Nothing => held.clear(),
                }
            }
        });
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.send_modify(HashSet::clear);
    }
}

#[tokio::test]
async fn an_engine_that_goes_and_comes_back_is_heard_whoever_saw_it() {
    let sim = engine();
    compute(&sim, 1, 5);
    let plane = planed(&sim);
    let held = Arc::new(watch::Sender::new(HashSet::new()));
    let reported = held.clone();
    let feeds = Feeds::start(&plane, move |_| {
        Some(Target { rules: Rules::default(), sink: Box::new(Holder(reported.clone())) })
    });
    let mut now = held.subscribe();
    // With one thread, tasks run only here: after a few turns some have seen a change, and others not.
    for turns in 0..64 {
        let (between, after) = (turns % 8, turns / 8);
        plane.remove("a").unwrap();
        for _ in 0..between {
            tokio::task::yield_now().await;
        }
        plane.add(vec![spec_of(&sim, "a")], Origin::Api).unwrap();
        for _ in 0..after {
            tokio::task::yield_now().await;
        }
        if after == 7 {
            // Also one that was reported.
            tokio::time::timeout(DEADLINE, now.wait_for(|held| held.len() == 5)).await.unwrap().unwrap();
        }
    }
    compute(&sim, 10_000, 2);
    tokio::time::timeout(DEADLINE, now.wait_for(|held| held.len() == 7)).await.unwrap().unwrap();
    tokio::time::timeout(DEADLINE, feeds.ready()).await.unwrap();
    plane.remove("a").unwrap();
    tokio::time::timeout(DEADLINE, now.wait_for(HashSet::is_empty)).await.unwrap().unwrap();
    tokio::time::timeout(DEADLINE, feeds.ready()).await.unwrap();
    sim.stop();
}

#[tokio::test]
async fn whoever_does_not_want_an_engine_is_asked_once() {
    let sim = engine();
    let plane = planed(&sim);
    let (asked, mut answers) = tokio::sync::mpsc::channel(16);
    let feeds = Feeds::start(&plane, move |engine| {
        asked.try_send(engine.spec.id.to_string()).unwrap();
        None
    });
    let mut ids = Vec::new();
    for id in ["b", "c", "d"] {
        ids.push(answers.recv().await.unwrap());
        plane.add(vec![spec_of(&sim, id)], Origin::Api).unwrap();
    }
    ids.push(answers.recv().await.unwrap());
    assert_eq!(ids, ["a", "b", "c", "d"]);
    tokio::time::timeout(DEADLINE, feeds.ready()).await.unwrap();
    sim.stop();
}
