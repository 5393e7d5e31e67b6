use proptest::prelude::*;

use super::*;
use crate::receipt::CandidateNote;
use crate::replay::Happening;

const SIZE: u64 = 16;

/// Blocks 0 to 9; the engine's hash of each is 1,000 more than its content.
fn decided(predicted_blocks: u64) -> Decided {
    let predicted = predicted_blocks * SIZE;
    let note = CandidateNote {
        engine: "a".into(),
        rank: 1,
        cached: predicted,
        in_flight: 0,
        trust: Trust::Exact,
        cost: 0.0,
    };
    Decided {
        at_ms: 0,
        model: "m".into(),
        prompt: 170,
        ceiling: 160,
        fleet_main: predicted,
        fleet: predicted,
        eligible: predicted,
        random: 0,
        predicted,
        in_flight: 0,
        trust: Trust::Exact,
        candidates: vec![note],
        why: "cached",
        policy: "work",
        without_tokens: None,
        text: None,
        decide_us: 0,
        epoch: 1,
        sequence: 1,
        block_size: SIZE as u32,
        contents: (0..10).collect(),
        booking: None,
    }
}

fn delivered(blocks: u64) -> Delivered {
    Delivered { cached: blocks * SIZE, ..Delivered::default() }
}

fn stored(contents: impl IntoIterator<Item = u64>) -> Happening {
    Happening::Stored(contents.into_iter().map(|content| (content + 1_000, content)).collect())
}

fn only(account: &Account) -> Vec<(Cause, u64)> {
    account.losses.iter().filter(|(cause, _)| *cause != Cause::Capacity).collect()
}

#[test]
fn the_stages_before_the_request_sum_up_to_the_prompt() {
    let decided =
        Decided { fleet_main: 128, fleet: 112, eligible: 80, predicted: 48, ceiling: 144, ..decided(3) };
    let account = Account::at_decision(&decided);
    let of = |cause| account.losses.of(cause);
    assert_eq!(account.workload, 170 - 144);
    let stages = [Cause::Capacity, Cause::NotResumable, Cause::Eligibility, Cause::Load];
    assert_eq!(stages.map(of), [16, 16, 32, 32]);
    assert_eq!(account.workload + account.losses.sum() + decided.predicted, decided.prompt);
}

#[test]
fn each_cause_is_found_before_the_ones_behind_it() {
    let evicted = Replay::Whole(vec![Happening::Removed(vec![1_002]), stored(2..6)]);
    let settle = |change: fn(&mut Decided, &mut Delivered), replay: &Replay| {
        let (mut decided, mut delivered) = (decided(6), delivered(2));
        change(&mut decided, &mut delivered);
        only(&Account::settle(&decided, &delivered, replay))
    };
    let lost = 4 * SIZE;
    assert_eq!(settle(|_, _| (), &evicted), [(Cause::EvictedBetween, lost)]);
    let cleared = Replay::Whole(vec![Happening::Cleared]);
    assert_eq!(settle(|_, _| (), &cleared), [(Cause::EvictedBetween, lost)]);
    assert_eq!(settle(|_, _| (), &Replay::NewLife), [(Cause::Restart, lost)]);
    // What the stream shows is so, whatever the prediction was worth.
    assert_eq!(settle(|one, _| one.trust = Trust::Lower, &evicted), [(Cause::EvictedBetween, lost)]);
    let quiet = Replay::Whole(vec![stored(2..6)]);
    assert_eq!(settle(|one, _| one.trust = Trust::Lower, &quiet), [(Cause::NotExact, lost)]);
    assert_eq!(settle(|one, _| one.trust = Trust::Lower, &Replay::Expired), [(Cause::NotExact, lost)]);
    assert_eq!(settle(|_, two| two.prompt = Some(169), &Replay::NewLife), [(Cause::WrongTokens, lost)]);
    assert_eq!(settle(|_, two| two.rank = Some(0), &Replay::NewLife), [(Cause::WrongRank, lost)]);
    let elsewhere: fn(&mut Decided, &mut Delivered) =
        |_, two| *two = Delivered { engine: Some("b".into()), rank: Some(0), ..two.clone() };
    assert_eq!(settle(elsewhere, &evicted), [(Cause::WrongEndpoint, lost)]);
    assert_eq!(settle(|_, _| (), &Replay::Expired), [(Cause::Unknown, lost)]);
}

#[test]
fn what_nothing_explains_is_drift() {
    let quiet = Replay::Whole(vec![stored(2..6), Happening::Removed(vec![1_009])]);
    let account = Account::settle(&decided(6), &delivered(2), &quiet);
    assert_eq!(account.drift, Some(Drift::LostUnannounced { block: 2 }));
    assert_eq!(only(&account), [(Cause::Unknown, 4 * SIZE)]);
    let announced = Replay::Whole(vec![stored(6..8)]);
    let account = Account::settle(&decided(6), &delivered(8), &announced);
    assert_eq!((account.gained, account.drift), (2 * SIZE, None));
    let half = Replay::Whole(vec![stored([6])]);
    let account = Account::settle(&decided(6), &delivered(8), &half);
    assert_eq!(account.drift, Some(Drift::GainedUnannounced { block: 7 }));
}

proptest! {
    /// An engine with a cache as a set: others store and evict between decision and delivery, then the
    /// request is served. Whatever happens, the tokens sum up, and an honest engine leaves nothing
    /// unexplained.
    #[test]
    fn an_honest_engine_leaves_nothing_unexplained(
        held in 0u64..10,
        steps in proptest::collection::vec((any::<bool>(), 0u64..10), 0..30),
    ) {
        let mut cache: Vec<bool> = (0..10).map(|block| block < held).collect();
        let mut happenings = Vec::new();
        for (store, block) in steps {
            if store {
                // A store brings what is missing up to a block.
                let new: Vec<u64> = (0..=block).filter(|at| !cache[*at as usize]).collect();
                for at in &new {
                    cache[*at as usize] = true;
                }
                happenings.push(stored(new));
            } else if std::mem::take(&mut cache[block as usize]) {
                happenings.push(Happening::Removed(vec![block + 1_000]));
            }
        }
        let found = cache.iter().take_while(|held| **held).count() as u64;
        // The request itself stores what was missing.
        happenings.push(stored((found..10).filter(|block| !cache[*block as usize])));
        let decided = decided(held);
        let account = Account::settle(&decided, &delivered(found), &Replay::Whole(happenings));
        prop_assert_eq!(account.drift, None);
        prop_assert_eq!(account.losses.of(Cause::Unknown), 0);
        let lost = account.losses.of(Cause::EvictedBetween);
        prop_assert_eq!(decided.predicted + account.gained - lost, found * SIZE);
        prop_assert_eq!(account.workload + account.losses.sum() + found * SIZE, decided.prompt + account.gained);
    }
}
