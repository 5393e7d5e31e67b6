//! What is answered about a prompt.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kvplane_core::{SpecKind, Tier, Trust};
use kvplane_index::Depths;

#[cfg(doc)]
use crate::Roster;
use crate::ask::{Finds, Listing};
use crate::bits::{Bits, ones};
use crate::census::{Census, Class};
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
    /// How old the proof is that its engine is there; `None` before the first. Zero where the source cannot
    /// fall silent.
    pub age: Option<Duration>,
    /// Tokens per block; `None` while the stream has not said.
    pub block_size: Option<u32>,
    /// Blocks from which the engine can go on, by tier, each with everything warmer.
    pub depths: Depths,
    /// Blocks that the main group holds, whatever the others do: as much as `depths`, or more.
    pub main: Depths,
    /// What the engine is expected to report as cached tokens for exactly this prompt; `None` where its
    /// length is not known, because hashes were given.
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
    /// The groups beside the main one, where they were asked for ([`Roster::ask_by_group`]). None for a
    /// stream that has one group.
    pub fn sides(&self) -> &'a [GroupLength] {
        self.sides
    }

    /// The same stream with another length: that of its main group, or of a side.
    #[must_use]
    pub fn with_depths(&self, depths: Depths) -> Self {
        Self { depths, ..*self }
    }

    /// Its main group: where that is not what counts, or where groups were asked for.
    #[must_use]
    pub fn reported_main(&self, groups: bool) -> Option<Self> {
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
        self.view.refusal()
    }
}

/// How many streams could have answered. Every one is counted in `holders`, `empty` or `not_credited`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Credited streams that hold something of the prompt.
    pub holders: usize,
    /// Those of them that hold the most.
    pub best: usize,
    /// Credited streams that hold nothing of it.
    pub empty: usize,
    /// Streams that are not credited.
    pub not_credited: usize,
}

/// Every stream of a model, asked for one prompt.
#[derive(Debug)]
pub struct Answer<'a> {
    pub(crate) table: &'a Table,
    pub(crate) census: &'a Census,
    pub(crate) finds: &'a Finds,
    /// Those that are listed.
    pub(crate) holders: &'a [Row],
    /// See `Scratch`.
    pub(crate) outside: &'a Bits,
    pub(crate) prompt_tokens: Option<u64>,
    /// Hashes that were given in place of tokens.
    pub(crate) hashes: usize,
    /// The block size that was asked for.
    pub(crate) block_size: Option<u32>,
    pub(crate) credit: &'a [Trust],
    pub(crate) listing: Listing,
    pub(crate) now: Instant,
    /// How many streams there are, listed or not.
    pub counts: Counts,
    /// Tokens that the credited streams with the longest match hold, listed or not.
    pub most_tokens: u64,
    /// The weakest of all streams that could have answered, credited or not.
    pub trust: Trust,
}

impl<'a> Answer<'a> {
    /// The credited streams that are listed: most tokens first, then by engine and rank; those that hold
    /// nothing last.
    pub fn matches(&self) -> impl ExactSizeIterator<Item = Match<'_>> {
        let empty = if self.listing.empty { self.counts.empty } else { 0 };
        let holders = self.holders.iter().map(|row| row.position);
        let listed = holders.chain(self.empty().take(empty));
        let matches = listed.map(|position| self.as_match(position, self.finds.get(position)));
        Counted { left: self.holders.len() + empty, inner: matches }
    }

    /// The credited streams that hold the most, as far as they are listed; none when nobody holds anything.
    pub fn best(&self) -> impl ExactSizeIterator<Item = Match<'_>> {
        let most = self.holders.first().map_or(0, |row| row.tokens);
        let best = if most == 0 { 0 } else { self.holders.partition_point(|row| row.tokens == most) };
        self.matches().take(best)
    }

    /// Tokens that were asked for. Hashes count with the block size of the question, or else of the first
    /// stream that has one.
    pub fn asked_tokens(&self) -> u64 {
        self.prompt_tokens.unwrap_or_else(|| (self.hashes as u64).saturating_mul(self.blocks_size()))
    }

    /// Tokens of a block where hashes are asked for; 0 while no stream has said.
    pub fn blocks_size(&self) -> u64 {
        let best = self.holders.first().map(|row| self.finds.get(row.position).block_size);
        let any = || self.table.members.iter().find_map(|member| member.block_size());
        u64::from(self.block_size.or(best).or_else(any).unwrap_or(0))
    }

    /// Whether anybody who is credited holds anything.
    pub fn is_hit(&self) -> bool {
        self.counts.best > 0
    }

    /// The streams that are not credited, by engine and rank, as far as they are listed.
    pub fn not_credited(&self) -> impl ExactSizeIterator<Item = Match<'_>> {
        let left = self.listing.limit.unwrap_or(usize::MAX).min(self.counts.not_credited);
        let listed = self.positions(false).take(left);
        Counted { left, inner: listed.map(|position| self.as_match(position, Found::default())) }
    }

    /// How many streams are not credited, by why; see [`Match::refusal`].
    pub fn refusals(&self) -> BTreeMap<&'static str, usize> {
        let mut refusals = BTreeMap::new();
        for class in self.classes(false) {
            *refusals.entry(class.view.refusal()).or_default() += class.count;
        }
        for position in self.outside.iter() {
            *refusals.entry(self.census.view(position).refusal()).or_default() += 1;
        }
        refusals
    }

    /// How many credited streams have blocks that the prompt does not fill: [`Note::PromptShorterThanBlock`].
    pub fn shorter_than_block(&self) -> usize {
        let Some(tokens) = self.prompt_tokens else { return 0 };
        let shorter = |class: &&Class| class.block_size.is_some_and(|size| tokens < u64::from(size));
        self.classes(true).filter(shorter).map(|class| class.count).sum()
    }

    /// The classes that could answer and are credited, or are not.
    fn classes(&self, credited: bool) -> impl Iterator<Item = &'a Class> + Clone + use<'a> {
        let (asked, credit) = (self.block_size, self.credit);
        let classes = self.census.classes();
        classes.filter(move |class| class.could_answer(asked) && class.view.is_credited(credit) == credited)
    }

    /// The streams of those classes, in order.
    fn positions(&self, credited: bool) -> impl Iterator<Item = u32> + use<'a> {
        let (classes, outside) = (self.classes(credited), self.outside);
        (0..self.table.members.len().div_ceil(64)).flat_map(move |at| {
            let several = if credited { 0 } else { outside.word(at) };
            ones(at, classes.clone().fold(several, |word, class| word | class.members.word(at)))
        })
    }

    /// The credited streams that hold nothing, in order.
    pub(crate) fn empty(&self) -> impl Iterator<Item = u32> + use<'a> {
        let held = &self.finds.held;
        self.positions(true).filter(move |position| !held.contains(*position))
    }

    fn as_match(&self, position: u32, found: Found) -> Match<'a> {
        let member: &'a Member = &self.table.members[position as usize];
        let Found { depths, main, cached, block_size, sides: (first, count) } = found;
        Match {
            member,
            view: self.census.view(position),
            age: member.freshness.age_at(self.now),
            block_size: if block_size == 0 { member.block_size() } else { Some(block_size) },
            depths,
            main,
            cached_tokens: self.prompt_tokens.map(|_| cached),
            prompt_tokens: self.prompt_tokens,
            sides: &self.finds.lengths[first..first + count],
        }
    }
}

/// An iterator that knows how much is left.
struct Counted<I> {
    left: usize,
    inner: I,
}

impl<I: Iterator> Iterator for Counted<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        let next = self.inner.next()?;
        self.left -= 1;
        Some(next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<I: Iterator> ExactSizeIterator for Counted<I> {}

/// A stream that holds something.
#[derive(Debug)]
pub(crate) struct Row {
    /// Among the table's members.
    pub(crate) position: u32,
    /// In any local tier.
    pub(crate) tokens: u64,
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
    /// Tokens in any local tier.
    pub(crate) fn tokens(&self) -> u64 {
        u64::from(self.depths[LOCAL.index()]) * u64::from(self.block_size)
    }

    /// A stream that has blocks of several sizes is worth what the best of them gives.
    pub(crate) fn worth(&self) -> [u64; 3] {
        let tokens =
            |depths: &Depths, tier: Tier| u64::from(depths[tier.index()]) * u64::from(self.block_size);
        [tokens(&self.depths, LOCAL), tokens(&self.depths, Tier::Remote), tokens(&self.main, Tier::Remote)]
    }
}
