//! Pools with several groups.

use std::collections::{BTreeMap, VecDeque};

use kvplane_wire::OwnedStored;
use proptest::prelude::*;

use super::super::*;
use super::{bits, config};
use crate::cache::Copies;

fn groups(text: &str) -> Vec<GroupSpec> {
    text.split(',').map(|group| group.parse().unwrap()).collect()
}

fn pool(blocks: usize, text: &str) -> Pool {
    Pool::new(PoolConfig { groups: groups(text), ..config(blocks) })
}

fn begin(pool: &mut Pool, prompt: &[u32]) -> Table {
    pool.begin(prompt, Keys::default(), Report::New).unwrap()
}

/// Runs a request to its end; what it found.
fn serve(pool: &mut Pool, prompt: &[u32], more: u32) -> usize {
    let mut table = begin(pool, prompt);
    for token in 0..more {
        pool.append(&mut table, 1000 + token).unwrap();
    }
    pool.finish(&table);
    table.cached_tokens()
}

/// What each group has on the device.
fn device(pool: &Pool) -> Vec<Copies> {
    pool.resident().into_iter().map(|group| group.device).collect()
}

fn stores(pool: &mut Pool) -> Vec<OwnedStored> {
    let stored = |event| match event {
        OwnedEvent::Stored(stored) => Some(stored),
        OwnedEvent::Removed(_) | OwnedEvent::Cleared => None,
    };
    pool.take_events().into_iter().filter_map(stored).collect()
}

fn text(first: u32, length: u32) -> Vec<u32> {
    (first..first + length).collect()
}

/// A consumer that counts copies in each group.
#[derive(Default)]
struct Heard(BTreeMap<(u32, u64), usize>);

impl Heard {
    fn hear(&mut self, events: &[OwnedEvent]) {
        for event in events {
            match event {
                OwnedEvent::Stored(stored) => {
                    for hash in &stored.block_hashes {
                        *self.0.entry((stored.group.unwrap(), bits(hash))).or_default() += 1;
                    }
                }
                OwnedEvent::Removed(removed) => {
                    assert_eq!(removed.block_hashes.len(), 1);
                    let key = (removed.group.unwrap(), bits(&removed.block_hashes[0]));
                    let copies = self.0.get_mut(&key).expect("only what was stored is removed");
                    *copies -= 1;
                    if *copies == 0 {
                        self.0.remove(&key);
                    }
                }
                OwnedEvent::Cleared => self.0.clear(),
            }
        }
    }

    fn groups(&self, count: usize) -> Vec<Copies> {
        let mut groups = vec![Copies::new(); count];
        for ((group, hash), copies) in &self.0 {
            groups[*group as usize].insert(*hash, *copies);
        }
        groups
    }

    /// The rule, token by token: from where on could an engine with these groups go on?
    fn predict(&self, pool: &Pool, prompt: &[u32]) -> usize {
        let digests = pool.chain(prompt, &Keys::default());
        let groups = &pool.groups.all;
        let holds = |group: usize, token: usize| {
            let size = groups[group].size;
            let end = (token / size + 1) * size;
            self.0.contains_key(&(group as u32, digests[end / pool.groups.fine - 1].bits()))
        };
        let goes_on = |boundary: usize| {
            groups.iter().enumerate().all(|(number, group)| match group.kind {
                GroupKind::Full => (0..boundary).all(|token| holds(number, token)),
                GroupKind::Sliding { window } => {
                    let more = if pool.config.eagle { group.size } else { 0 };
                    ((boundary + 1).saturating_sub(window + more)..boundary).all(|token| holds(number, token))
                }
                GroupKind::Mamba => boundary == 0 || holds(number, boundary - 1),
            })
        };
        let is_boundary = |length: &usize| groups.iter().all(|group| length.is_multiple_of(group.size));
        let longest =
            (0..prompt.len()).rev().filter(is_boundary).find(|boundary| goes_on(*boundary)).unwrap();
        if pool.config.eagle { longest.saturating_sub(pool.groups.unit) } else { longest }
    }
}

fn layouts() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("full"),
        Just("sliding:9,sliding:9,full"),
        Just("sliding:8/2,full"),
        Just("full/8,mamba"),
        Just("mamba/8,full"),
        Just("full/6,sliding:5/4"),
        Just("sliding:6,mamba"),
        Just("full,full/8,sliding:1"),
    ]
}

proptest! {
    /// Few prompts and few blocks, up to two requests at a time: reuse, copies, windows that pass and
    /// evictions all happen.
    #[test]
    fn events_tell_what_is_held_and_the_rule_what_is_found(
        layout in layouts(),
        eagle in any::<bool>(),
        keeps_tails_only in any::<bool>(),
        steps in proptest::collection::vec((0u32..3, 0u32..2, 1usize..40, 0u32..9, any::<bool>()), 1..40),
    ) {
        let groups = groups(layout);
        let is_even = groups.iter().all(|group| group.block_size.is_none() && group.kind != GroupKind::Mamba);
        let count = groups.len();
        let config = PoolConfig { groups, eagle: eagle && is_even, keeps_tails_only, ..config(40) };
        let mut pool = Pool::new(config);
        let mut heard = Heard::default();
        let mut running = VecDeque::new();
        for (first, second, length, more, keep) in steps {
            let prompt: Vec<u32> = (0..length as u32).map(|i| if i < 10 { first } else { second * 10 + i }).collect();
            let predicted = heard.predict(&pool, &prompt);
            prop_assert_eq!(pool.would_hit(&prompt, &Keys::default()), predicted);
            if let Ok(mut table) = pool.begin(&prompt, Keys::default(), Report::New) {
                prop_assert_eq!(table.cached_tokens(), predicted);
                for token in 0..more {
                    if pool.append(&mut table, token).is_err() {
                        break;
                    }
                }
                running.push_back(table);
            }
            heard.hear(&pool.take_events());
            prop_assert_eq!(heard.groups(count), device(&pool));
            prop_assert!(heard.0.values().sum::<usize>() <= 40);
            while running.len() > usize::from(keep) {
                let Some(table) = running.pop_front() else { break };
                pool.finish(&table);
            }
        }
        for table in &running {
            pool.finish(table);
        }
        prop_assert_eq!(pool.reset(false), Ok(()), "every block was given back");
    }
}

#[test]
fn windows_are_reported_before_the_group_that_says_where_they_are() {
    let mut pool = pool(100, "sliding:12,sliding:12,full");
    serve(&mut pool, &text(0, 30), 3);
    let [one, other, full, decoded @ ..] = &stores(&mut pool)[..] else { panic!("three groups") };
    assert_eq!((one.group, other.group, full.group), (Some(0), Some(1), Some(2)));
    assert_eq!((one.spec_kind.as_deref(), one.sliding_window), (Some("sliding_window"), Some(12)));
    assert_eq!((full.spec_kind.as_deref(), full.sliding_window), (Some("full_attention"), None));
    // The same span, of which a window keeps its last blocks, by the same hashes.
    assert_eq!((&one.token_ids, &one.parent), (&full.token_ids, &None));
    assert_eq!((full.block_hashes.len(), &one.block_hashes[..]), (7, &full.block_hashes[4..]));
    assert_eq!(one.block_hashes, other.block_hashes);
    // A block of generated tokens is of no use to a window.
    assert_eq!(decoded.iter().map(|stored| stored.block_hashes.len()).collect::<Vec<_>>(), [0, 0, 1]);
    assert_eq!((decoded[0].token_ids.len(), &decoded[0].extra_keys), (4, &None));
    assert_eq!(decoded[0].parent.as_ref(), full.block_hashes.last());
}

#[test]
fn a_window_that_was_not_kept_costs_the_whole_prefix_once() {
    let mut pool = pool(100, "sliding:12,full");
    serve(&mut pool, &text(0, 61), 0);
    assert_eq!(serve(&mut pool, &text(0, 61), 0), 60);
    // The full group has these, but no window ends here: they are computed again, and kept then.
    assert_eq!(serve(&mut pool, &text(0, 33), 0), 0);
    assert_eq!(serve(&mut pool, &text(0, 33), 0), 32);
    pool.take_events();
    // Another prompt branches off where no window ends: it is kept at the branch too, with a hole behind.
    let branch = [text(0, 20), text(500, 33)].concat();
    assert_eq!(serve(&mut pool, &branch, 0), 0);
    let stored = stores(&mut pool);
    let kept: Vec<_> =
        stored[1].block_hashes.iter().map(|hash| stored[0].block_hashes.contains(hash)).collect();
    let expected: Vec<_> =
        (0..13).map(|block| (2..5).contains(&block) || (10..13).contains(&block)).collect();
    assert_eq!(kept, expected);
    assert_eq!(serve(&mut pool, &[text(0, 20), text(900, 9)].concat(), 0), 20);
}

#[test]
fn blocks_that_leave_the_window_are_given_up_and_stay_cached() {
    let mut pool =
        Pool::new(PoolConfig { keeps_tails_only: false, groups: groups("sliding:5,full"), ..config(16) });
    let mut table = begin(&mut pool, &text(0, 16));
    assert_eq!(pool.blocks.free_besides(std::iter::empty()), 8);
    pool.append(&mut table, 16).unwrap();
    // Of the four, only the last is in the window; a fifth was needed, in both groups.
    assert_eq!(pool.blocks.free_besides(std::iter::empty()), 9);
    assert_eq!(device(&pool).iter().map(BTreeMap::len).collect::<Vec<_>>(), [4, 4]);
    pool.finish(&table);
    assert_eq!(pool.would_hit(&text(0, 9), &Keys::default()), 8);
}

#[test]
fn a_state_is_found_exactly_where_it_was_kept() {
    let mut pool = pool(100, "full,mamba/8");
    serve(&mut pool, &text(0, 30), 0);
    let stored = stores(&mut pool);
    assert_eq!((stored[0].block_hashes.len(), stored[1].block_hashes.len()), (7, 1));
    assert_eq!((stored[1].block_size, stored[1].token_ids.len()), (8, 24));
    assert_eq!(
        stored[1].block_hashes[0], stored[0].block_hashes[5],
        "a large block has the hash where it ends"
    );
    assert_eq!(pool.would_hit(&text(0, 29), &Keys::default()), 24);
    assert_eq!(pool.would_hit(&text(0, 24), &Keys::default()), 0);
}

#[test]
fn the_beginning_of_a_large_block_is_reported_until_the_block_is_full() {
    let mut pool = pool(100, "full/8,sliding:5");
    let mut table = begin(&mut pool, &text(0, 13));
    let stored = stores(&mut pool);
    let partial = stored.last().unwrap();
    assert_eq!((partial.block_size, &partial.token_ids[..]), (4, &[8, 9, 10, 11][..]));
    assert_eq!(partial.parent.as_ref(), stored[0].block_hashes.last());
    let hash = partial.block_hashes[0].clone();
    for token in 13..16 {
        pool.append(&mut table, token).unwrap();
    }
    let events = pool.take_events();
    let OwnedEvent::Removed(removed) = &events[0] else { panic!("the beginning goes first") };
    assert_eq!((&removed.block_hashes[..], removed.group), (&[hash][..], Some(0)));
    let OwnedEvent::Stored(full) = &events[1] else { panic!("then the block comes") };
    assert_eq!(
        (full.block_size, full.token_ids.len(), full.parent.as_ref()),
        (8, 8, stored[0].block_hashes.last())
    );
    pool.finish(&table);
}

#[test]
fn eagle_gives_up_the_last_block_that_is_found() {
    let mut pool = Pool::new(PoolConfig { eagle: true, ..config(20) });
    serve(&mut pool, &text(0, 17), 0);
    assert_eq!(serve(&mut pool, &text(0, 17), 0), 12);
    assert_eq!(pool.would_hit(&text(0, 5), &Keys::default()), 0);
}

#[test]
fn a_full_report_repeats_what_was_found_also_what_no_window_has() {
    let mut pool = pool(100, "sliding:5,full");
    serve(&mut pool, &text(0, 13), 0);
    let before = device(&pool);
    let reported = stores(&mut pool);
    let table = pool.begin(&[text(0, 12), text(50, 5)].concat(), Keys::default(), Report::Full).unwrap();
    let stored = stores(&mut pool);
    assert_eq!(stored.len(), 4);
    assert_eq!((&stored[1].block_hashes, &stored[1].parent), (&reported[1].block_hashes, &None));
    assert_eq!(stored[0].block_hashes, stored[1].block_hashes, "the window has only the last of them");
    assert_eq!(stored[3].parent.as_ref(), stored[1].block_hashes.last());
    pool.finish(&table);
    let new = |group: usize| device(&pool)[group].len() - before[group].len();
    assert_eq!((new(0), new(1)), (1, 1));
}
