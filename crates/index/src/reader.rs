//! Readers: follow a prompt down the trie. No lock, no write that anybody else reads but the writer, no
//! waiting.

use std::ops::Range;
use std::sync::Arc;

use kvplane_core::chain_hash;

use crate::answer::{Answer, Buffer};
use crate::epoch::Seat;
use crate::extent::{Extent, HOLDERS, Holder, ROOT};
use crate::index::Index;
use crate::matching::common;
use crate::prompt::{Hashes, Prompt, Slice};
use crate::shared::Lanes;
use crate::sides::Sides;

/// Asks an index. Each thread that asks has its own.
#[derive(Debug)]
pub struct Reader {
    index: Arc<Index>,
    seat: Arc<Seat>,
}

/// Lanes that hold everything so far.
#[derive(Clone, Copy)]
enum Alive {
    /// Those of one word, when one word has room for every lane.
    Word(u64),
    /// Nothing was looked at yet.
    All,
    /// These few.
    Few([u32; HOLDERS], usize),
    /// Those in the buffer.
    Many,
}

/// Lanes that hold everything so far, while they are being found.
#[derive(Default)]
struct Few {
    lanes: [u32; HOLDERS],
    count: usize,
}

impl Few {
    /// A lane that held everything before: it still does, or it holds so much and no more.
    #[inline]
    fn sort(&mut self, buffer: &mut Buffer, base: u32, matched: u32, holder: Holder) {
        if holder.cutoff >= matched {
            self.lanes[self.count] = holder.lane;
            self.count += 1;
        } else {
            buffer.push_single(holder.lane, base + holder.cutoff);
        }
    }
}

impl Reader {
    pub(crate) fn new(index: Arc<Index>) -> Self {
        let seat = index.shared.epochs.join();
        Self { index, seat }
    }

    /// How much of a prompt every stream holds. The prompt is its blocks' content hashes.
    pub fn query<'a>(&'a mut self, contents: &[u64], buffer: &'a mut Buffer) -> Answer<'a> {
        self.follow(&mut Slice(contents), buffer)
    }

    /// How much of a prompt every stream holds. Tokens are hashed as far as anybody holds them, no further;
    /// what `prompt` has hashed before is not hashed again.
    pub fn query_tokens<'a>(
        &'a mut self,
        prompt: &mut Prompt,
        tokens: &[u32],
        buffer: &'a mut Buffer,
    ) -> Answer<'a> {
        self.follow(&mut prompt.with(tokens), buffer)
    }

    /// How much of a prompt every stream holds, where its blocks are made of more than tokens. `hash` appends
    /// the content hashes of some of its blocks; it is asked as far as anybody holds them, no further, and
    /// for what `prompt` does not have yet.
    pub fn query_hashed<'a>(
        &'a mut self,
        prompt: &mut Prompt,
        blocks: usize,
        hash: impl FnMut(Range<usize>, &mut Vec<u64>),
        buffer: &'a mut Buffer,
    ) -> Answer<'a> {
        self.follow(&mut prompt.hashed_by(blocks, hash), buffer)
    }

    /// How much of a prompt every stream holds. The prompt is its blocks' chained hashes, each of the prefix
    /// that ends with the block (`kvplane_core::chain_hash`).
    pub fn query_chained<'a>(&'a mut self, prefixes: &[u64], buffer: &'a mut Buffer) -> Answer<'a> {
        self.sit_down(buffer);
        let table = self.index.shared.prefixes();
        self.walk(buffer, |spot, base| {
            let first = *prefixes.get(base)?;
            // SAFETY: this reader sat down before it got hold of the table.
            let extent = unsafe { table.find_prefix(first) }?;
            let mut prefix = first;
            let rest = extent.contents()[1..].iter().zip(&prefixes[base + 1..]);
            let more = rest.take_while(|(content, wanted)| {
                prefix = chain_hash(Some(prefix), **content);
                prefix == **wanted
            });
            // The prefix says it all; the parent is the second opinion.
            (extent.parent == spot).then(|| (extent, 1 + more.count()))
        })
    }

    fn follow<'a>(&'a mut self, hashes: &mut impl Hashes, buffer: &'a mut Buffer) -> Answer<'a> {
        self.sit_down(buffer);
        let edges = self.index.shared.edges();
        self.walk(buffer, |spot, base| {
            if hashes.known().len() <= base && !hashes.more() {
                return None;
            }
            // SAFETY: this reader sat down before it got hold of the table.
            let extent = unsafe { edges.find(spot, hashes.known()[base]) }?;
            let contents = extent.contents();
            let mut matched = common(contents, &hashes.known()[base..]);
            while matched < contents.len() && base + matched == hashes.known().len() && hashes.more() {
                matched += common(&contents[matched..], &hashes.known()[base + matched..]);
            }
            Some((extent, matched))
        })
    }

    /// From here on nothing that this reader can reach is used again, until it stands up.
    fn sit_down(&self, buffer: &mut Buffer) {
        let shared = &self.index.shared;
        shared.epochs.enter(&self.seat);
        buffer.reset(shared.alive().words());
    }

    /// Goes down the trie as long as somebody holds everything. `next` says which extent follows a spot, that
    /// many blocks down the prompt, and how many of its blocks the prompt shares.
    #[inline]
    fn walk<'a>(
        &'a self,
        buffer: &'a mut Buffer,
        mut next: impl FnMut(u64, usize) -> Option<(&'a Extent, usize)>,
    ) -> Answer<'a> {
        let mut alive = self.everybody(buffer);
        let mut base = 0;
        let mut spot = ROOT;
        while !matches!(alive, Alive::Word(0) | Alive::Few(_, 0)) {
            let Some((extent, matched)) = next(spot, base) else { break };
            buffer.steps.push(extent.origin, matched as u32);
            alive = self.descend(extent, base as u32, matched as u32, alive, buffer);
            base += matched;
            spot = extent.origin + matched as u64 - 1;
        }
        self.finish(alive, base as u32, buffer)
    }

    /// Before anything was looked at.
    fn everybody(&self, buffer: &Buffer) -> Alive {
        if buffer.width == 1 { Alive::Word(self.index.shared.alive().word(0)) } else { Alive::All }
    }

    /// Who is left holds everything that was found.
    fn finish<'a>(&'a self, alive: Alive, depth: u32, buffer: &'a mut Buffer) -> Answer<'a> {
        match alive {
            Alive::All => {}
            Alive::Word(word) => buffer.push_word(depth, word),
            Alive::Few(lanes, count) => {
                for lane in &lanes[..count] {
                    buffer.push_single(*lane, depth);
                }
            }
            Alive::Many => buffer.push_stratum(depth),
        }
        Answer { reader: self, buffer }
    }

    /// Of the lanes that hold everything before an extent: who holds its first `matched` blocks too. The
    /// others hold so much and no more.
    fn descend(&self, extent: &Extent, base: u32, matched: u32, alive: Alive, buffer: &mut Buffer) -> Alive {
        let before = match alive {
            Alive::Word(word) => return Alive::Word(descend_word(extent, base, matched, word, buffer)),
            Alive::Few(lanes, count) => {
                let mut few = Few::default();
                for lane in &lanes[..count] {
                    few.sort(buffer, base, matched, Holder { lane: *lane, cutoff: extent.cutoff(*lane) });
                }
                return Alive::Few(few.lanes, few.count);
            }
            Alive::All => None,
            Alive::Many => Some(()),
        };
        // Entries first, then the crowd: see `extent`.
        let everybody = self.index.shared.alive();
        let mut entries = [Holder { lane: 0, cutoff: 0 }; HOLDERS];
        let mut count = 0;
        for holder in extent.holders() {
            let at = holder.lane as usize / 64;
            let word = if before.is_some() {
                buffer.alive.get(at).copied().unwrap_or(0)
            } else {
                everybody.word(at)
            };
            if word >> (holder.lane % 64) & 1 == 1 {
                entries[count] = holder;
                count += 1;
            }
        }
        let entries = &entries[..count];
        let Some(crowd) = extent.crowd() else {
            let mut few = Few::default();
            for holder in entries {
                buffer.forget(holder.lane);
                few.sort(buffer, base, matched, *holder);
            }
            if before.is_some() {
                buffer.push_stratum(base);
            }
            return Alive::Few(few.lanes, few.count);
        };
        if before.is_none() {
            buffer.alive.clear();
            buffer.alive.extend((0..buffer.width).map(|at| everybody.word(at) & crowd.lanes.word(at)));
        }
        for holder in entries {
            buffer.forget(holder.lane);
        }
        if before.is_some() {
            // Who is not in the crowd holds nothing of this extent.
            buffer.keep(base, |at| crowd.lanes.word(at));
        }
        if crowd.upto < matched {
            buffer.push_stratum(base + crowd.upto);
            let mut few = Few::default();
            for holder in entries {
                few.sort(buffer, base, matched, *holder);
            }
            return Alive::Few(few.lanes, few.count);
        }
        for holder in entries {
            if holder.cutoff < matched {
                buffer.push_single(holder.lane, base + holder.cutoff);
            } else {
                buffer.remember(holder.lane);
            }
        }
        Alive::Many
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        self.index.shared.lanes()
    }

    pub(crate) fn sides(&self) -> &Sides {
        &self.index.shared.sides
    }

    pub(crate) fn stand_up(&self) {
        self.seat.exit();
    }
}

/// [`Reader::descend`] for lanes that have room in one word.
#[inline]
fn descend_word(extent: &Extent, base: u32, matched: u32, alive: u64, buffer: &mut Buffer) -> u64 {
    let mut stay = 0;
    let mut rest = alive;
    for Holder { lane, cutoff } in extent.holders() {
        let bit = if lane < 64 { 1 << lane } else { 0 };
        // A lane that is on its way from one entry to another counts once.
        if rest & bit != 0 {
            if cutoff >= matched {
                stay |= bit;
            } else {
                buffer.push_single(lane, base + cutoff);
            }
        }
        rest &= !bit;
    }
    if rest == 0 {
        return stay;
    }
    let (upto, crowd) = extent.crowd().map_or((0, 0), |crowd| (crowd.upto, crowd.lanes.word(0)));
    buffer.push_word(base, rest & !crowd);
    let crowd = rest & crowd;
    if upto >= matched {
        return stay | crowd;
    }
    buffer.push_word(base + upto, crowd);
    stay
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.index.shared.epochs.leave(&self.seat);
    }
}
