//! What is answered about a prompt.

use std::time::Duration;

use kvplane_core::{Continuity, SpecKind, Tier, Trust};
use kvplane_index::Depths;

#[cfg(doc)]
use crate::Roster;
use crate::roster::{Member, Table};
use crate::view::View;

/// `blocks` and `tokens` of a match count what the engine can reach by itself: this tier and the warmer ones.
pub(crate) const LOCAL: Tier = Tier::Disk;

/// One stream in an answer.
#[derive(Debug, Clone, Copy)]
pub struct Match<'a> {
    /// Which stream.
    pub member: &'a Member,
    /// Where it stands and what its word is worth.
    pub view: View,
    /// How old the proof is that its engine is there; `None` before the first. Zero where the source cannot fall silent.
    pub age: Option<Duration>,
    /// Tokens per block; `None` while the stream has not said.
    pub block_size: Option<u32>,
    /// Blocks from which the engine can go on, by tier, each with everything warmer.
    pub depths: Depths,
    /// Blocks that the main group holds, whatever the others do: as much as `depths`, or more.
    pub main: Depths,
    /// What the engine is expected to report as cached tokens for exactly this prompt; `None` where its length is not known, because
    /// hashes were given.
    pub cached_tokens: Option<u64>,
    prompt_tokens: Option<u64>,
    sides: &'a [GroupLength],
}

/// A remark about a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The prompt does not fill one block of the stream, so that nothing of it can be cached.
    PromptShorterThanBlock,
}

impl Note {
    /// Its name in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PromptShorterThanBlock => "prompt_shorter_than_block",
        }
    }
}

/// How far one group beside the main one could go on, if it were the only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLength {
    /// The engine's number of it.
    pub group: Option<u32>,
    /// What it is.
    pub kind: SpecKind,
    /// Blocks of the main group, by tier, each with everything warmer.
    pub depths: Depths,
}

impl<'a> Match<'a> {
    /// The groups beside the main one, where they were asked for ([`Roster::ask_by_group`]). None for a stream that has one group.
    pub fn sides(&self) -> &'a [GroupLength] {
        self.sides
    }

    /// The same stream with another length: that of its main group, or of a side.
    #[must_use]
    pub fn with_depths(&self, depths: Depths) -> Self {
        Self { depths, ..*self }
    }

    /// What is told of its main group: where that is not what counts, or where groups were asked for.
    #[must_use]
    pub fn told_main(&self, groups: bool) -> Option<Self> {
        (groups || self.main != self.depths).then(|| self.with_depths(self.main))
    }

    /// What else is to be said of it.
    pub fn note(&self) -> Option<Note> {
        let shorter = self.prompt_tokens? < u64::from(self.block_size?);
        shorter.then_some(Note::PromptShorterThanBlock)
    }

    /// Blocks in any local tier.
    pub fn blocks(&self) -> u32 {
        self.depths[LOCAL.index()]
    }

    /// Tokens in any local tier.
    pub fn tokens(&self) -> u64 {
        self.tokens_in(LOCAL)
    }

    /// Tokens in a tier or a warmer one.
    pub fn tokens_in(&self, tier: Tier) -> u64 {
        let blocks = self.depths.get(tier.index()).copied().unwrap_or(0);
        u64::from(blocks) * u64::from(self.block_size.unwrap_or(0))
    }

    /// Why the stream is not credited, in one word.
    pub fn refusal(&self) -> &'static str {
        match (self.view.continuity, self.view.reason) {
            (Continuity::Live, Some(reason)) => reason.as_str(),
            (Continuity::Live, None) => self.view.trust.as_str(),
            (elsewhere, _) => elsewhere.as_str(),
        }
    }
}

/// Every stream of a model, asked for one prompt.
#[derive(Debug)]
pub struct Answer<'a> {
    pub(crate) table: &'a Table,
    pub(crate) credited: &'a [Row],
    pub(crate) best: usize,
    pub(crate) passed_over: &'a [Row],
    pub(crate) lengths: &'a [GroupLength],
    pub(crate) prompt_tokens: Option<u64>,
    /// The weakest of all streams that could have answered, credited or not.
    pub trust: Trust,
}

impl<'a> Answer<'a> {
    /// The credited streams: most tokens first, then by engine and rank. Streams that hold nothing are among them.
    pub fn matches(&self) -> impl ExactSizeIterator<Item = Match<'a>> + use<'a> {
        let (table, lengths, prompt_tokens) = (self.table, self.lengths, self.prompt_tokens);
        self.credited.iter().map(move |row| row.as_match(table, lengths, prompt_tokens))
    }

    /// The credited streams that hold the most; none when nobody holds anything.
    pub fn best(&self) -> impl ExactSizeIterator<Item = Match<'a>> + use<'a> {
        self.matches().take(self.best)
    }

    /// Whether anybody who is credited holds anything.
    pub fn is_hit(&self) -> bool {
        self.best > 0
    }

    /// The streams that are not credited, by engine and rank.
    pub fn not_credited(&self) -> impl ExactSizeIterator<Item = Match<'a>> + use<'a> {
        let (table, lengths, prompt_tokens) = (self.table, self.lengths, self.prompt_tokens);
        self.passed_over.iter().map(move |row| row.as_match(table, lengths, prompt_tokens))
    }
}

/// What an answer says of one stream.
#[derive(Debug)]
pub(crate) struct Row {
    /// Among the table's members.
    pub(crate) position: usize,
    pub(crate) view: View,
    pub(crate) age: Option<Duration>,
    pub(crate) block_size: Option<u32>,
    pub(crate) found: Found,
}

/// What the indexes say of one stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Found {
    /// 0 while nothing was found.
    pub(crate) block_size: u32,
    pub(crate) depths: Depths,
    pub(crate) main: Depths,
    /// What is expected to be reported as cached, where the prompt's length is known.
    pub(crate) cached: u64,
    /// Where the lengths of its groups are, if they were asked for: the first, and how many.
    pub(crate) sides: (usize, usize),
}

impl Found {
    /// A stream that has blocks of several sizes is worth what the best of them gives.
    pub(crate) fn worth(&self) -> [u64; 3] {
        let tokens =
            |depths: &Depths, tier: Tier| u64::from(depths[tier.index()]) * u64::from(self.block_size);
        [tokens(&self.depths, LOCAL), tokens(&self.depths, Tier::Remote), tokens(&self.main, Tier::Remote)]
    }
}

impl Row {
    /// Tokens in any local tier.
    pub(crate) fn tokens(&self) -> u64 {
        u64::from(self.found.depths[LOCAL.index()]) * u64::from(self.block_size.unwrap_or(0))
    }

    fn as_match<'t>(
        &self,
        table: &'t Table,
        lengths: &'t [GroupLength],
        prompt_tokens: Option<u64>,
    ) -> Match<'t> {
        let &Self { position, view, age, block_size, found } = self;
        let Found { depths, main, cached, sides: (first, count), .. } = found;
        Match {
            member: &table.members[position],
            view,
            age,
            block_size,
            depths,
            main,
            cached_tokens: prompt_tokens.map(|_| cached),
            prompt_tokens,
            sides: &lengths[first..first + count],
        }
    }
}
