//! Time passes: who falls silent is found when that moment has come.

use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{EngineId, Epoch, StreamId, Trust};
use kvplane_index::Options;

use super::*;
use crate::freshness::Freshness;
use crate::{Catalog, Identity, Roster, StreamFeed};

const MAX_SILENCE: Duration = Duration::from_secs(2);

fn view() -> View {
    View { epoch: Epoch::from_raw(7), continuity: Continuity::Live, trust: Trust::Exact, reason: None }
}

struct Fleet {
    origin: Instant,
    feeds: Vec<StreamFeed>,
    roster: Arc<Roster>,
    census: Census,
}

impl Fleet {
    /// Streams that were proven when the clock began.
    fn of(streams: u32) -> Self {
        let catalog = Catalog::new(Options::default());
        let origin = kvplane_runtime::now();
        let join = |rank| {
            let identity = Identity { model: "m".to_owned(), worker_id: 1, routing_group: String::new() };
            let freshness = Arc::new(Freshness::new(origin, Some(MAX_SILENCE)));
            freshness.set(Some(Duration::ZERO));
            catalog.join(StreamId::new(EngineId::new("e"), rank), identity, None, view(), freshness)
        };
        let feeds = (0..streams).map(join).collect();
        Self { origin, feeds, roster: catalog.model("m").unwrap(), census: Census::default() }
    }

    fn prove(&self, stream: usize, at: u64) {
        self.feeds[stream].member.freshness.set(Some(Duration::from_millis(at)));
    }

    /// Where every stream stands at a moment, and how many are in a class that is credited.
    fn at(&mut self, ms: u64) -> (Vec<bool>, usize) {
        let table = self.roster.table();
        self.census.catch_up(&table, &self.roster.changes);
        self.census.age(&table, self.origin + Duration::from_millis(ms));
        let credit = [Trust::Exact];
        let each = (0..table.members.len() as u32).map(|at| self.census.view(at).is_credited(&credit));
        let credited = self.census.classes().filter(|class| class.view.is_credited(&credit));
        (each.collect(), credited.map(|class| class.count).sum())
    }
}

#[test]
fn who_is_silent_for_too_long_is_not_credited_until_it_is_heard_again() {
    let mut fleet = Fleet::of(3);
    assert_eq!(fleet.at(2_000), (vec![true; 3], 3), "not older than it may be");
    fleet.prove(1, 1_500);
    assert_eq!(fleet.at(2_001), (vec![false, true, false], 1));
    assert_eq!(fleet.at(3_500), (vec![false, true, false], 1));
    fleet.prove(0, 3_400);
    assert_eq!(fleet.at(3_501), (vec![true, false, false], 1));
    fleet.prove(1, 5_000);
    fleet.prove(2, 5_000);
    assert_eq!(fleet.at(5_300), (vec![true; 3], 3));
    assert_eq!(fleet.at(5_401), (vec![false, true, true], 2));
}

#[test]
fn silence_and_changes_of_views_do_not_get_in_each_others_way() {
    let mut fleet = Fleet::of(2);
    let needs = Arc::default();
    let recovering = View { continuity: Continuity::Recovering, ..view() };
    assert_eq!(fleet.at(2_500), (vec![false; 2], 0));
    fleet.feeds[0].follow(&[], recovering, &needs);
    fleet.prove(0, 2_600);
    assert_eq!(fleet.at(2_700), (vec![false; 2], 0), "proven, and recovering");
    fleet.feeds[0].follow(&[], view(), &needs);
    assert_eq!(fleet.at(2_800), (vec![true, false], 1));
    assert_eq!(fleet.at(4_601), (vec![false; 2], 0));
    fleet.feeds[0].follow(&[], recovering, &needs);
    fleet.feeds[0].follow(&[], view(), &needs);
    assert_eq!(fleet.at(4_602), (vec![false; 2], 0), "live again, and still silent");
}

#[test]
fn more_changes_than_are_kept_are_read_as_a_whole() {
    let mut fleet = Fleet::of(3);
    let needs = Arc::default();
    assert_eq!(fleet.at(0).1, 3);
    let lower = View { trust: Trust::Lower, ..view() };
    for _ in 0..5_000 {
        fleet.feeds[0].follow(&[], lower, &needs);
        fleet.feeds[0].follow(&[], view(), &needs);
    }
    fleet.feeds[2].follow(&[], lower, &needs);
    assert_eq!(fleet.at(0), (vec![true, true, false], 2));
    assert_eq!(fleet.census.classes().count(), 2);
}
