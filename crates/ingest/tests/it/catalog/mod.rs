//! Any history of several streams: what the catalog answers is what the journals' own snapshots hold.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

mod groups;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kvplane_catalog::{Catalog, Prompt};
use kvplane_core::{ContentHasher, Continuity, Namespace, Reason, Resumption, Tier, Trust, chain_hash};
use kvplane_index::{LEVELS, Options as IndexOptions, Refused};
use kvplane_stream::{Parent, Snapshot};
use proptest::collection::vec;
use proptest::prelude::*;

use groups::Announced;
use source::{CREDIT, DEPTH, PROMPTS, Source, Step, step, tokens};

/// By level, the prefixes whose last block lies in that tier or a warmer one.
fn held(snapshot: &Snapshot) -> [BTreeSet<u64>; LEVELS] {
    let mut chains: BTreeMap<u64, u64> = BTreeMap::new();
    let mut held: [BTreeSet<u64>; LEVELS] = Default::default();
    for at in snapshot.parents_first() {
        let block = &snapshot.image.blocks[at as usize];
        let Some(chain) = block.attached_chain() else { continue };
        let previous = match chain.parent() {
            Parent::Root => None,
            Parent::Block(parent) => Some(chains[&parent]),
        };
        let prefix = chain_hash(previous, chain.content);
        chains.insert(block.hash, prefix);
        for holding in &block.holdings {
            let place = &snapshot.image.places[usize::from(holding.place)];
            for level in Tier::ALL.iter().take(LEVELS).filter(|&&level| place.tier <= level) {
                held[level.index()].insert(prefix);
            }
        }
    }
    held
}

/// Tokens that a stream gives back, by level.
fn expected(
    held: &[BTreeSet<u64>; LEVELS],
    prompt: &[u32],
    block_size: u32,
    needs: &Resumption,
) -> [u64; LEVELS] {
    let mut hasher = ContentHasher::default();
    let mut previous = None;
    let prefixes: Vec<u64> = prompt
        .chunks_exact(block_size as usize)
        .map(|tokens| {
            let prefix = chain_hash(previous, hasher.plain(tokens, Namespace::PLAIN));
            previous = Some(prefix);
            prefix
        })
        .collect();
    let depth =
        |held: &BTreeSet<u64>| prefixes.iter().take_while(|prefix| held.contains(prefix)).count() as u32;
    let counted = needs.whole_units(held.each_ref().map(depth));
    counted.map(|blocks| u64::from(blocks) * u64::from(block_size))
}

fn check(catalog: &Arc<Catalog>, sources: &[Source], runtime: &tokio::runtime::Runtime) {
    let Some(roster) = catalog.model("m") else { panic!("the model is gone") };
    let states: Vec<_> = sources.iter().map(|source| runtime.block_on(source.stream.snapshot())).collect();
    let states: Vec<_> = states.iter().map(|snapshot| held(snapshot)).collect();
    let needs: Vec<_> = sources.iter().map(|source| Announced::by(source).needs).collect();
    for prompt in 0..PROMPTS {
        for size in [4, 8] {
            let ids: Vec<u32> = (0..DEPTH).flat_map(|at| tokens(prompt, at, size)).collect();
            let asked = Prompt::Tokens { ids: &ids, namespace: Namespace::PLAIN };
            roster.ask(&asked, &CREDIT, |answer| {
                assert_eq!(answer.matches().len() + answer.not_credited().len(), sources.len());
                for found in answer.matches() {
                    let at = found.member.identity.worker_id as usize;
                    let status = sources[at].stream.status();
                    let reported = (found.view.epoch, found.view.continuity, found.view.trust);
                    assert_eq!(reported, (status.epoch, Continuity::Live, status.trust.level()));
                    let tokens =
                        [Tier::Device, Tier::Host, Tier::Disk, Tier::Remote].map(|t| found.tokens_in(t));
                    assert_eq!(
                        tokens,
                        expected(&states[at], &ids, sources[at].block_size, &needs[at]),
                        "e{at}"
                    );
                }
                for passed in answer.not_credited() {
                    let status = sources[passed.member.identity.worker_id as usize].stream.status();
                    assert!(status.continuity != Continuity::Live || !CREDIT.contains(&status.trust.level()));
                }
            });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96 * ProptestConfig::default().cases / 256, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_what_the_journals_hold(steps in vec((0_usize..3, step(1), proptest::bool::weighted(0.1)), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let catalog = Catalog::new(IndexOptions::default());
        let mut sources: Vec<Source> =
            [4, 4, 8].into_iter().zip(0..).map(|(size, number)| Source::start(&catalog, number, size)).collect();
        for (at, step, rejoins) in &steps {
            sources[*at].run(step);
            if *rejoins {
                sources[*at].rejoin(&catalog);
            }
            check(&catalog, &sources, &runtime);
        }
        let last = sources.pop().unwrap();
        drop(last);
        check(&catalog, &sources, &runtime);
        drop(sources);
        assert!(catalog.models().is_empty(), "nothing is left of streams that went");
        assert!(catalog.stats().is_empty());
    }
}

#[test]
fn what_an_index_does_not_take_makes_its_stream_lower_until_the_next_clear() {
    let catalog = Catalog::new(IndexOptions { max_waiting: 2, ..IndexOptions::default() });
    let mut source = Source::start(&catalog, 0, 4);
    let worth = |source: &Source| {
        let view = catalog.model("m").unwrap().members()[0].view();
        (view.trust, view.reason, source.stream.status().trust.level())
    };
    source.run(&Step::Store { group: 0, prompt: 1, from: 0, to: DEPTH, medium: 0 });
    assert_eq!(worth(&source), (Trust::Exact, None, Trust::Exact));
    // In the index, nobody holds what these blocks build on: they wait, and only two may.
    let gone = (0..DEPTH).rev().map(|at| source.removed(0, 1, at, 0));
    let events: Vec<_> = gone.chain([source.stored(0, 1, 2..6, 1)]).collect();
    source.publish(&events);
    assert_eq!(worth(&source), (Trust::Lower, Some(Reason::WaitingOverflow), Trust::Exact));
    assert_eq!(source.stream.status().index_lacking, Some(Reason::WaitingOverflow));
    assert_eq!(catalog.refused()[0].1, [(Refused::Budget, 0), (Refused::Waiting, 1)]);
    source.run(&Step::Restart);
    source.run(&Step::Store { group: 0, prompt: 0, from: 0, to: 2, medium: 0 });
    assert_eq!(worth(&source), (Trust::Exact, None, Trust::Exact));
    assert_eq!(source.stream.status().index_lacking, None);
}

#[test]
fn a_stream_that_leaves_is_in_no_answer() {
    let catalog = Catalog::new(IndexOptions::default());
    let mut sources: Vec<Source> = (0..2).map(|number| Source::start(&catalog, number, 4)).collect();
    for source in &mut sources {
        source.run(&Step::Store { group: 0, prompt: 0, from: 0, to: 3, medium: 0 });
    }
    let roster = catalog.model("m").unwrap();
    let ids: Vec<u32> = (0..DEPTH).flat_map(|at| tokens(0, at, 4)).collect();
    let ask = || {
        let asked = Prompt::Tokens { ids: &ids, namespace: Namespace::PLAIN };
        roster.ask(&asked, &CREDIT, |answer| {
            answer
                .matches()
                .map(|found| (found.member.identity.worker_id, found.tokens()))
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(ask(), [(0, 12), (1, 12)]);
    sources[0].stream.leave_index();
    assert_eq!(ask(), [(1, 12)]);
    // Somebody may still feed it: to no effect.
    sources[0].run(&Step::Store { group: 0, prompt: 0, from: 0, to: 3, medium: 0 });
    assert_eq!(ask(), [(1, 12)]);
    let again = Source::start(&catalog, 7, 4);
    assert_eq!(ask(), [(1, 12), (7, 0)], "its seat is free for another, who holds nothing");
    drop(again);
}

/// Lives follow each other as fast as they can, and each holds another prompt than the one before.
#[test]
fn no_answer_mixes_two_lives() {
    const LIVES: usize = 300;
    const ANSWERS: usize = 100;
    let catalog = Catalog::new(IndexOptions::default());
    let mut source = Source::start(&catalog, 0, 4);
    let roster = catalog.model("m").unwrap();
    let prompts = [0, 2].map(|prompt| (0..DEPTH).flat_map(|at| tokens(prompt, at, 4)).collect::<Vec<u32>>());
    let (over, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (truth, reported) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut reported = BTreeSet::new();
                    while !over.load(Ordering::Relaxed) {
                        for (at, ids) in prompts.iter().enumerate() {
                            let asked = Prompt::Tokens { ids, namespace: Namespace::PLAIN };
                            roster.ask(&asked, &CREDIT, |answer| {
                                let holding = answer.matches().filter(|found| found.tokens() > 0);
                                reported.extend(holding.map(|found| (found.view.epoch, at)));
                                answers.fetch_add(answer.best().len(), Ordering::Relaxed);
                            });
                        }
                    }
                    reported
                })
            })
            .collect();
        let mut truth = BTreeSet::new();
        while truth.len() < LIVES || answers.load(Ordering::Relaxed) < ANSWERS {
            source.run(&Step::Restart);
            let at = truth.len() % 2;
            source.run(&Step::Store { group: 0, prompt: at as u8 * 2, from: 0, to: DEPTH, medium: 0 });
            truth.insert((source.stream.status().epoch, at));
        }
        over.store(true, Ordering::Relaxed);
        let reported: BTreeSet<_> = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        (truth, reported)
    });
    assert!(reported.is_subset(&truth), "{:?}", reported.difference(&truth).next());
}
