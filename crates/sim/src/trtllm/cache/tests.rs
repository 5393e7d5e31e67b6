use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::keys::Image;

fn cache(block_size: usize, levels: &[usize]) -> Cache {
    let mut cache = Cache::new(Shape {
        block_size,
        levels: levels.to_vec(),
        algo: HashAlgo::V1BlockKey,
        partial_reuse: true,
    });
    let created =
        TrtData::Created { num_blocks_per_cache_level: levels.iter().map(|blocks| *blocks as u64).collect() };
    assert_eq!(cache.take_events(), [created]);
    cache
}

fn salted(salt: &str) -> Keys {
    Keys { salt: Some(salt.to_owned()), ..Keys::default() }
}

/// Runs a request; how many tokens of it were cached, and what is said about it.
fn run(cache: &mut Cache, prompt: &[u32], more: &[u32]) -> (usize, Vec<TrtData>) {
    let reused = cache.full_matches(prompt, &Keys::default());
    let (held, partial) = cache.begin(prompt, &Keys::default(), reused, prompt.len() + more.len()).unwrap();
    cache.finish(held, &[prompt, more].concat());
    (reused * cache.shape.block_size + partial, cache.take_events())
}

/// Events as words: hashes as the tokens that they stand for.
fn reported(cache: &Cache, names: &mut BTreeMap<TrtHash, String>, events: &[TrtData]) -> Vec<String> {
    for block in cache.resident() {
        names.insert(block.hash, format!("{:?}", block.tokens));
    }
    let say = |event: &TrtData| match event {
        TrtData::Created { .. } => "created".to_owned(),
        TrtData::Stored { parent_hash, blocks } => {
            let parent = parent_hash.as_ref().map_or("root", |parent| &names[parent]);
            let blocks: Vec<_> = blocks.iter().map(|block| names[&block.block_hash].clone()).collect();
            format!("{parent} + {}", blocks.join(" "))
        }
        TrtData::Removed { block_hashes } => {
            let blocks: Vec<_> = block_hashes.iter().map(|hash| names[hash].clone()).collect();
            format!("- {}", blocks.join(" "))
        }
        TrtData::Updated { block_hash, cache_level, .. } => {
            let level =
                cache_level.map_or("priority".to_owned(), |l| format!("{} to {}", l.old_value, l.new_value));
            format!("{} {level}", names[block_hash])
        }
    };
    events.iter().map(say).collect()
}

#[test]
fn a_partial_tail_is_a_block_until_it_is_written_on() {
    let mut cache = cache(4, &[8]);
    let mut names = BTreeMap::new();
    let (cached, events) = run(&mut cache, &[1, 2, 3, 4, 5], &[6]);
    assert_eq!(cached, 0);
    assert_eq!(reported(&cache, &mut names, &events), ["root + [1, 2, 3, 4]", "[1, 2, 3, 4] + [5, 6]"]);

    let (cached, events) = run(&mut cache, &[1, 2, 3, 4, 5, 6, 7], &[8, 9]);
    assert_eq!(cached, 6, "four in a full block, two in a partial one");
    assert_eq!(reported(&cache, &mut names, &events), ["- [5, 6]", "[1, 2, 3, 4] + [5, 6, 7, 8] [9]"]);

    let (cached, events) = run(&mut cache, &[1, 2, 3, 4, 5, 6, 0], &[]);
    assert_eq!(cached, 6, "a part of a full block");
    assert_eq!(reported(&cache, &mut names, &events), ["[1, 2, 3, 4] + [5, 6, 0]"], "which stays");

    let (cached, events) = run(&mut cache, &[1, 2, 3, 4], &[]);
    assert_eq!((cached, events), (3, vec![]), "the last token is computed, and is there already");
}

#[test]
fn what_the_device_has_no_room_for_goes_down_and_comes_back() {
    let mut cache = cache(2, &[2, 2]);
    let mut names = BTreeMap::new();
    let mut run = |cache: &mut Cache, prompt: &[u32]| {
        // Names of what goes are known from before.
        reported(cache, &mut names, &[]);
        let (cached, events) = run(cache, prompt, &[]);
        (cached, reported(cache, &mut names, &events))
    };
    assert_eq!(run(&mut cache, &[1, 2, 3, 4]), (0, vec!["root + [1, 2] [3, 4]".to_owned()]));
    let (_, events) = run(&mut cache, &[5, 6, 7, 8]);
    assert_eq!(events, ["[3, 4] 0 to 1", "[1, 2] 0 to 1", "root + [5, 6] [7, 8]"], "the end goes first");
    let (cached, events) = run(&mut cache, &[1, 2, 3, 4]);
    assert_eq!(cached, 3);
    assert_eq!(events, ["[1, 2] 1 to 0", "[7, 8] 0 to 1", "[3, 4] 1 to 0", "[5, 6] 0 to 1"]);
    let (_, events) = run(&mut cache, &[9, 10]);
    assert_eq!(
        events,
        ["- [7, 8]", "[3, 4] 0 to 1", "root + [9, 10]"],
        "from the last level it goes for good"
    );
    assert_eq!(cache.used(), [2, 2]);
}

#[test]
fn a_request_that_never_fits_changes_nothing() {
    let mut cache = cache(2, &[2, 4]);
    run(&mut cache, &[1, 2, 3], &[]);
    let before: Vec<_> = cache.resident().collect();
    assert_eq!(cache.begin(&[1, 2, 9, 9], &Keys::default(), 1, 5).map(|_| ()), Err(PoolError::Full));
    assert_eq!(cache.resident().collect::<Vec<_>>(), before);
    assert_eq!(cache.take_events(), []);
}

#[test]
fn salts_keep_equal_prompts_apart() {
    let mut cache = cache(2, &[8]);
    run(&mut cache, &[1, 2, 3], &[]);
    assert_eq!(
        (cache.full_matches(&[1, 2, 3], &Keys::default()), cache.full_matches(&[1, 2, 3], &salted("a"))),
        (1, 0)
    );
    let (held, partial) = cache.begin(&[1, 2, 3], &salted("a"), 0, 3).unwrap();
    assert_eq!(partial, 0);
    cache.finish(held, &[1, 2, 3]);
    let hashes: std::collections::BTreeSet<_> = cache.resident().map(|block| block.hash).collect();
    assert_eq!(hashes.len(), 4);
}

#[test]
fn images_and_adapters_keep_equal_prompts_apart_and_images_are_reported() {
    let mut cache = cache(2, &[20]);
    let image = |id: &str| Image { id: id.to_owned(), offset: 1, length: 2 };
    let shown = |id| Keys { images: vec![image(id)], ..Keys::default() };
    let adapted = Keys { lora: Some("a".to_owned()), ..Keys::default() };
    for keys in [Keys::default(), shown("cat"), shown("dog"), adapted] {
        assert_eq!(cache.full_matches(&[1, 0, 0, 2, 3, 4, 5], &keys), 0);
        let (held, _) = cache.begin(&[1, 0, 0, 2, 3, 4, 5], &keys, 0, 7).unwrap();
        cache.finish(held, &[1, 0, 0, 2, 3, 4, 5]);
        assert_eq!(cache.full_matches(&[1, 0, 0, 2, 3, 4, 5], &keys), 3);
    }
    let cats = cache.resident().flat_map(|block| block.items).filter(|item| item.hash == "cat");
    assert_eq!(cats.map(|item| item.start_offset).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn priorities_change_in_place() {
    let mut cache = cache(2, &[8]);
    run(&mut cache, &[1, 2, 3, 4], &[]);
    cache.reprioritise(&[1, 2, 3, 4], &Keys::default(), 80);
    let events = cache.take_events();
    assert!(matches!(
        events[..],
        [TrtData::Updated { cache_level: None, priority: Some(_), .. }, TrtData::Updated { .. }]
    ));
    cache.reprioritise(&[1, 2, 3, 4], &Keys::default(), 80);
    assert_eq!(cache.take_events(), []);
}

proptest! {
    /// A follower of the events knows what is here; no block is colder than those that follow it.
    #[test]
    fn events_tell_everything(
        levels in prop_oneof![Just(vec![6]), Just(vec![6, 4]), Just(vec![5, 0, 3]), Just(vec![5, 3, 2])],
        requests in vec((vec(0..2u32, 1..8), 0..3usize, any::<bool>()), 0..30),
        partial_reuse in any::<bool>(),
    ) {
        let shape = Shape { block_size: 2, levels: levels.clone(), algo: HashAlgo::V1BlockKey, partial_reuse };
        let mut cache = Cache::new(shape);
        let mut known: BTreeMap<TrtHash, (Option<TrtHash>, u32)> = BTreeMap::new();
        for (prompt, more, is_salted) in requests {
            let keys = if is_salted { salted("salt") } else { Keys::default() };
            let reused = cache.full_matches(&prompt, &keys);
            let tokens = [&prompt[..], &vec![7; more]].concat();
            let begun = cache.begin(&prompt, &keys, reused, tokens.len());
            if let Ok((held, partial)) = begun {
                prop_assert!(reused * 2 + partial < prompt.len());
                cache.finish(held, &tokens);
            }
            for event in cache.take_events() {
                match event {
                    TrtData::Created { .. } => {}
                    TrtData::Stored { parent_hash, blocks } => {
                        let mut parent = parent_hash;
                        for block in blocks {
                            prop_assert!(parent.as_ref().is_none_or(|parent| known[parent].1 == 0));
                            let fresh = known.insert(block.block_hash.clone(), (parent, block.cache_level));
                            prop_assert!(fresh.is_none());
                            parent = Some(block.block_hash);
                        }
                    }
                    TrtData::Removed { block_hashes } => {
                        for hash in block_hashes {
                            prop_assert!(known.remove(&hash).is_some());
                        }
                    }
                    TrtData::Updated { block_hash, cache_level, .. } => {
                        let level = cache_level.unwrap();
                        let entry = known.get_mut(&block_hash).unwrap();
                        prop_assert_eq!(entry.1, level.old_value);
                        entry.1 = level.new_value;
                    }
                }
            }
            let truth: BTreeMap<_, _> =
                cache.resident().map(|block| (block.hash, (block.parent, block.level as u32))).collect();
            prop_assert_eq!(&known, &truth);
            for (parent, level) in truth.values() {
                prop_assert!(parent.as_ref().is_none_or(|parent| truth[parent].1 <= *level));
            }
            for (level, blocks) in levels.iter().enumerate() {
                prop_assert!(cache.used()[level] <= *blocks);
                prop_assert_eq!(cache.used()[level], truth.values().filter(|(_, at)| *at as usize == level).count());
            }
        }
    }
}
