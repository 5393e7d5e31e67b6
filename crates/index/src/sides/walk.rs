//! Boundaries that suit all sides of some streams, a word of 64 positions at a time.
//!
//! Of every stream and side, the bits of a word say which blocks the side holds; a carry says how many it
//! holds in a row before the word. Both give the boundaries that suit the side, a bit each: bit i is the
//! boundary behind position i. Boundaries that suit all sides are the conjunction, and the last one counts.

use std::ops::Range;

use kvplane_core::MARK_CHANNELS;

use super::resume::Piece;
use super::{Sides, low};
use crate::LEVELS;

/// Positions of a word.
pub(super) const WORD: u32 = u64::BITS;
/// A carry: nothing was missing since the start of the prompt.
const ALL: u32 = u32::MAX;

/// What one side needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    /// How many positions before a boundary must be held, or all if there are fewer.
    pub(super) window: u32,
    pub(super) stride: u32,
    /// Where the words of its marks are.
    pub(super) whole: usize,
    /// Where those of its tails are, if the one before the window is needed.
    pub(super) tail: Option<usize>,
}

/// What is done with the marks of a column.
const NOT_NEEDED: u8 = u8::MAX;
const TOO_COLD: u8 = u8::MAX - 1;

/// Which kinds of marks are asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kinds {
    /// Where their words are, by tier and channel.
    slots: [u8; LEVELS * MARK_CHANNELS],
    count: u8,
}

impl Kinds {
    pub(super) fn none() -> Self {
        Self { slots: [NOT_NEEDED; LEVELS * MARK_CHANNELS], count: 0 }
    }

    /// The marks of a channel are needed: where their words are.
    pub(super) fn slot(&mut self, channel: usize) -> usize {
        for tier in 0..LEVELS {
            self.slots[tier * MARK_CHANNELS + channel] = self.count;
        }
        self.count += 1;
        usize::from(self.count) - 1
    }

    /// The same, of a tier and the warmer ones.
    pub(super) fn up_to(mut self, level: usize) -> Self {
        let colder = self.slots[(level + 1) * MARK_CHANNELS..].iter_mut();
        colder.filter(|slot| **slot != NOT_NEEDED).for_each(|slot| *slot = TOO_COLD);
        self
    }
}

/// A stream that is being asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    /// Which one of those that were given.
    pub(super) index: u32,
    pub(super) marker: u32,
    /// How many blocks count.
    pub(super) depth: u32,
}

impl Asked {
    /// The last word of which it holds something.
    pub(super) fn top(&self) -> u32 {
        self.depth.saturating_sub(1) / WORD
    }
}

/// Room for a walk.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) rules: Vec<Rule>,
    /// Boundaries are multiples of this.
    unit: u32,
    /// Who is asked: streams that hold equally many words.
    pub(super) asked: Vec<Asked>,
    /// What was found of each stream that was given: the last boundary that suits all sides.
    pub(super) best: Vec<u32>,
    /// Which of them have marks in colder tiers than were asked for.
    pub(super) colder: Vec<bool>,
    /// Whether there was one at all.
    pub(super) found_colder: bool,
    /// Where a stream is among those who are asked, by its marker; one more than that.
    by_marker: Vec<u32>,
    /// The marks of a word: by kind, then by stream.
    words: Vec<u64>,
    /// What one side holds of a word, and which boundaries suit it; and those that suit all sides.
    held: Vec<u64>,
    suits: Vec<u64>,
    suitable: Vec<u64>,
    /// How many positions are held in a row before the word: by side, then by stream.
    carries: Vec<u32>,
    /// The marks of all words so far, where a tail is needed.
    history: Vec<u64>,
}

impl Walk {
    /// Begins to ask this many streams.
    pub(super) fn begin(&mut self, streams: usize, unit: u32) {
        self.unit = unit;
        self.best.clear();
        self.best.resize(streams, 0);
        self.colder.clear();
        self.colder.resize(streams, false);
        self.found_colder = false;
    }

    /// Finds the last suitable boundary in these words. What comes before them counts as missing, unless it
    /// is the start of the prompt.
    pub(super) fn run(&mut self, sides: &Sides, mut pieces: &[Piece], words: Range<u32>, kinds: &Kinds) {
        let needs_history = self.rules.iter().any(|rule| rule.tail.is_some());
        self.history.clear();
        self.carries.clear();
        self.carries.resize(self.rules.len() * self.asked.len(), if words.start == 0 { ALL } else { 0 });
        self.enter_markers();
        for word in words.clone() {
            let here = pieces.partition_point(|piece| piece.word == word);
            self.read(sides, &pieces[..here], kinds);
            pieces = &pieces[here..];
            if needs_history {
                self.history.extend_from_slice(&self.words);
            }
            let boundaries = ends(word * WORD, self.unit);
            let within = |asked: &Asked| boundaries & low(asked.depth - word * WORD);
            self.suitable.clear();
            self.suitable.extend(self.asked.iter().map(within));
            for side in 0..self.rules.len() {
                self.judge(side, word, &words);
                if let Some(slot) = self.rules[side].tail {
                    self.judge_tail(self.rules[side].window, slot, word, words.start);
                }
            }
            for (asked, suitable) in self.asked.iter().zip(&self.suitable) {
                if *suitable != 0 {
                    self.best[asked.index as usize] = word * WORD + suitable.ilog2() + 1;
                }
            }
        }
        self.asked.iter().for_each(|asked| self.by_marker[asked.marker as usize] = 0);
    }

    fn enter_markers(&mut self) {
        for (asked, number) in self.asked.iter().zip(1..) {
            let marker = asked.marker as usize;
            if marker >= self.by_marker.len() {
                self.by_marker.resize(marker + 1, 0);
            }
            self.by_marker[marker] = number;
        }
    }

    /// The marks of a word.
    fn read(&mut self, sides: &Sides, pieces: &[Piece], kinds: &Kinds) {
        let Self { asked, colder, found_colder, by_marker, words, .. } = self;
        words.clear();
        words.resize(usize::from(kinds.count) * asked.len(), 0);
        for piece in pieces {
            let mask = low(piece.count);
            sides.read(piece.page, |columns| {
                for column in columns {
                    let number = by_marker.get(column.marker() as usize).copied().unwrap_or(0) as usize;
                    let slot = kinds.slots[column.kind() as usize];
                    if number == 0 || slot == NOT_NEEDED {
                        continue;
                    }
                    let marks = (column.bits >> piece.shift & mask) << piece.at;
                    if slot != TOO_COLD {
                        words[usize::from(slot) * asked.len() + number - 1] |= marks;
                    } else if marks != 0 {
                        colder[asked[number - 1].index as usize] = true;
                        *found_colder = true;
                    }
                }
            });
        }
    }

    /// Leaves those boundaries of a word that suit a side.
    fn judge(&mut self, side: usize, word: u32, words: &Range<u32>) {
        let Rule { window, stride, whole, .. } = self.rules[side];
        let streams = self.asked.len();
        // Positions within a block of the side count as held: what its last one says is what matters.
        let within = !ends(word * WORD, stride);
        let marks = &self.words[whole * streams..][..streams];
        self.held.clear();
        self.held.extend(marks.iter().map(|marks| marks | within));
        self.suits.clear();
        self.suits.extend_from_slice(&self.held);
        erode(&mut self.suits, window);
        let carries = &mut self.carries[side * streams..][..streams];
        if word == 0 {
            // Whatever is held from the start on is all that is needed.
            for (suits, held) in self.suits.iter_mut().zip(&self.held) {
                *suits |= first_ones(*held);
            }
        } else if word > words.start {
            for ((suits, held), carry) in self.suits.iter_mut().zip(&self.held).zip(&*carries) {
                let missing = window.saturating_sub(*carry).saturating_sub(1);
                *suits |= first_ones(*held) & !low(missing);
            }
        }
        for (suitable, suits) in self.suitable.iter_mut().zip(&self.suits) {
            *suitable &= suits;
        }
        if word + 1 < words.end {
            for (carry, held) in carries.iter_mut().zip(&self.held) {
                *carry = if *held == u64::MAX { carry.saturating_add(WORD) } else { held.leading_ones() };
            }
        }
    }

    /// Leaves those boundaries of a word that have a tail before the window of a side, or no room for one.
    fn judge_tail(&mut self, window: u32, slot: usize, word: u32, first: u32) {
        let streams = self.asked.len();
        let (back, bits) = (window / WORD, window % WORD);
        for at in 0..streams {
            let tails = |back: u32| match word.checked_sub(back) {
                // Nothing is before the start, and nothing is needed there.
                None => u64::MAX,
                Some(word) if word < first => 0,
                Some(word) => self.history[(word - first) as usize * self.words.len() + slot * streams + at],
            };
            let shifted = tails(back) << bits;
            let carried = if bits == 0 { 0 } else { tails(back + 1) >> (WORD - bits) };
            self.suitable[at] &= shifted | carried;
        }
    }
}

/// The ones up to the first zero.
#[inline]
fn first_ones(word: u64) -> u64 {
    word & !word.wrapping_add(1)
}

/// Leaves those bits that end this many ones in a row. One shift is for all words, so that the compiler uses
/// vectors.
fn erode(words: &mut [u64], window: u32) {
    if window == 0 || window >= WORD {
        // A whole word is held from its first position on, which its carry knows too.
        words.fill(if window == 0 { u64::MAX } else { 0 });
        return;
    }
    let mut in_a_row = 1;
    while in_a_row < window {
        let step = in_a_row.min(window - in_a_row);
        for word in words.iter_mut() {
            *word &= *word << step;
        }
        in_a_row += step;
    }
}

/// The positions from `first` on that end a block of this many, one bit each.
fn ends(first: u32, stride: u32) -> u64 {
    if stride == 1 {
        return u64::MAX;
    }
    let mut at = stride - 1 - first % stride;
    let mut bits = 0;
    while at < WORD {
        bits |= 1 << at;
        at = at.saturating_add(stride);
    }
    bits
}
