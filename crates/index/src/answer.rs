//! Answers: how much of a prompt every lane holds, in a few strata.
//!
//! Lanes that stop at the same depth are one stratum: a depth and a set of lanes. There are few, however many
//! streams there are. Lanes that stop alone are named one by one.

use kvplane_core::{Marks, Resumption};

use crate::crowd::ones;
use crate::reader::Reader;
use crate::shared::Lane;
use crate::sides::{Resuming, Steps};
use crate::{Depths, LEVELS, Match};

#[cfg(doc)]
use crate::Index;

/// Room for answers, used again and again.
#[derive(Debug, Default)]
pub struct Buffer {
    /// Lanes that are named one by one, and how much they hold.
    pub(crate) singles: Vec<(u32, u32)>,
    /// Depths, and where the words of the set of lanes begin.
    pub(crate) strata: Vec<(u32, usize)>,
    pub(crate) words: Vec<u64>,
    /// Words of a set.
    pub(crate) width: usize,
    /// Lanes that still hold everything, while the question is followed.
    pub(crate) alive: Vec<u64>,
    pub(crate) steps: Steps,
    resuming: Resuming,
}

impl Buffer {
    pub(crate) fn reset(&mut self, width: usize) {
        self.singles.clear();
        self.strata.clear();
        self.words.clear();
        self.steps.clear();
        self.width = width;
    }

    /// These lanes hold so much.
    pub(crate) fn push_single(&mut self, lane: u32, depth: u32) {
        if depth > 0 {
            self.singles.push((lane, depth));
        }
    }

    /// A lane is not among those that are alive.
    pub(crate) fn forget(&mut self, lane: u32) {
        if let Some(word) = self.alive.get_mut(lane as usize / 64) {
            *word &= !(1 << (lane % 64));
        }
    }

    /// A lane is among those that are alive.
    pub(crate) fn remember(&mut self, lane: u32) {
        if let Some(word) = self.alive.get_mut(lane as usize / 64) {
            *word |= 1 << (lane % 64);
        }
    }

    /// The lanes of a word hold so much; one word is all there is.
    pub(crate) fn push_word(&mut self, depth: u32, word: u64) {
        if depth > 0 && word != 0 {
            self.strata.push((depth, self.words.len()));
            self.words.push(word);
        }
    }

    /// The lanes that are alive hold so much.
    pub(crate) fn push_stratum(&mut self, depth: u32) {
        let start = self.words.len();
        self.words.extend_from_slice(&self.alive);
        self.end_stratum(depth, start);
    }

    /// Only those lanes stay alive that `stays` names, word by word; the others hold so much. Each word is
    /// asked for once: a writer may change it in between, and a lane must be on one side.
    pub(crate) fn keep(&mut self, depth: u32, stays: impl Fn(usize) -> u64) {
        let start = self.words.len();
        for (at, word) in self.alive.iter_mut().enumerate() {
            let stays = stays(at);
            self.words.push(*word & !stays);
            *word &= stays;
        }
        self.end_stratum(depth, start);
    }

    fn end_stratum(&mut self, depth: u32, start: usize) {
        if depth == 0 || self.words[start..].iter().all(|word| *word == 0) {
            self.words.truncate(start);
        } else {
            self.strata.push((depth, start));
        }
    }
}

/// How much of a prompt every stream held while it was asked. Streams that nobody wrote to are exact. Of a
/// stream that was written to meanwhile, every block that counts was held when it was looked at, and the next
/// one was not. While it lives, what it names is not given to anybody else; drop it soon.
#[derive(Debug)]
pub struct Answer<'a> {
    pub(crate) reader: &'a Reader,
    pub(crate) buffer: &'a mut Buffer,
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        self.reader.stand_up();
    }
}

impl Answer<'_> {
    /// Lanes that hold equally much: the depth, and the words of the set of lanes. A lane is in one stratum
    /// or among [`Self::singles`].
    pub fn strata(&self) -> impl Iterator<Item = (u32, &[u64])> {
        let buffer = &*self.buffer;
        buffer.strata.iter().map(|(depth, start)| (*depth, &buffer.words[*start..*start + buffer.width]))
    }

    /// Lanes that are named one by one, with their depth.
    pub fn singles(&self) -> &[(u32, u32)] {
        &self.buffer.singles
    }

    /// The depth of every lane, by lane; 0 where nothing is held. The slice has room for every lane.
    pub fn depths_into(&self, depths: &mut [u32]) {
        depths.fill(0);
        self.for_each_lane(|lane, depth| {
            if let Some(slot) = depths.get_mut(lane as usize) {
                *slot = depth;
            }
        });
    }

    /// The most blocks that any stream holds.
    pub fn deepest(&self) -> u32 {
        let singles = self.buffer.singles.iter().map(|(_, depth)| *depth);
        singles.chain(self.buffer.strata.iter().map(|(depth, _)| *depth)).max().unwrap_or(0)
    }

    fn for_each_lane(&self, mut each: impl FnMut(u32, u32)) {
        for (lane, depth) in &self.buffer.singles {
            each(*lane, *depth);
        }
        for (depth, words) in self.strata() {
            for (at, word) in words.iter().enumerate() {
                for lane in ones(*word, at) {
                    each(lane, depth);
                }
            }
        }
    }

    /// Every stream that holds the first block in any tier, in no particular order.
    pub fn matches(&self) -> Vec<Match> {
        let lanes = self.reader.lanes();
        let mut gathered = Gathered {
            matches: Vec::with_capacity(self.lanes()),
            by_slot: vec![u32::MAX; lanes.len()],
            several: false,
        };
        for (lane, depth) in &self.buffer.singles {
            gathered.add(lanes.get(*lane), *depth);
        }
        for (depth, words) in self.strata() {
            for (at, word) in words.iter().enumerate() {
                // Most lanes are here.
                ones(*word, at).for_each(|lane| gathered.add_inline(lanes.get(lane), depth));
            }
        }
        gathered.finish()
    }

    /// Lanes that hold something.
    fn lanes(&self) -> usize {
        let words = self.buffer.words.iter();
        self.buffer.singles.len() + words.map(|word| word.count_ones() as usize).sum::<usize>()
    }

    /// From how many blocks streams of this answer can go on that have equal needs, by level: as
    /// [`Resumption::resumable`] of what counts of their main blocks ([`Resumption::whole_units`]), with the
    /// marks that [`Index::set_sides`] set. With a `side`, as if that one alone counted. `depths` gets one
    /// for each, in order.
    ///
    /// Marks are read when they are asked for: of a stream that is written to meanwhile, some may be older
    /// than others.
    pub fn resume(
        &mut self,
        found: &[Match],
        needs: &Resumption,
        side: Option<usize>,
        depths: &mut Vec<Depths>,
    ) {
        let Buffer { steps, resuming, .. } = &mut *self.buffer;
        resuming.resume(self.reader.sides(), steps, found, needs, side, depths);
    }

    /// How many blocks of the prompt, from a position on, a stream of this answer has any of these marks for.
    /// Marks are read when they are asked for, and no further than anybody holds the prompt.
    pub fn run_of(&self, found: &Match, from: u32, marks: Marks) -> u32 {
        self.buffer.steps.run(self.reader.sides(), found.marker, from, marks)
    }
}

/// Streams, put together from their lanes.
struct Gathered {
    matches: Vec<Match>,
    /// Where the stream of a slot is among them.
    by_slot: Vec<u32>,
    /// Some stream has several lanes.
    several: bool,
}

impl Gathered {
    fn add(&mut self, lane: Lane, depth: u32) {
        self.add_inline(lane, depth);
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "it takes less time than a call")]
    fn add_inline(&mut self, lane: Lane, depth: u32) {
        let slot = lane.slot as usize;
        if slot >= self.by_slot.len() {
            self.by_slot.resize(slot + 1, u32::MAX);
        }
        let next = self.matches.len();
        if self.by_slot[slot] == u32::MAX {
            self.by_slot[slot] = next as u32;
            let whole = (lane.from, usize::from(lane.to)) == (0, LEVELS);
            let depths = if whole { [depth; LEVELS] } else { [0; LEVELS] };
            self.matches.push(Match { owner: lane.owner, depths, marker: lane.marker });
            if whole {
                return;
            }
        }
        self.add_level(lane, depth);
    }

    /// A lane of a stream that may have others.
    fn add_level(&mut self, lane: Lane, depth: u32) {
        self.several = true;
        let mut at = self.by_slot[lane.slot as usize] as usize;
        if self.matches[at].owner != lane.owner {
            // One stream went and another got its slot while the question was followed.
            let known = self.matches.iter().position(|found| found.owner == lane.owner);
            at = known.unwrap_or(self.matches.len());
            if known.is_none() {
                let fresh = Match { owner: lane.owner, depths: Depths::default(), marker: lane.marker };
                self.matches.push(fresh);
                self.by_slot[lane.slot as usize] = at as u32;
            }
        }
        let levels = usize::from(lane.from)..usize::from(lane.to);
        for level in self.matches[at].depths.get_mut(levels).into_iter().flatten() {
            *level = depth.max(*level);
        }
    }

    fn finish(mut self) -> Vec<Match> {
        if self.several {
            // A level counts everything warmer. Its lane may have been looked at before the warmer one's was
            // written to, or be younger than the question.
            for found in &mut self.matches {
                for level in 1..found.depths.len() {
                    found.depths[level] = found.depths[level].max(found.depths[level - 1]);
                }
            }
        }
        self.matches
    }
}
