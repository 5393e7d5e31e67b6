//! Made-up load: conversations of several turns that begin with one of a few system prompts.

use std::collections::VecDeque;

use super::blocks::{BlockId, Blocks};
use super::fleet::{Fleet, Turn};
use super::rng::Rng;

/// System prompts that all conversations share.
const SYSTEM_PROMPTS: usize = 32;

/// How much of what a turn adds is the answer. Most is: questions are short.
const ANSWER_SHARE: f64 = 0.6;

/// No answer is longer (4,096 tokens): turns that add more bring documents along.
const ANSWER_MAX: usize = 256;

/// One turn in twenty is routed elsewhere, as by a router that also looks at load. The conversation stays there.
const MOVE_CHANCE: f64 = 0.05;

/// A length that conversations reach.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Depth {
    /// Blocks that they have at least when they end; at most half as many more.
    pub(crate) blocks: usize,
    /// How many of all conversations.
    pub(crate) share: f64,
    /// Turns until they end.
    pub(crate) turns: usize,
}

#[derive(Debug, Default)]
struct Conversation {
    engine: Option<u32>,
    chain: Vec<BlockId>,
    /// Blocks that each turn adds.
    growth: usize,
    turns_left: usize,
    running: bool,
}

/// Conversations that go on at the same time.
#[derive(Debug)]
pub(crate) struct Conversations {
    depths: Vec<Depth>,
    system_prompts: Vec<Vec<BlockId>>,
    active: Vec<Conversation>,
    /// Conversations that ended lately, whose blocks may still be cached.
    ended: VecDeque<Vec<BlockId>>,
    ended_blocks: usize,
    ended_blocks_max: usize,
}

impl Conversations {
    /// Conversations over a fleet with so many blocks in all.
    pub(crate) fn new(depths: &[Depth], fleet_blocks: usize, blocks: &mut Blocks, rng: &mut Rng) -> Self {
        // 16 to 48 blocks: 256 to 768 tokens.
        let system_prompts = (0..SYSTEM_PROMPTS).map(|number| new_chain(blocks, 16 + number)).collect();
        // All that go on together just fit into the fleet at their full length. Some of them lose
        // blocks before their next turn, because blocks of conversations that are over go later.
        let mean: f64 = depths.iter().map(|depth| depth.share * depth.blocks as f64).sum();
        let count = (fleet_blocks as f64 / mean).ceil() as usize;
        let mut conversations = Self {
            depths: depths.to_vec(),
            system_prompts,
            active: Vec::new(),
            ended: VecDeque::new(),
            ended_blocks: 0,
            ended_blocks_max: fleet_blocks,
        };
        conversations.active = (0..count).map(|_| conversations.begin(rng)).collect();
        conversations
    }

    fn begin(&self, rng: &mut Rng) -> Conversation {
        let mut draw = rng.unit();
        let depth = self.depths.iter().find(|depth| {
            draw -= depth.share;
            draw < 0.0
        });
        let depth = depth.unwrap_or(&self.depths[0]);
        let chain = self.system_prompts[rng.below(SYSTEM_PROMPTS)].clone();
        let end = depth.blocks + rng.below(depth.blocks / 2);
        let growth = end.saturating_sub(chain.len()).div_ceil(depth.turns).max(2);
        Conversation { engine: None, chain, growth, turns_left: depth.turns, running: false }
    }

    /// The next turn of some conversation, where one can be placed.
    pub(crate) fn next(&mut self, fleet: &Fleet, blocks: &mut Blocks, rng: &mut Rng) -> Option<Turn> {
        let number = rng.below(self.active.len());
        let conversation = &mut self.active[number];
        if conversation.running {
            return None;
        }
        let length = conversation.chain.len() + conversation.growth;
        let stays = conversation.engine.filter(|engine| fleet.serves(*engine) && rng.unit() >= MOVE_CHANCE);
        let engine = match stays {
            Some(engine) => Some(engine).filter(|engine| fleet.has_room(*engine, length)),
            None => fleet.less_loaded_of_two(length, rng),
        }?;
        conversation.engine = Some(engine);
        conversation.running = true;
        conversation.turns_left -= 1;
        let answer = ((conversation.growth as f64 * ANSWER_SHARE) as usize).clamp(1, ANSWER_MAX);
        let mut chain = std::mem::take(&mut conversation.chain);
        chain.extend(new_chain(blocks, conversation.growth));
        let prompt = length - answer;
        Some(Turn { engine, chain, prompt, conversation: number })
    }

    /// A turn is over.
    pub(crate) fn end(&mut self, turn: Turn, rng: &mut Rng) {
        let conversation = &mut self.active[turn.conversation];
        conversation.chain = turn.chain;
        conversation.running = false;
        if conversation.turns_left > 0 {
            return;
        }
        let chain = std::mem::take(&mut conversation.chain);
        self.active[turn.conversation] = self.begin(rng);
        self.ended_blocks += chain.len();
        self.ended.push_back(chain);
        while self.ended_blocks > self.ended_blocks_max {
            let Some(oldest) = self.ended.pop_front() else { return };
            self.ended_blocks -= oldest.len();
        }
    }

    /// Prompts of requests that are over and may still be cached.
    pub(crate) fn chains(&self) -> impl Iterator<Item = &[BlockId]> {
        self.active
            .iter()
            .map(|conversation| &conversation.chain[..])
            .chain(self.ended.iter().map(|chain| &chain[..]))
    }
}

fn new_chain(blocks: &mut Blocks, length: usize) -> Vec<BlockId> {
    let first = blocks.make(length);
    (first..first + length as BlockId).collect()
}
