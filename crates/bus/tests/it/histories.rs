//! Any history of claims, losses, repetitions, delays, damage, zombies, deaths, and a bus that is made anew.

use proptest::prelude::*;

use crate::world::{Fate, PLANES, STREAMS, World};

#[derive(Debug, Clone)]
enum Op {
    Step(usize, u64),
    Restart(usize),
    Remark(usize, usize),
    Claim(usize, usize, Fate),
    Flush(usize, Fate, bool),
    /// A plane that does not read goes on publishing: a zombie, once somebody else has claimed.
    Read(usize, usize, u8),
    Answer(usize, usize),
    Die(usize),
    Rebirth,
    LoseLast(usize),
    LoseRecords,
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        12 => Just(Fate::Fine),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Doubled),
        1 => Just(Fate::Delayed),
        1 => Just(Fate::Damaged),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let (plane, engine) = (0..PLANES, 0..STREAMS);
    let lost = prop_oneof![8 => Just(0_u8), 1 => any::<u8>()];
    prop_oneof![
        8 => (engine.clone(), any::<u64>()).prop_map(|(engine, op)| Op::Step(engine, op)),
        1 => engine.clone().prop_map(Op::Restart),
        2 => (plane.clone(), engine.clone()).prop_map(|(plane, engine)| Op::Remark(plane, engine)),
        3 => (plane.clone(), engine, fate()).prop_map(|(plane, engine, fate)| Op::Claim(plane, engine, fate)),
        8 => (plane.clone(), fate(), any::<bool>()).prop_map(|(plane, fate, heads)| Op::Flush(plane, fate, heads)),
        10 => (plane.clone(), 1..6_usize, lost).prop_map(|(plane, count, lost)| Op::Read(plane, count, lost)),
        6 => (plane.clone(), plane.clone()).prop_map(|(plane, by)| Op::Answer(plane, by)),
        1 => plane.prop_map(Op::Die),
        1 => Just(Op::Rebirth),
        1 => (1..4_usize).prop_map(Op::LoseLast),
        1 => Just(Op::LoseRecords),
    ]
}

fn run(world: &mut World, op: &Op) {
    match *op {
        Op::Step(engine, op) => world.step(engine, op),
        Op::Restart(engine) => world.restart(engine),
        Op::Remark(plane, engine) => world.remark(plane, engine),
        Op::Claim(plane, engine, fate) => world.claim(plane, engine, fate),
        Op::Flush(plane, fate, heads) => world.flush(plane, fate, heads),
        Op::Read(plane, count, lost) => world.read(plane, count, lost),
        Op::Answer(plane, by) => world.answer(plane, by),
        Op::Die(plane) => world.die(plane),
        Op::Rebirth => world.rebirth(),
        Op::LoseLast(count) => world.lose_last(count),
        Op::LoseRecords => world.bus.lose_records(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn whoever_says_live_is_right_and_everybody_comes_to_be(ops in prop::collection::vec(op(), 1..80)) {
        let mut world = World::new();
        for op in &ops {
            run(&mut world, op);
            world.check();
        }
        world.heal();
    }
}
