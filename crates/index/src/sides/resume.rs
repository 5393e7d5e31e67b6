//! From how far into a prompt streams can go on: [`Resumption::resumable`], for many streams at a time.
//!
//! Most streams can go on from near the end of what they hold. So the words before that end are looked at, as
//! many as the longest window needs (see `walk`). If no boundary is found there, four times as many are. What
//! lies before the first word that is looked at counts as missing: that hides boundaries near it, and none
//! behind one that was found.

use std::ops::Range;

use kvplane_core::{Marks, Need, Resumption};

use super::walk::{Asked, Kinds, Rule, WORD, Walk};
use super::{BITS, Sides, marked};
use crate::{Depths, LEVELS, Match};

/// The way of a question through the trie: each extent's first spot and how many of its blocks the prompt
/// shares.
#[derive(Debug, Default)]
pub(crate) struct Steps(Vec<(u64, u32)>);

impl Steps {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    #[inline]
    pub(crate) fn push(&mut self, origin: u64, matched: u32) {
        self.0.push((origin, matched));
    }

    /// How many blocks of the prompt follow each other, from a position on, that have any of these marks.
    pub(crate) fn run(&self, sides: &Sides, marker: u32, from: u32, marks: Marks) -> u32 {
        let mut position = 0;
        let mut run = 0;
        for &(origin, matched) in &self.0 {
            let skipped = from.saturating_sub(position).min(matched);
            position += matched;
            let (mut spot, mut left) = (origin + u64::from(skipped), matched - skipped);
            while left > 0 {
                let shift = (spot & ((1 << BITS) - 1)) as u32;
                let count = left.min((1 << BITS) - shift);
                let mut bits = 0;
                sides.read(spot >> BITS, |columns| bits = marked(columns, marker, marks));
                let here = (bits >> shift).trailing_ones().min(count);
                run += here;
                if here < count {
                    return run;
                }
                spot += u64::from(count);
                left -= count;
            }
        }
        run
    }

    /// The prompt in pieces that lie in one page and in one word.
    fn cut(&self, pieces: &mut Vec<Piece>) {
        pieces.clear();
        let mut position = 0;
        for &(origin, matched) in &self.0 {
            let (mut spot, mut left) = (origin, matched);
            while left > 0 {
                let (shift, at) = ((spot & ((1 << BITS) - 1)) as u32, position % WORD);
                let count = left.min((1 << BITS) - shift).min(WORD - at);
                let piece = Piece { word: position / WORD, at, count, page: spot >> BITS, shift };
                // Spots go on where an extent was split.
                match pieces.last_mut().filter(|last| last.goes_on_with(&piece)) {
                    Some(last) => last.count += count,
                    None => pieces.push(piece),
                }
                position += count;
                spot += u64::from(count);
                left -= count;
            }
        }
    }
}

/// Consecutive blocks of the prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// Where they are in the prompt.
    pub(super) word: u32,
    pub(super) at: u32,
    pub(super) count: u32,
    /// Where they are among the spots.
    pub(super) page: u64,
    pub(super) shift: u32,
}

impl Piece {
    fn goes_on_with(&self, next: &Self) -> bool {
        (self.word, self.at + self.count) == (next.word, next.at)
            && (self.page, self.shift + self.count) == (next.page, next.shift)
    }
}

/// Room for one question about many streams, used again and again.
#[derive(Debug, Default)]
pub(crate) struct Resuming {
    pieces: Vec<Piece>,
    /// What counts of each stream that was given.
    held: Vec<Depths>,
    /// Streams that are still to be asked.
    pending: Vec<Asked>,
    walk: Walk,
}

impl Resuming {
    /// From how many blocks streams with equal needs can go on, by level; of all sides, or of one.
    pub(crate) fn resume(
        &mut self,
        sides: &Sides,
        steps: &Steps,
        found: &[Match],
        needs: &Resumption,
        side: Option<usize>,
        depths: &mut Vec<Depths>,
    ) {
        let chosen = side.map_or(0..needs.sides.len(), |side| side..side + 1);
        let unit = side.map_or_else(|| needs.alignment(), |side| needs.sides[side].need.stride().max(1));
        let given_up = if needs.drops_last { unit } else { 0 };
        let kinds = self.take_rules(needs, chosen);
        steps.cut(&mut self.pieces);
        self.held.clear();
        let has_units = unit != 1 || needs.units != [1; LEVELS];
        if has_units {
            let aligned = |held: Depths| held.map(|held| held / unit * unit);
            self.held.extend(found.iter().map(|found| aligned(needs.whole_units(found.depths))));
        }
        let counts = &self.held;
        let held = |at: usize| if has_units { counts[at] } else { found[at].depths };
        let asked = |at: usize, level: usize| Asked {
            index: at as u32,
            marker: found[at].marker,
            depth: held(at)[level],
        };
        self.walk.begin(found.len(), unit);
        self.pending.clear();
        self.pending.extend((0..found.len()).map(|at| asked(at, 0)));
        ask(&mut self.pending, &mut self.walk, &self.pieces, sides, &kinds.up_to(0));
        depths.clear();
        depths.extend(self.walk.best.iter().map(|best| [best.saturating_sub(given_up); LEVELS]));
        // Most streams have one tier. A level never has less than the one before.
        let uniform = |at: usize| held(at)[0] == held(at)[LEVELS - 1];
        if !self.walk.found_colder && (0..found.len()).all(uniform) {
            return;
        }
        for level in 1..LEVELS {
            for at in 0..found.len() {
                // A colder tier does not change anything if it has no more main blocks, and no marks.
                if held(at)[level] != held(at)[level - 1] || self.walk.colder[at] {
                    (self.walk.best[at], self.walk.colder[at]) = (0, false);
                    self.pending.push(asked(at, level));
                }
            }
            ask(&mut self.pending, &mut self.walk, &self.pieces, sides, &kinds.up_to(level));
            for (depths, best) in depths.iter_mut().zip(&self.walk.best) {
                depths[level] = best.saturating_sub(given_up);
            }
        }
    }

    /// Notes what sides need. Says which kinds of marks that asks for.
    fn take_rules(&mut self, needs: &Resumption, chosen: Range<usize>) -> Kinds {
        let mut kinds = Kinds::none();
        let rules = &mut self.walk.rules;
        rules.clear();
        for side in chosen {
            let need = needs.sides[side].need;
            let stride = need.stride().max(1);
            let (window, tail) = match need {
                Need::Prefix { .. } => (u32::MAX, false),
                // What is given up is computed again, and needs as much before it.
                Need::Run { blocks, tail, .. } => {
                    (blocks.saturating_add(u32::from(needs.drops_last)).saturating_mul(stride), tail)
                }
            };
            let whole = kinds.slot(Marks::whole(side));
            let tail = tail.then(|| kinds.slot(Marks::tail(side)));
            rules.push(Rule { window, stride, whole, tail });
        }
        kinds
    }
}

/// Asks those who are pending, together where they hold equally many words.
fn ask(pending: &mut Vec<Asked>, walk: &mut Walk, pieces: &[Piece], sides: &Sides, kinds: &Kinds) {
    // As many words before the last one as a window reaches into, and the tail before it.
    let enough = walk.rules.iter().map(|rule| rule.window).max().unwrap_or(0).div_ceil(WORD);
    while let Some(top) = pending.first().map(Asked::top) {
        walk.asked.clear();
        if pending.iter().all(|asked| asked.top() == top) {
            std::mem::swap(pending, &mut walk.asked);
        } else {
            walk.asked.extend(pending.extract_if(.., |asked| asked.top() == top));
        }
        let mut words = enough;
        loop {
            let first = top.saturating_sub(words);
            let from = pieces.partition_point(|piece| piece.word < first);
            walk.run(sides, &pieces[from..], first..top + 1, kinds);
            if first == 0 {
                break;
            }
            let best = &walk.best;
            walk.asked.retain(|asked| best[asked.index as usize] == 0);
            if walk.asked.is_empty() {
                break;
            }
            words = words.saturating_mul(4).max(1);
        }
    }
}
