//! Streams whose caches have several groups: what is answered is what their journals say of them, at one
//! moment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kvplane_catalog::{Catalog, Listing, Prompt};
use kvplane_core::{Marks, Namespace, Resumption, Tier};
use kvplane_index::{LEVELS, Options};
use kvplane_wire::{OwnedEvent, OwnedHash};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::catalog::source::{CREDIT, DEPTH, GROUPS, PROMPTS, Source, Step, step, tokens};

const BLOCK_SIZE: u32 = 4;

/// What a stream's ledger says of its groups.
pub(crate) struct Announced {
    pub(crate) needs: Arc<Resumption>,
    marks: BTreeMap<u64, Marks>,
}

impl Announced {
    pub(crate) fn by(source: &Source) -> Self {
        let mut reported = Self { needs: Arc::default(), marks: BTreeMap::new() };
        source.stream.feed(|recorder, _| {
            reported.needs = recorder.ledger().resumption().clone();
            reported.marks = recorder.ledger().all_marks().into_iter().collect();
        });
        reported
    }
}

fn ids(prompt: u8) -> Vec<u32> {
    (0..DEPTH).flat_map(|at| tokens(prompt, at, BLOCK_SIZE)).collect()
}

/// Answers follow from what the main group holds and what the journals say of the others.
fn check(catalog: &Catalog, sources: &[Source]) {
    let reported: Vec<Announced> = sources.iter().map(Announced::by).collect();
    let roster = catalog.model("m").unwrap();
    for prompt in 0..PROMPTS {
        let ids = ids(prompt);
        let asked = Prompt::Tokens { ids: &ids, namespace: Namespace::PLAIN };
        roster.ask_by_group(&asked, &CREDIT, Listing::ALL, |answer| {
            for found in answer.matches() {
                let at = found.member.identity.worker_id as usize;
                let Announced { needs, marks } = &reported[at];
                let has = |level: usize| {
                    let source = &sources[at];
                    move |at: u32, channel: usize| {
                        let OwnedHash::Unsigned(hash) = source.hash(prompt, at as u8) else { return false };
                        marks.get(&hash).is_some_and(|marks| marks.has(level, channel))
                    }
                };
                // An engine computes the last token in any case.
                let usable = if needs.depends_on_the_end() { u32::from(DEPTH) - 1 } else { u32::from(DEPTH) };
                let counted = needs.whole_units(found.main.map(|depth| depth.min(usable)));
                let expected: [u32; LEVELS] =
                    std::array::from_fn(|level| needs.resumable(counted[level], has(level)));
                assert_eq!(found.depths, expected, "e{at}: {needs:?}");
                let sides: Vec<_> = found.sides().iter().map(|side| (side.group, side.kind)).collect();
                let groups: Vec<_> = needs.sides.iter().map(|side| (side.group, side.kind)).collect();
                assert_eq!(sides, groups);
                for (number, side) in found.sides().iter().enumerate() {
                    for (level, &alone) in side.depths.iter().enumerate() {
                        assert!((found.depths[level]..=counted[level]).contains(&alone));
                        assert!(needs.goes_on(number, alone, has(level)));
                    }
                }
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96 * ProptestConfig::default().cases / 256, ..ProptestConfig::default() })]

    #[test]
    fn answers_follow_from_what_the_journals_say_of_groups(steps in vec((0_usize..2, step(3), proptest::bool::weighted(0.1)), 1..60)) {
        let catalog = Catalog::new(Options::default());
        let mut sources: Vec<Source> = (0..2).map(|number| Source::start(&catalog, number, BLOCK_SIZE)).collect();
        for (at, step, rejoins) in &steps {
            sources[*at].run(step);
            if *rejoins {
                sources[*at].rejoin(&catalog);
            }
            check(&catalog, &sources);
        }
    }
}

/// Blocks of the sliding group go and others come, in one batch: answers know the blocks before or those
/// after it, and the stream is in every one of them.
#[test]
fn a_busy_stream_is_answered_as_it_was_between_two_batches() {
    const ENOUGH: usize = 50_000;
    let catalog = Catalog::new(Options::default());
    let mut source = Source::start(&catalog, 0, BLOCK_SIZE);
    let all = |group, from, to| Step::Store { group, prompt: 0, from, to, medium: 0 };
    source.run(&all(0, 0, DEPTH));
    // A window of two blocks before the second boundary, or before the fifth.
    let windows = [(0, 2), (3, 5)];
    source.run(&all(1, 0, 2));
    let roster = catalog.model("m").unwrap();
    let ids = ids(0);
    let seen = [const { AtomicUsize::new(0) }; 2];
    let failed = AtomicBool::new(false);
    let enough = || seen.iter().all(|seen| seen.load(Ordering::Relaxed) >= ENOUGH);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !enough() && !failed.load(Ordering::Relaxed) {
                    let asked = Prompt::Tokens { ids: &ids, namespace: Namespace::PLAIN };
                    let blocks = roster.ask(&asked, &CREDIT, |answer| {
                        answer.matches().next().map(|found| found.depths[Tier::Device.index()])
                    });
                    let window = windows.iter().position(|(_, end)| blocks == Some(u32::from(*end)));
                    failed.fetch_or(window.is_none(), Ordering::Relaxed);
                    let window = window.unwrap_or_else(|| panic!("{blocks:?}"));
                    seen[window].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut now = 0;
        while !enough() && !failed.load(Ordering::Relaxed) {
            let (old, new) = (windows[now], windows[1 - now]);
            let gone = (old.0..old.1).map(|at| source.removed(1, 0, at, 0));
            let events: Vec<OwnedEvent> = gone.chain([source.stored(1, 0, new.0..new.1, 0)]).collect();
            source.publish(&events);
            now = 1 - now;
        }
    });
    assert!(GROUPS[1].1 == Some(2), "the windows above are as long as the group's");
}
