//! Seeded conversations: shared system prompts, turns that grow, replies that come back as prompt; with
//! adapters, salts and images if they are asked for.

use crate::engine::CompletionOptions;
use crate::keys::Image;
use crate::pool::Report;

/// The token that stands for an image.
const PLACEHOLDER: u32 = 0;
/// One turn in this many has an image, where there are any.
const TURNS_PER_IMAGE: u64 = 3;

/// A small deterministic generator (splitmix64): the same seed gives the same workload everywhere.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `limit`; 0 when there is none.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next_bits() % limit }
    }
}

/// What conversations look like.
#[derive(Debug, Clone)]
pub struct LoadConfig {
    /// Determines everything.
    pub seed: u64,
    /// Different system prompts.
    pub system_prompts: usize,
    /// Tokens of each.
    pub system_tokens: usize,
    /// Conversations under way at a time.
    pub conversations: usize,
    /// Most tokens that a user's turn adds; at least one.
    pub turn_tokens: usize,
    /// Most tokens of a reply; at least one.
    pub output_tokens: usize,
    /// Turns after which a conversation is replaced by a new one.
    pub turns: usize,
    /// Token ids are below this.
    pub vocabulary: u32,
    /// Adapters; a conversation has one of them, or none.
    pub adapters: Vec<String>,
    /// Cache salts; a conversation has one of them, or none.
    pub salts: Vec<String>,
    /// Different images, of which turns have some.
    pub images: u64,
    /// One request in this many asks for a full report; 0 for none.
    pub report_every: u64,
}

impl Default for LoadConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            system_prompts: 4,
            system_tokens: 256,
            conversations: 16,
            turn_tokens: 64,
            output_tokens: 32,
            turns: 8,
            vocabulary: 32_000,
            adapters: Vec::new(),
            salts: Vec::new(),
            images: 0,
            report_every: 0,
        }
    }
}

/// One request of the workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Which conversation it belongs to; pass it to [`Workload::replied`].
    pub conversation: usize,
    /// The whole conversation so far.
    pub prompt: Vec<u32>,
    /// Tokens wanted.
    pub max_tokens: usize,
    /// Adapter, salt, images and report. Whichever rank's turn it is.
    pub options: CompletionOptions,
}

/// An endless workload.
#[derive(Debug, Clone)]
pub struct Workload {
    config: LoadConfig,
    random: Random,
    systems: Vec<Vec<u32>>,
    conversations: Vec<Conversation>,
}

#[derive(Debug, Clone)]
struct Conversation {
    tokens: Vec<u32>,
    turns: usize,
    options: CompletionOptions,
}

impl Workload {
    /// The workload of a configuration.
    pub fn new(config: LoadConfig) -> Self {
        let mut random = Random::new(config.seed);
        let mut noise = |length: usize| -> Vec<u32> {
            (0..length).map(|_| random.below(u64::from(config.vocabulary)) as u32).collect()
        };
        let systems: Vec<_> =
            (0..config.system_prompts.max(1)).map(|_| noise(config.system_tokens)).collect();
        let mut workload = Self { random, systems, conversations: Vec::new(), config };
        for _ in 0..workload.config.conversations.max(1) {
            let conversation = workload.open();
            workload.conversations.push(conversation);
        }
        workload
    }

    /// The next request: some conversation's next turn.
    pub fn next_turn(&mut self) -> Turn {
        let index = self.random.below(self.conversations.len() as u64) as usize;
        if self.conversations[index].turns >= self.config.turns {
            self.conversations[index] = self.open();
        }
        if self.config.images > 0 && self.random.below(TURNS_PER_IMAGE) == 0 {
            self.show(index);
        }
        let length = 1 + self.random.below(self.config.turn_tokens as u64) as usize;
        let said = self.noise(length);
        let max_tokens = 1 + self.random.below(self.config.output_tokens as u64) as usize;
        let is_reported = self.config.report_every > 0 && self.random.below(self.config.report_every) == 0;
        let conversation = &mut self.conversations[index];
        conversation.turns += 1;
        conversation.tokens.extend(said);
        let report = if is_reported { Report::Full } else { Report::New };
        let options = CompletionOptions { report, ..conversation.options.clone() };
        Turn { conversation: index, prompt: conversation.tokens.clone(), max_tokens, options }
    }

    /// Adds an engine's reply to its conversation, so that the next turn builds on it.
    pub fn replied(&mut self, conversation: usize, output: &[u32]) {
        if let Some(conversation) = self.conversations.get_mut(conversation) {
            conversation.tokens.extend_from_slice(output);
        }
    }

    fn open(&mut self) -> Conversation {
        let system = self.random.below(self.systems.len() as u64) as usize;
        let options = CompletionOptions {
            lora: one_of(&self.config.adapters, &mut self.random),
            cache_salt: one_of(&self.config.salts, &mut self.random),
            ..CompletionOptions::default()
        };
        Conversation { tokens: self.systems[system].clone(), turns: 0, options }
    }

    /// Puts an image behind what a conversation has so far.
    fn show(&mut self, index: usize) {
        let id = format!("image-{}", self.random.below(self.config.images));
        let length = 1 + self.random.below(self.config.turn_tokens as u64) as usize;
        let conversation = &mut self.conversations[index];
        conversation.options.images.push(Image { id, offset: conversation.tokens.len(), length });
        conversation.tokens.extend(std::iter::repeat_n(PLACEHOLDER, length));
    }

    fn noise(&mut self, length: usize) -> Vec<u32> {
        (0..length).map(|_| self.random.below(u64::from(self.config.vocabulary)) as u32).collect()
    }
}

/// One of some names, or none of them.
fn one_of(names: &[String], random: &mut Random) -> Option<String> {
    // Without names nothing is drawn: a plain workload stays what it is.
    let index = if names.is_empty() { 0 } else { random.below(names.len() as u64 + 1) };
    names.get(index.checked_sub(1)? as usize).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_workload_and_turns_build_on_replies() {
        let run = |seed| {
            let mut load = Workload::new(LoadConfig { seed, conversations: 1, ..LoadConfig::default() });
            let first = load.next_turn();
            load.replied(first.conversation, &[1, 2, 3]);
            (first, load.next_turn())
        };
        let (first, second) = run(5);
        assert_eq!((first.clone(), second.clone()), run(5));
        assert_ne!(first, run(6).0);
        assert!(second.prompt.starts_with(&[&first.prompt[..], &[1, 2, 3]].concat()));
    }

    #[test]
    fn a_mixed_workload_has_some_of_everything() {
        let names = |names: [&str; 2]| names.map(str::to_owned).to_vec();
        let config = LoadConfig {
            adapters: names(["a", "b"]),
            salts: names(["s", "t"]),
            images: 3,
            report_every: 4,
            ..LoadConfig::default()
        };
        let mut load = Workload::new(config);
        let turns: Vec<Turn> = (0..100).map(|_| load.next_turn()).collect();
        let count =
            |has: fn(&CompletionOptions) -> bool| turns.iter().filter(|turn| has(&turn.options)).count();
        assert!((20..90).contains(&count(|options| options.lora.is_some())));
        assert!((20..90).contains(&count(|options| options.cache_salt.is_some())));
        assert!((20..90).contains(&count(|options| !options.images.is_empty())));
        assert!((10..40).contains(&count(|options| options.report == Report::Full)));
        for turn in &turns {
            for image in &turn.options.images {
                assert!(
                    turn.prompt[image.offset..image.offset + image.length].iter().all(|token| *token == 0)
                );
            }
        }
    }
}
