//! Any history of streams that come and go, change their views and what they hold: every answer beside a
//! naive one that looks at every stream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvplane_catalog::{Catalog, Counts, Freshness, Identity, Listing, Prompt, StreamFeed, View};
use kvplane_core::{Continuity, EngineId, Epoch, Reason, StreamId, Tier, Trust};
use kvplane_index::Options;
use kvplane_stream::{Attributes, Transition, VisibleBlock};
use proptest::prelude::*;

const CREDIT: [Trust; 2] = [Trust::Exact, Trust::Lower];
const BLOCKS: u64 = 6;
const ENGINES: usize = 12;

#[derive(Debug, Clone)]
enum Step {
    /// It comes; it is live, with a proof or without one.
    Join {
        engine: usize,
        proven: bool,
    },
    Leave {
        engine: usize,
    },
    View {
        engine: usize,
        continuity: Continuity,
        trust: Trust,
    },
    /// A whole state, of blocks of a size.
    Load {
        engine: usize,
        blocks: u64,
        size: u32,
    },
    Ask {
        limit: Option<usize>,
        min_tokens: u64,
        empty: bool,
        size: Option<u32>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let size = || prop_oneof![Just(4_u32), Just(4), Just(8)];
    let ask = (prop::option::of(0..6_usize), 0..20_u64, any::<bool>(), prop::option::of(size()));
    prop_oneof![
        2 => (0..ENGINES, prop::bool::weighted(0.9)).prop_map(|(engine, proven)| Step::Join { engine, proven }),
        1 => (0..ENGINES).prop_map(|engine| Step::Leave { engine }),
        2 => (0..ENGINES, prop::sample::select(&Continuity::ALL[..]), prop::sample::select(&Trust::ALL[..]))
            .prop_map(|(engine, continuity, trust)| Step::View { engine, continuity, trust }),
        3 => (0..ENGINES, 0..=BLOCKS, size()).prop_map(|(engine, blocks, size)| Step::Load { engine, blocks, size }),
        4 => ask.prop_map(|(limit, min_tokens, empty, size)| Step::Ask { limit, min_tokens, empty, size }),
    ]
}

struct Stream {
    feed: StreamFeed,
    view: View,
    proven: bool,
    blocks: u64,
    size: Option<u32>,
}

impl Stream {
    fn is_credited(&self) -> bool {
        self.proven && self.view.is_credited(&CREDIT)
    }

    fn standing(&self) -> &'static str {
        match (self.view.continuity, self.proven, self.view.reason) {
            (Continuity::Live, false, _) => Continuity::Recovering.as_str(),
            (Continuity::Live, true, Some(reason)) => reason.as_str(),
            (Continuity::Live, true, None) => self.view.trust.as_str(),
            (elsewhere, ..) => elsewhere.as_str(),
        }
    }
}

fn name(engine: usize) -> String {
    format!("e{engine:02}")
}

fn join(catalog: &Arc<Catalog>, engine: usize, proven: bool) -> Stream {
    let view =
        View { epoch: Epoch::from_raw(7), continuity: Continuity::Live, trust: Trust::Exact, reason: None };
    let identity = Identity { model: "m".to_owned(), worker_id: 1, routing_group: String::new() };
    let freshness = Arc::new(Freshness::new(kvplane_runtime::now(), Some(Duration::from_hours(1))));
    freshness.set(proven.then_some(Duration::ZERO));
    let id = StreamId::new(EngineId::new(&name(engine)), 0);
    let feed = catalog.join(id, identity, None, view, freshness);
    Stream { feed, view, proven, blocks: 0, size: None }
}

fn stored(blocks: u64, size: u32) -> Transition {
    let block = |hash| VisibleBlock {
        hash,
        content: hash,
        tokens: kvplane_stream::Tokens::from(vec![0; size as usize]),
        block_size: size,
        attributes: Arc::new(Attributes::default()),
        extra_keys: None,
    };
    Transition::Stored { tier: Tier::Device, parent: None, blocks: (1..=blocks).map(block).collect() }
}

/// An answer in plain words.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    matches: Vec<(String, u64)>,
    best: Vec<String>,
    not_credited: Vec<(String, &'static str)>,
    counts: Counts,
    refusals: BTreeMap<&'static str, usize>,
    trust: Trust,
}

fn naive(streams: &BTreeMap<usize, Stream>, listing: Listing, size: Option<u32>) -> Summary {
    let could = |stream: &&Stream| size.zip(stream.size).is_none_or(|(asked, size)| asked == size);
    let (mut matches, mut not_credited, mut trust) = (Vec::new(), Vec::new(), Trust::Exact);
    let mut refusals: BTreeMap<&'static str, usize> = BTreeMap::new();
    for (engine, stream) in streams.iter().filter(|(_, stream)| could(stream)) {
        trust = trust.max(stream.view.trust);
        if stream.is_credited() {
            matches.push((name(*engine), stream.blocks * u64::from(stream.size.unwrap_or(0))));
        } else {
            trust = trust.max(Trust::Lower);
            not_credited.push((name(*engine), stream.standing()));
            *refusals.entry(stream.standing()).or_default() += 1;
        }
    }
    matches.sort_by_key(|(_, tokens)| std::cmp::Reverse(*tokens));
    let most = matches.first().map_or(0, |(_, tokens)| *tokens);
    let holders = matches.iter().filter(|(_, tokens)| *tokens > 0).count();
    let best = if most > 0 { matches.iter().filter(|(_, tokens)| *tokens == most).count() } else { 0 };
    let counts = Counts { holders, best, empty: matches.len() - holders, not_credited: not_credited.len() };
    matches.retain(|(_, tokens)| if *tokens == 0 { listing.empty } else { *tokens >= listing.min_tokens });
    if let Some(limit) = listing.limit {
        let listed = matches.iter().filter(|(_, tokens)| *tokens > 0).count().min(limit);
        let empty = matches.split_off(matches.iter().take_while(|(_, tokens)| *tokens > 0).count());
        matches.truncate(listed);
        matches.extend(empty);
        not_credited.truncate(limit);
    }
    let best = matches.iter().filter(|(_, tokens)| most > 0 && *tokens == most);
    let best = best.map(|(engine, _)| engine.clone()).collect();
    Summary { matches, best, not_credited, counts, refusals, trust }
}

fn ask(catalog: &Catalog, listing: Listing, size: Option<u32>) -> Option<Summary> {
    let hashes: Vec<u64> = (1..=BLOCKS + 2).collect();
    let prompt = Prompt::Hashes { hashes: &hashes, chained: false, block_size: size };
    Some(catalog.model("m")?.ask_for(&prompt, &CREDIT, listing, |answer| {
        let engine = |found: &kvplane_catalog::Match<'_>| found.member.id.engine.to_string();
        assert_eq!(answer.matches().len(), answer.matches().count());
        assert_eq!(answer.not_credited().len(), answer.not_credited().count());
        Summary {
            matches: answer.matches().map(|found| (engine(&found), found.tokens())).collect(),
            best: answer.best().map(|found| engine(&found)).collect(),
            not_credited: answer.not_credited().map(|found| (engine(&found), found.refusal())).collect(),
            counts: answer.counts,
            refusals: answer.refusals(),
            trust: answer.trust,
        }
    }))
}

fn run(steps: Vec<Step>) {
    let catalog = Catalog::new(Options::default());
    let needs = Arc::default();
    let mut streams: BTreeMap<usize, Stream> = BTreeMap::new();
    for step in steps {
        match step {
            Step::Join { engine, proven } => {
                streams.entry(engine).or_insert_with(|| join(&catalog, engine, proven));
            }
            Step::Leave { engine } => drop(streams.remove(&engine)),
            Step::View { engine, continuity, trust } => {
                let Some(stream) = streams.get_mut(&engine) else { continue };
                let reason = (trust == Trust::Lower).then_some(Reason::GapKept);
                stream.view = View { continuity, trust, reason, ..stream.view };
                stream.feed.follow(&[], stream.view, &needs);
            }
            Step::Load { engine, blocks, size } => {
                let Some(stream) = streams.get_mut(&engine) else { continue };
                stream.feed.begin_load(stream.view, &needs);
                stream.feed.load(&[stored(blocks, size)]);
                stream.feed.end_load();
                stream.blocks = blocks;
                if blocks > 0 {
                    stream.size = Some(size);
                }
            }
            Step::Ask { limit, min_tokens, empty, size } => {
                let listing = Listing { limit, min_tokens, empty };
                let expected = (!streams.is_empty()).then(|| naive(&streams, listing, size));
                assert_eq!(ask(&catalog, listing, size), expected, "{listing:?} {size:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_the_one_of_somebody_who_looks_at_every_stream(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        run(steps);
    }
}
