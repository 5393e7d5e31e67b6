//! Words against single marks: [`Resumption::resumable`] is the truth.

use kvplane_core::{Marks, Need, Resumption, Side, SpecKind, Tier};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Resuming, Sides, Steps};
use crate::{Depths, LEVELS, Match};

fn need() -> impl Strategy<Value = Need> {
    let stride = prop_oneof![3 => Just(1_u32), 2 => 2..4_u32, 1 => Just(16_u32)];
    prop_oneof![
        1 => stride.clone().prop_map(|stride| Need::Prefix { stride }),
        4 => (0..6_u32, stride.clone(), any::<bool>()).prop_map(|(blocks, stride, tail)| Need::Run { blocks, stride, tail }),
        1 => (60..140_u32, stride).prop_map(|(blocks, stride)| Need::Run { blocks, stride, tail: false }),
    ]
}

fn resumption() -> impl Strategy<Value = Resumption> {
    let units = [Just(1_u32).boxed(), (1..5_u32).boxed(), (1..5_u32).boxed(), Just(1_u32).boxed()];
    (vec(need(), 0..4), units, any::<bool>()).prop_map(|(needs, units, drops_last)| {
        let side = |need| Side { group: None, kind: SpecKind::Sliding, need };
        Resumption {
            sides: needs.into_iter().map(side).collect(),
            units,
            drops_last,
            ..Resumption::default()
        }
    })
}

/// Runs of blocks that have the same marks: most have all.
fn marks() -> impl Strategy<Value = Vec<Marks>> {
    let kinds = prop_oneof![6 => Just(u64::MAX), 1 => Just(0_u64), 2 => any::<u64>(), 1 => Just(0xffff_0000)];
    vec((kinds, 1..60_usize), 1..12).prop_map(|runs| {
        runs.into_iter().flat_map(|(bits, count)| std::iter::repeat_n(Marks(bits), count)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 2000 * ProptestConfig::default().cases / 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn words_say_what_single_marks_say(
        marks in marks(),
        needs in resumption(),
        cuts in vec((0..4096_u64, 1..200_u32), 1..8),
        depths in [0..400_u32, 0..400_u32, 0..400_u32, 0..400_u32],
    ) {
        let sides = Sides::new();
        let mut steps = Steps::default();
        let mut at = 0;
        for (extent, (offset, blocks)) in cuts.into_iter().enumerate() {
            let blocks = (blocks as usize).min(marks.len() - at);
            let origin = (extent as u64 + 1) * 65_536 + offset;
            steps.push(origin, blocks as u32);
            for block in 0..blocks {
                // Neighbours that must not be taken for it.
                sides.set(4, origin + block as u64, Marks(u64::MAX));
                sides.set(5, origin + block as u64, marks[at + block]);
                sides.set(6, origin + block as u64, Marks(u64::MAX));
            }
            at += blocks;
        }
        let mut so_far = 0;
        let held: [u32; LEVELS] = depths.map(|depth| {
            so_far = depth.min(at as u32).max(so_far);
            so_far
        });
        // Between others, so that each finds what is its own.
        let all = Match { owner: 4, depths: held, marker: 4 };
        let asked = [all, Match { owner: 5, depths: held, marker: 5 }, Match { owner: 6, depths: held, marker: 6 }];
        let mut resuming = Resuming::default();
        let mut resume = |side| {
            let mut depths = Vec::new();
            resuming.resume(&sides, &steps, &asked, &needs, side, &mut depths);
            depths[1]
        };
        let counted = needs.whole_units(held);
        let got: Depths = resume(None);
        let has = |level| { let marks = &marks; move |at: u32, channel| marks[at as usize].has(level, channel) };
        let expected = std::array::from_fn(|level| needs.resumable(counted[level], has(level)));
        prop_assert_eq!(got, expected);
        for side in 0..needs.sides.len() {
            let got = resume(Some(side));
            let stride = needs.sides[side].need.stride();
            let highest = |level: usize| (0..=counted[level] / stride).rev().map(|ends| ends * stride).find(|boundary| needs.goes_on(side, *boundary, has(level)));
            let expected = std::array::from_fn(|level| {
                highest(level).unwrap_or(0).saturating_sub(if needs.drops_last { stride } else { 0 })
            });
            prop_assert_eq!(got, expected, "side {}", side);
        }
    }
}

#[test]
fn nothing_is_left_of_marks_that_went() {
    let sides = Sides::new();
    let mut all = Marks::default();
    for tier in [Tier::Device, Tier::Host] {
        all.set(tier, Marks::whole(0));
        all.set(tier, Marks::tail(1));
    }
    for spot in 4090..4300 {
        sides.set(7, spot, all);
        sides.set(8, spot, all);
    }
    for spot in 4090..4100 {
        sides.set(7, spot, Marks::default());
    }
    sides.forget(7, 4100..4290);
    sides.forget(7, 4290..4300);
    let mut columns = Vec::new();
    for page in 0..100 {
        sides.read(page, |page| columns.extend_from_slice(page));
    }
    assert!(columns.iter().all(|column| column.marker() == 8));
    assert_eq!(columns.iter().map(|column| column.bits.count_ones()).sum::<u32>(), 4 * 210);
    sides.forget(8, 4090..4300);
    assert_eq!(sides.bytes(), 0);
}
