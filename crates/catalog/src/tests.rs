//! Streams with several groups in answers. Their histories are in `tests/catalog.rs`.

use std::sync::Arc;
use std::thread;

use kvplane_core::{
    Continuity, EngineId, Epoch, Marks, Namespace, Need, Resumption, Side, SpecKind, StreamId, Tier, Trust,
    hash_blocks,
};
use kvplane_index::{Depths, Options};
use kvplane_stream::{Attributes, Transition, VisibleBlock};

use crate::freshness::Freshness;
use crate::{Catalog, GroupLength, Identity, Listing, Note, Prompt, StreamFeed, View};

const BLOCK_SIZE: u32 = 4;

fn view() -> View {
    View { epoch: Epoch::from_raw(7), continuity: Continuity::Live, trust: Trust::Exact, reason: None }
}

/// Two groups beside the main one: one that slides over two blocks, and one with a state every other block.
fn three_groups() -> Resumption {
    let side = |group, kind, blocks, stride| Side {
        group: Some(group),
        kind,
        need: Need::Run { blocks, stride, tail: false },
    };
    let sides = vec![side(1, SpecKind::Sliding, 2, 1), side(2, SpecKind::State, 1, 2)];
    Resumption { sides, ..Resumption::default() }
}

/// Which sides hold a block, on the device.
fn marks(sides: &[usize]) -> Marks {
    let mut marks = Marks::default();
    for side in sides {
        marks.set(Tier::Device, Marks::whole(*side));
    }
    marks
}

/// Blocks with these contents. Their hashes are 1, 2, 3 and so on.
fn stored(contents: &[u64]) -> Transition {
    let block = |(hash, &content)| VisibleBlock {
        hash,
        content,
        tokens: kvplane_stream::Tokens::from([0; BLOCK_SIZE as usize]),
        block_size: BLOCK_SIZE,
        attributes: Arc::new(Attributes::default()),
        extra_keys: None,
    };
    Transition::Stored { tier: Tier::Device, parent: None, blocks: (1..).zip(contents).map(block).collect() }
}

struct Rig {
    catalog: Arc<Catalog>,
    feed: StreamFeed,
}

impl Rig {
    /// A stream that holds this many blocks, whose contents are their hashes.
    fn new(blocks: u64, needs: Resumption, marks: &[(u64, Marks)]) -> Self {
        let contents: Vec<u64> = (1..=blocks).collect();
        Self::of(&contents, needs, marks)
    }

    fn of(contents: &[u64], needs: Resumption, marks: &[(u64, Marks)]) -> Self {
        let catalog = Catalog::new(Options::default());
        let identity = Identity { model: "m".to_owned(), worker_id: 1, routing_group: String::new() };
        let id = StreamId::new(EngineId::new("e"), 0);
        let mut feed =
            catalog.join(id, identity, None, view(), Arc::new(Freshness::new(kvplane_runtime::now(), None)));
        feed.begin_load(view(), &Arc::new(needs));
        feed.load(&[stored(contents)]);
        feed.set_sides(marks);
        feed.end_load();
        Self { catalog, feed }
    }

    fn ask(&self) -> Vec<(Depths, Depths, Vec<GroupLength>)> {
        ask(&self.catalog)
    }
}

fn ask(catalog: &Catalog) -> Vec<(Depths, Depths, Vec<GroupLength>)> {
    let hashes: Vec<u64> = (1..=20).collect();
    let prompt = Prompt::Hashes { hashes: &hashes, chained: false, block_size: Some(BLOCK_SIZE) };
    let roster = catalog.model("m").unwrap();
    roster.ask_by_group(&prompt, &[Trust::Exact], Listing::ALL, |answer| {
        answer.matches().map(|found| (found.depths, found.main, found.sides().to_vec())).collect()
    })
}

#[test]
fn what_counts_is_what_every_group_can_go_on_from_and_each_is_reported_on_request() {
    // Everything slides, but block 9; there are states after blocks 2 and 8.
    let sliding = (1..=9).map(|block| (block, if block == 9 { Marks::default() } else { marks(&[0]) }));
    let states = [(2, marks(&[0, 1])), (8, marks(&[0, 1]))];
    let reported: Vec<(u64, Marks)> = sliding.chain(states).collect();
    let rig = Rig::new(9, three_groups(), &reported);
    let lengths = |depths| {
        vec![
            GroupLength { group: Some(1), kind: SpecKind::Sliding, depths },
            GroupLength { group: Some(2), kind: SpecKind::State, depths },
        ]
    };
    assert_eq!(rig.ask(), [([8; 4], [9; 4], lengths([8; 4]))]);

    let mut rig = rig;
    rig.feed.set_sides(&[(7, Marks::default())]);
    let each = vec![
        GroupLength { group: Some(1), kind: SpecKind::Sliding, depths: [6; 4] },
        GroupLength { group: Some(2), kind: SpecKind::State, depths: [8; 4] },
    ];
    assert_eq!(rig.ask(), [([2; 4], [9; 4], each)]);

    let empty = Rig::new(0, three_groups(), &[]);
    assert_eq!(
        empty.ask(),
        [([0; 4], [0; 4], lengths([0; 4]))],
        "it has its groups also when it holds nothing"
    );
}

#[test]
fn whole_units_and_the_last_block_count_without_other_groups() {
    let needs = Resumption { units: [4, 1, 1, 1], drops_last: true, ..Resumption::default() };
    let rig = Rig::new(10, needs, &[]);
    assert_eq!(rig.ask(), [([7, 9, 9, 9], [10; 4], Vec::new())]);
}

#[test]
fn the_last_token_is_computed_in_any_case_so_a_boundary_at_the_end_is_none() {
    let tokens: Vec<u32> = (0..4 * BLOCK_SIZE).collect();
    let mut contents = Vec::new();
    hash_blocks(&tokens, BLOCK_SIZE as usize, Namespace::PLAIN, &mut contents);
    let state =
        Side { group: None, kind: SpecKind::State, need: Need::Run { blocks: 1, stride: 1, tail: false } };
    let needs = Resumption { sides: vec![state], ..Resumption::default() };
    // States after the second block and after the fourth, where this prompt ends.
    let rig = Rig::of(&contents, needs, &[(2, marks(&[0])), (4, marks(&[0]))]);
    let resumed = |ids: &[u32]| {
        let prompt = Prompt::Tokens { ids, namespace: Namespace::PLAIN };
        let roster = rig.catalog.model("m").unwrap();
        roster.ask(&prompt, &[Trust::Exact], |answer| answer.matches().next().map(|found| found.blocks()))
    };
    assert_eq!(resumed(&tokens), Some(2));
    let longer: Vec<u32> = (0..=4 * BLOCK_SIZE).collect();
    assert_eq!(resumed(&longer), Some(4));
}

#[test]
fn what_is_predicted_depends_on_where_the_prompt_ends_and_on_what_lies_behind_the_device() {
    let tokens: Vec<u32> = (0..=4 * BLOCK_SIZE).collect();
    let whole = &tokens[..4 * BLOCK_SIZE as usize];
    let mut contents = Vec::new();
    hash_blocks(whole, BLOCK_SIZE as usize, Namespace::PLAIN, &mut contents);
    let mut on_host = Marks::default();
    on_host.set(Tier::Host, Marks::BEHIND);
    let connector = Resumption { whole_prompt: true, ..Resumption::default() };
    for (needs, kept, expected) in [
        (Resumption::default(), &[][..], [16, 12, 8, 0]),
        (connector.clone(), &[], [16, 12, 8, 0]),
        (connector.clone(), &[4], [16, 16, 8, 0]),
        (connector.clone(), &[1, 2, 3, 4], [16, 16, 12, 4]),
        (Resumption { drops_last: true, ..connector }, &[1, 2, 3, 4], [12, 8, 4, 0]),
    ] {
        let marks: Vec<(u64, Marks)> = kept.iter().map(|&hash| (hash, on_host)).collect();
        let rig = Rig::of(&contents, needs.clone(), &marks);
        let roster = rig.catalog.model("m").unwrap();
        let predicted = [&tokens, whole, &tokens[..12], &tokens[..4]].map(|ids| {
            let prompt = Prompt::Tokens { ids, namespace: Namespace::PLAIN };
            roster.ask(&prompt, &[Trust::Exact], |answer| answer.matches().next().unwrap().cached_tokens)
        });
        assert_eq!(predicted, expected.map(Some), "{needs:?} {kept:?}");
    }
}

#[test]
fn hashes_do_not_say_where_a_prompt_ends_and_short_prompts_are_noted() {
    let rig = Rig::new(4, Resumption::default(), &[]);
    let roster = rig.catalog.model("m").unwrap();
    let asked = |prompt: &Prompt<'_>| {
        roster.ask(prompt, &[Trust::Exact], |answer| {
            let found = answer.matches().next().unwrap();
            (found.cached_tokens, found.note())
        })
    };
    let hashes = Prompt::Hashes { hashes: &[1, 2], chained: false, block_size: Some(BLOCK_SIZE) };
    assert_eq!(asked(&hashes), (None, None));
    let tokens = |ids| Prompt::Tokens { ids, namespace: Namespace::PLAIN };
    assert_eq!(asked(&tokens(&[7; 4])), (Some(0), None));
    assert_eq!(asked(&tokens(&[7; 3])), (Some(0), Some(Note::PromptShorterThanBlock)));
}

#[test]
fn who_asks_during_a_batch_waits_for_its_end_and_credits_the_stream() {
    let all: Vec<(u64, Marks)> = (1..=8).map(|block| (block, marks(&[0, 1]))).collect();
    let mut rig = Rig::new(8, three_groups(), &all);
    let member = rig.feed.member.clone();
    let gate = member.gate.write();
    member.unsettle();
    rig.feed.set_sides(&[(7, Marks::default()), (8, Marks::default())]);
    thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&rig.catalog));
        member.settle(view());
        drop(gate);
        let answer = asking.join().unwrap();
        assert_eq!(answer.iter().map(|(depths, ..)| *depths).collect::<Vec<_>>(), [[6; 4]]);
    });
}

#[test]
fn a_stream_that_is_loaded_or_gone_is_not_credited_however_often_it_is_asked() {
    let mut rig = Rig::new(8, three_groups(), &[(8, marks(&[0, 1]))]);
    rig.feed.begin_load(view(), &Arc::new(three_groups()));
    assert!(rig.ask().is_empty());
    rig.feed.end_load();
    assert_eq!(rig.ask().len(), 1);
    rig.feed.member.unsettle();
    assert!(rig.ask().is_empty(), "its feed is gone, and nobody waits for it");
}
