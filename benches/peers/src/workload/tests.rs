use std::io::Write;

use super::*;

fn shape() -> Shape {
    let depths =
        vec![Depth { blocks: 64, share: 0.7, turns: 4 }, Depth { blocks: 256, share: 0.3, turns: 6 }];
    Shape { engines: 5, capacity: 1024, depths }
}

/// Plays events as an index would and checks that they can be played: parents are held, nothing is stored or
/// removed twice.
fn play(held: &mut [std::collections::HashSet<BlockId>], slice: &Slice, capacity: usize) {
    for event in &slice.events {
        let held = &mut held[event.engine as usize];
        for block in slice.blocks(event) {
            match event.kind {
                Kind::Store { parent } => {
                    assert!(parent.is_none_or(|parent| held.contains(&parent)));
                    assert!(held.insert(*block));
                }
                Kind::Remove => assert!(held.remove(block)),
            }
        }
        assert!(held.len() <= capacity);
    }
}

fn agrees(world: &World, held: &[std::collections::HashSet<BlockId>]) -> bool {
    world
        .caches()
        .iter()
        .zip(held)
        .all(|(cache, held)| cache.len() == held.len() && held.iter().all(|block| cache.contains(*block)))
}

#[test]
fn the_same_seed_gives_the_same_load() {
    let run = |seed| {
        let mut world = World::of_conversations(&shape(), seed);
        let slices = [world.fill(), world.churn(20_000)];
        (slices, world.cached_prompts(64, 50))
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn caches_fill_up_and_stay_full_and_never_exceed_their_size() {
    let mut world = World::of_conversations(&shape(), 1);
    let mut held = vec![std::collections::HashSet::new(); 5];
    play(&mut held, &world.fill(), 1024);
    assert_eq!(world.resident(), 5 * 1024);
    for _ in 0..4 {
        let slice = world.churn(10_000);
        assert!(slice.block_operations() >= 10_000);
        play(&mut held, &slice, 1024);
        assert!(agrees(&world, &held));
        assert!(world.resident() > 5 * 1024 * 99 / 100);
    }
}

#[test]
fn engines_that_do_not_serve_do_not_change() {
    let mut world = World::of_conversations(&shape(), 3);
    world.fill();
    world.serve_only(|engine| engine == 2);
    let slice = world.churn(5_000);
    assert!(slice.events.iter().all(|event| event.engine == 2));
}

#[test]
fn cached_prompts_are_cached_and_different() {
    let mut world = World::of_conversations(&shape(), 4);
    world.fill();
    let prompts = world.cached_prompts(64, 40);
    assert!(prompts.len() > 20);
    let last: std::collections::HashSet<BlockId> = prompts.iter().map(|prompt| prompt[63]).collect();
    assert_eq!(last.len(), prompts.len());
    assert!(prompts.iter().all(|prompt| world.depths(prompt).contains(&64)));
}

#[test]
fn holes_shorten_what_is_held_until_they_are_mended() {
    let mut world = World::of_conversations(&shape(), 5);
    world.fill();
    let idle = world.serve_only(|_| true);
    assert!(idle.events.iter().all(|event| event.engine < 5));
    let prompts = world.cached_prompts(64, 10);
    let before: Vec<_> = prompts.iter().map(|prompt| world.depths(prompt)).collect();
    let holes = world.make_holes(&prompts);
    assert!(prompts.iter().all(|prompt| world.depths(prompt).iter().all(|depth| *depth <= 32)));
    world.mend_holes(&holes);
    assert_eq!(before, prompts.iter().map(|prompt| world.depths(prompt)).collect::<Vec<_>>());
}

#[test]
fn a_trace_is_served_to_its_end() {
    let path = std::env::temp_dir().join(format!("kvplane-peers-trace-{}", std::process::id()));
    let mut file = std::fs::File::create(&path).unwrap();
    for number in 0..200 {
        let ids: Vec<u32> = [0].into_iter().chain(number * 3 + 1..number * 3 + 4).collect();
        writeln!(
            file,
            r#"{{"timestamp": 0, "input_length": 2048, "output_length": 40, "hash_ids": {ids:?}}}"#
        )
        .unwrap();
    }
    let mut world = World::of_trace(3, 1024, &path, 1).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut held = vec![std::collections::HashSet::new(); 3];
    play(&mut held, &world.fill(), 1024);
    assert_eq!(world.resident(), 3 * 1024);
    let slice = world.churn(usize::MAX);
    play(&mut held, &slice, 1024);
    assert!(agrees(&world, &held));
    assert_eq!(slice.prompt(&slice.arrivals[0]).len(), 4 * 32);
}

#[test]
fn hashes_are_equal_or_different_between_engines_and_always_different_between_blocks() {
    let (equal, different) = (EngineHashes::Equal, EngineHashes::Different);
    assert_eq!(equal.of(0, 5), equal.of(1, 5));
    assert_ne!(different.of(0, 5), different.of(1, 5));
    assert_ne!(different.of(0, 5), different.of(0, 6));
    let mut blocks = Blocks::default();
    let first = blocks.make(2);
    assert_ne!(blocks.content(first), blocks.content(first + 1));
    assert_eq!(tokens(&[first]).len(), BLOCK_TOKENS);
}
