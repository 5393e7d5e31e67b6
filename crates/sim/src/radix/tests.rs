use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kvplane_wire::OwnedHash;
use proptest::prelude::*;

use super::*;

const PAGE: usize = 4;

fn style() -> EventStyle {
    let hash = PageHash::Chain { salted: true, namespaced: false };
    EventStyle { pairs: false, hash, coalesced: true, clears: true }
}

fn config(pages: usize, host_pages: usize) -> RadixConfig {
    RadixConfig { page_size: PAGE, pages, host_pages, style: style() }
}

fn tree(pages: usize) -> Radix {
    let mut radix = Radix::new(config(pages, 0));
    assert_eq!(radix.take_events(Moment::Idle), [OwnedEvent::Cleared]);
    radix
}

fn run(radix: &mut Radix, prompt: &[u32]) -> usize {
    let request = radix.begin(prompt, Keys::default()).unwrap();
    radix.finish(&request);
    request.cached_tokens() / PAGE
}

fn events(radix: &mut Radix) -> Vec<OwnedEvent> {
    radix.take_events(Moment::Idle)
}

fn text(first: u32, length: u32) -> Vec<u32> {
    (first..first + length).collect()
}

fn bits(hash: &OwnedHash) -> u64 {
    match hash {
        OwnedHash::Unsigned(bits) => *bits,
        OwnedHash::Signed(bits) => bits.cast_unsigned(),
        other => panic!("{other:?}"),
    }
}

/// A consumer of the events: what they say is where, by medium.
#[derive(Debug, Default)]
struct Heard(BTreeMap<String, BTreeMap<u64, usize>>);

impl Heard {
    fn hear(&mut self, events: &[OwnedEvent]) {
        for event in events {
            match event {
                OwnedEvent::Stored(stored) => {
                    let width = if stored.bigrams { 2 } else { 1 };
                    let positions = stored.block_hashes.len() * stored.block_size as usize;
                    assert_eq!(stored.token_ids.len(), width * positions);
                    let there = self.on(stored.medium.as_deref());
                    let parent = stored.parent.as_ref().map(bits);
                    assert!(parent.is_none_or(|parent| there.contains_key(&parent)), "parents come first");
                    stored.block_hashes.iter().for_each(|hash| *there.entry(bits(hash)).or_default() += 1);
                }
                OwnedEvent::Removed(removed) => {
                    let there = self.on(removed.medium.as_deref());
                    for hash in removed.block_hashes.iter().map(bits) {
                        let copies = there.get_mut(&hash).expect("only what was stored is removed");
                        *copies -= 1;
                        if *copies == 0 {
                            there.remove(&hash);
                        }
                    }
                }
                OwnedEvent::Cleared => self.0.clear(),
            }
        }
    }

    fn on(&mut self, medium: Option<&str>) -> &mut BTreeMap<u64, usize> {
        self.0.entry(medium.unwrap_or_default().to_owned()).or_default()
    }

    fn check(&mut self, radix: &Radix) {
        assert_eq!(*self.on(Some("GPU")), radix.resident());
        assert_eq!(*self.on(Some("CPU_PINNED")), radix.resident_on_host());
    }
}

#[test]
fn pages_that_follow_one_another_share_an_event() {
    let mut radix = tree(64);
    assert_eq!(run(&mut radix, &text(0, 14)), 0);
    let [OwnedEvent::Stored(first)] = &events(&mut radix)[..] else { panic!("one store") };
    assert_eq!((first.block_hashes.len(), first.token_ids.len(), first.block_size), (3, 12, 4));
    assert_eq!((first.parent.clone(), first.medium.as_deref()), (None, Some("GPU")));

    // Shares two pages: the node is split, which is not published.
    let other = [text(0, 8), text(50, 4)].concat();
    assert_eq!(run(&mut radix, &other), 2);
    let [OwnedEvent::Stored(second)] = &events(&mut radix)[..] else { panic!("one store") };
    assert_eq!(second.parent.as_ref(), first.block_hashes.get(1));
    assert_eq!(second.block_hashes.len(), 1);
    assert_eq!(run(&mut radix, &text(0, 13)), 3);
    assert!(events(&mut radix).is_empty(), "nothing new, no second copy");
}

#[test]
fn older_releases_tell_of_each_page_by_itself() {
    let hash = PageHash::Chain { salted: false, namespaced: false };
    let style = EventStyle { hash, coalesced: false, ..style() };
    let mut radix = Radix::new(RadixConfig { style, ..config(3, 0) });
    run(&mut radix, &text(0, 12));
    run(&mut radix, &text(100, 12));
    let pending = events(&mut radix);
    let stores =
        pending.iter().filter(|event| matches!(event, OwnedEvent::Stored(s) if s.block_hashes.len() == 1));
    let removals =
        pending.iter().filter(|event| matches!(event, OwnedEvent::Removed(r) if r.block_hashes.len() == 1));
    assert_eq!((pending.len(), stores.count(), removals.count()), (10, 6, 3), "and the clear");
}

#[test]
fn old_releases_hash_a_page_by_its_tokens_alone() {
    let style = EventStyle { hash: PageHash::TokensOnly, coalesced: false, ..style() };
    let mut radix = Radix::new(RadixConfig { style, ..config(16, 0) });
    run(&mut radix, &[7; 8]);
    assert_eq!(radix.resident().values().copied().collect::<Vec<_>>(), [2], "two pages, one hash");
    run(&mut radix, &[[7; 8], [9; 8]].concat());
    let pending = events(&mut radix);
    let parents: Vec<_> = pending
        .iter()
        .filter_map(|event| match event {
            OwnedEvent::Stored(stored) => Some(stored.parent.is_some()),
            _ => None,
        })
        .collect();
    assert_eq!(parents, [false, true, false, true], "a node forgets what it follows");
}

#[test]
fn the_leaf_that_was_not_used_for_longest_goes_whole() {
    let mut radix = tree(6);
    run(&mut radix, &text(0, 12));
    run(&mut radix, &text(100, 12));
    run(&mut radix, &text(0, 13)[..12]);
    events(&mut radix);
    assert_eq!(radix.would_hit(&text(100, 13), &Keys::default()), 12);
    run(&mut radix, &text(200, 4));
    let pending = events(&mut radix);
    let OwnedEvent::Removed(removed) = &pending[0] else { panic!("{pending:?}") };
    assert_eq!(removed.block_hashes.len(), 3);
    assert_eq!(radix.would_hit(&text(100, 13), &Keys::default()), 0);
    assert_eq!(radix.would_hit(&text(0, 13), &Keys::default()), 12);
}

#[test]
fn generated_pages_are_stored_when_the_request_ends() {
    let mut radix = tree(16);
    let mut request = radix.begin(&text(0, 6), Keys::default()).unwrap();
    assert_eq!(radix.take_events(Moment::Prefill).len(), 1);
    for token in 6..14 {
        radix.append(&mut request, token).unwrap();
        assert!(radix.take_events(Moment::Decode).is_empty());
    }
    radix.finish(&request);
    let [OwnedEvent::Stored(stored)] = &events(&mut radix)[..] else { panic!("one store") };
    assert_eq!((stored.block_hashes.len(), stored.parent.is_some()), (2, true));
    assert_eq!(radix.would_hit(&text(0, 14), &Keys::default()), 12);
}

#[test]
fn what_runs_is_neither_evicted_nor_reset() {
    let mut radix = tree(4);
    let request = radix.begin(&text(0, 12), Keys::default()).unwrap();
    assert_eq!(radix.begin(&text(100, 8), Keys::default()).unwrap_err(), PoolError::Full);
    assert_eq!(radix.reset(), Err(PoolError::Held));
    radix.finish(&request);
    events(&mut radix);
    assert_eq!(radix.reset(), Ok(()));
    assert_eq!(events(&mut radix), [OwnedEvent::Cleared]);
    assert!(radix.resident().is_empty());
}

#[test]
fn without_clears_a_reset_removes_everything() {
    let style = EventStyle { clears: false, hash: PageHash::UnsignedChain, ..style() };
    let mut radix = Radix::new(RadixConfig { style, ..config(16, 0) });
    assert!(events(&mut radix).is_empty());
    run(&mut radix, &text(0, 12));
    run(&mut radix, &[text(0, 8), text(50, 4)].concat());
    let mut heard = Heard::default();
    heard.hear(&events(&mut radix));
    radix.reset().unwrap();
    let pending = events(&mut radix);
    assert!(!pending.contains(&OwnedEvent::Cleared));
    heard.hear(&pending);
    heard.check(&radix);
}

#[test]
fn pairs_of_tokens_overlap_by_one() {
    let style = EventStyle { pairs: true, ..style() };
    let mut radix = Radix::new(RadixConfig { style, ..config(16, 0) });
    run(&mut radix, &text(0, 9));
    let pending = events(&mut radix);
    let Some(OwnedEvent::Stored(stored)) = pending.last() else { panic!("{pending:?}") };
    assert_eq!((stored.block_hashes.len(), stored.block_size, stored.bigrams), (2, 4, true));
    assert_eq!(stored.token_ids[6..10], [3, 4, 4, 5]);
    assert_eq!(radix.would_hit(&text(0, 9), &Keys::default()), 4, "the last token is computed, and its pair");
    assert_eq!(radix.would_hit(&text(0, 10), &Keys::default()), 8);
}

#[test]
fn adapters_and_salts_have_trees_of_their_own() {
    let keys = |lora: Option<&str>, salt: Option<&str>| Keys {
        lora: lora.map(str::to_owned),
        salt: salt.map(str::to_owned),
        ..Keys::default()
    };
    let worlds = [keys(None, None), keys(Some("a"), None), keys(None, Some("s")), keys(Some("a"), Some("s"))];
    for (namespaced, hashes) in [(false, 2), (true, 4)] {
        let hash = PageHash::Chain { salted: true, namespaced };
        let style = EventStyle { hash, ..style() };
        let mut radix = Radix::new(RadixConfig { style, ..config(64, 0) });
        let mut names = BTreeSet::new();
        for keys in &worlds {
            assert_eq!(radix.would_hit(&text(0, 9), keys), 0);
            let request = radix.begin(&text(0, 9), keys.clone()).unwrap();
            radix.finish(&request);
            assert_eq!(radix.would_hit(&text(0, 9), keys), 8);
            for event in events(&mut radix) {
                if let OwnedEvent::Stored(stored) = event {
                    names.insert((stored.lora_name, stored.cache_salt));
                }
            }
        }
        // Without namespaces, the events of an adapter are those of the model.
        assert_eq!(radix.resident().len(), 2 * hashes);
        assert_eq!(names.len(), hashes);
    }
}

#[test]
fn the_host_tier_is_written_through_and_loaded_back() {
    let mut radix = Radix::new(config(4, 8));
    let mut heard = Heard::default();
    let mut hear = |radix: &mut Radix| {
        let pending = events(radix);
        heard.hear(&pending);
        heard.check(radix);
        pending
    };
    run(&mut radix, &text(0, 12));
    assert_eq!(hear(&mut radix).len(), 2, "the clear and the store");
    run(&mut radix, &text(100, 12));
    let pending = hear(&mut radix);
    let media: Vec<_> = pending
        .iter()
        .map(|event| match event {
            OwnedEvent::Stored(stored) => ("stored", stored.medium.clone().unwrap()),
            OwnedEvent::Removed(removed) => ("removed", removed.medium.clone().unwrap()),
            OwnedEvent::Cleared => ("cleared", String::new()),
        })
        .collect();
    let gpu = "GPU".to_owned();
    let host = "CPU_PINNED".to_owned();
    assert_eq!(media, [("stored", host.clone()), ("removed", gpu.clone()), ("stored", gpu.clone())]);

    // The first prompt is on the host alone; asked for again, it comes back.
    assert_eq!(radix.would_hit(&text(0, 13), &Keys::default()), 12);
    assert_eq!(run(&mut radix, &text(0, 13)), 3);
    let pending = hear(&mut radix);
    assert!(matches!(pending.last(), Some(OwnedEvent::Stored(stored)) if stored.medium == Some(gpu)));

    // Nine pages of three prompts are too many for the host.
    run(&mut radix, &text(200, 12));
    run(&mut radix, &text(300, 4));
    let pending = hear(&mut radix);
    assert!(
        pending.iter().any(|event| matches!(event, OwnedEvent::Removed(r) if r.medium == Some(host.clone())))
    );
    radix.reset().unwrap();
    hear(&mut radix);
}

proptest! {
    /// Few prompts and little room, up to two requests at a time, with and without a host tier: what the events say
    /// is what the tree holds, and a prompt hits what the tree was said to hold before.
    #[test]
    fn the_events_say_what_the_tree_holds(
        host_pages in prop_oneof![Just(0usize), 4usize..20],
        pairs in any::<bool>(),
        coalesced in any::<bool>(),
        steps in proptest::collection::vec((0u32..3, 0u32..3, 1usize..24, 0usize..8, any::<bool>()), 1..60),
    ) {
        let style = EventStyle { pairs, coalesced, ..style() };
        let mut radix = Radix::new(RadixConfig { style, ..config(10, host_pages) });
        let mut heard = Heard::default();
        let mut running: VecDeque<Request> = VecDeque::new();
        for (first, second, length, more, keep) in steps {
            let prompt: Vec<u32> =
                (0..length as u32).map(|i| if i < 6 { first } else { second * 10 + i }).collect();
            let predicted = radix.would_hit(&prompt, &Keys::default());
            if let Ok(mut request) = radix.begin(&prompt, Keys::default()) {
                prop_assert!(request.cached_tokens() <= predicted);
                // Only a page that does not fit onto the device is not loaded back.
                prop_assert!(host_pages > 0 || request.cached_tokens() == predicted);
                for token in 0..more as u32 {
                    if radix.append(&mut request, 1000 + token).is_err() {
                        break;
                    }
                }
                running.push_back(request);
            }
            heard.hear(&events(&mut radix));
            heard.check(&radix);
            while running.len() > usize::from(keep) {
                let Some(request) = running.pop_front() else { break };
                radix.finish(&request);
                prop_assert_eq!(radix.private, running.iter().map(|request| request.private).sum::<usize>());
            }
            heard.hear(&events(&mut radix));
            heard.check(&radix);
            prop_assert_eq!(radix.cached, radix.resident().values().sum::<usize>());
            prop_assert_eq!(radix.on_host, radix.resident_on_host().values().sum::<usize>());
            prop_assert!(radix.cached + radix.private <= 10 && radix.on_host <= host_pages);
        }
    }
}
