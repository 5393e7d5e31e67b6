use kvplane_core::Trust;

use super::*;
use crate::cause::Cause;
use crate::receipt::CandidateNote;

fn decided(predicted: u64) -> Decided {
    let note = CandidateNote {
        engine: "a".into(),
        rank: 0,
        cached: predicted,
        in_flight: 0,
        trust: Trust::Exact,
        cost: 0.0,
    };
    Decided {
        at_ms: 0,
        model: "m".into(),
        prompt: 160,
        ceiling: 144,
        fleet_main: 128,
        fleet: 128,
        eligible: 128,
        random: 40,
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
        block_size: 16,
        contents: (0..10).collect(),
        booking: None,
    }
}

#[test]
fn the_ring_is_bounded_in_bytes_and_counts_what_nobody_reported() {
    let one = decided(128).bytes();
    let mut ledger = Ledger::new(10 * one);
    let ids: Vec<ReceiptId> = (0..100).map(|_| ledger.open(decided(128))).collect();
    assert!(ledger.bytes() <= 10 * one);
    assert_eq!(ledger.totals().unledgered, [90, 0]);
    assert!(ledger.get(ids[89]).is_none() && ledger.get(ids[90]).is_some());
    let gone = ledger.settle(ids[0], Delivered::default(), &Replay::Expired);
    assert_eq!(gone, Err(SettleError::NoSuchReceipt));
    for id in &ids[90..] {
        ledger.settle(*id, Delivered { cached: 128, ..Delivered::default() }, &Replay::Expired).unwrap();
    }
    assert!(ledger.bytes() <= 10 * (one - 80), "hashes go when a receipt is settled");
    let all: usize = ledger.ring.iter().map(|receipt| receipt.decided.bytes()).sum();
    assert_eq!(ledger.bytes(), all);
}

#[test]
fn totals_are_the_sums_and_a_receipt_is_settled_once() {
    let mut ledger = Ledger::new(1 << 20);
    let (first, second) = (ledger.open(decided(128)), ledger.open(decided(64)));
    assert!(!ledger.needs_replay(first, 128));
    let whole = Delivered { cached: 128, ..Delivered::default() };
    ledger.settle(first, whole.clone(), &Replay::Expired).unwrap();
    assert_eq!(ledger.settle(first, whole, &Replay::Expired), Err(SettleError::Settled));
    let elsewhere = Delivered { cached: 0, engine: Some("b".into()), ..Delivered::default() };
    assert!(ledger.needs_replay(second, 0));
    ledger.settle(second, elsewhere, &Replay::Expired).unwrap();
    let totals = ledger.totals();
    assert_eq!((totals.decided, totals.settled, totals.equal), (2, 2, 1));
    assert_eq!((totals.prompt, totals.predicted, totals.delivered, totals.random), (320, 192, 128, 80));
    assert_eq!(totals.losses.of(Cause::WrongEndpoint), 64);
    assert_eq!(totals.losses.of(Cause::Capacity), 32);
    assert_eq!(totals.losses.of(Cause::Load), 64);
    assert_eq!(ledger.worst(1)[0].id, second);
    let too_much = Delivered { cached: 161, ..Delivered::default() };
    let third = ledger.open(decided(0));
    assert_eq!(ledger.settle(third, too_much, &Replay::Expired), Err(SettleError::MoreThanPrompt));
    // Any number can be said, of the prompt too: sums must not overflow.
    let any = Delivered { cached: u64::MAX, prompt: Some(u64::MAX), ..Delivered::default() };
    assert_eq!(ledger.settle(third, any, &Replay::Expired), Err(SettleError::MoreThanPrompt));
}

#[test]
fn what_was_given_up_has_no_account_unless_somebody_still_reports() {
    let mut ledger = Ledger::new(1 << 20);
    let id = ledger.open(decided(128));
    assert!(ledger.abort(id));
    assert!(!ledger.abort(id));
    assert_eq!(ledger.totals().unledgered, [0, 1]);
    let late = Delivered { cached: 128, ..Delivered::default() };
    ledger.settle(id, late, &Replay::Expired).unwrap();
    assert_eq!((ledger.totals().unledgered, ledger.totals().settled), ([0, 0], 1));
}
