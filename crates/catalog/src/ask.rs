//! Who holds how much of a prompt: the look-up in the indexes, put together with what each stream's word is
//! worth.

use std::sync::Arc;
use std::time::Instant;

use kvplane_core::{HeldBlocks, Marks, Namespace, PromptLength, Resumption, Tier, Trust};
use kvplane_index::{Buffer, Depths, LEVELS, Reader};

use crate::answer::{Answer, Counts, Found, GroupLength, LOCAL, Row};
use crate::bits::Bits;
use crate::census::Census;
use crate::prompt::{Cut, Prompt};
use crate::roster::{Roster, Table};

#[cfg(doc)]
use crate::Match;

/// How often a look-up is repeated because a stream moved on meanwhile. A stream that still does is not
/// credited. Streams with sides are not counted: see [`Scratch::look_again`].
const ATTEMPTS: usize = 4;

/// Which streams an answer lists. It counts all of them in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listing {
    /// The greatest number of holders to list, best first, and of streams that are not credited.
    pub limit: Option<usize>,
    /// List only holders of at least this number of tokens.
    pub min_tokens: u64,
    /// Also the credited streams that hold nothing.
    pub empty: bool,
}

impl Listing {
    /// Every stream.
    pub const ALL: Self = Self { limit: None, min_tokens: 0, empty: true };
    /// Every stream that holds something.
    pub const HOLDERS: Self = Self { limit: None, min_tokens: 0, empty: false };
}

/// A prompt, and how the answer is to be.
struct Question<'a> {
    prompt: &'a Prompt<'a>,
    /// Each group's length is asked for too.
    by_group: bool,
    credit: &'a [Trust],
    listing: Listing,
}

/// Room for one question at a time, and what is known of the table's streams from the last one.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// One per keyspace of the table, in its order.
    readers: Vec<(Reader, Buffer)>,
    hashed: kvplane_index::Prompt,
    /// The prompt as pairs of tokens, once somebody needs it so.
    pairs: Vec<u32>,
    census: Census,
    finds: Finds,
    alike: Vec<Alike>,
    holders: Vec<Row>,
    /// Streams that are not credited and have blocks of several sizes: the one that was asked for is not
    /// their last.
    outside: Bits,
    /// What streams need that need nothing but their main blocks.
    nothing: Resumption,
}

/// What was found of the prompt. Nothing of most streams: only what was found is put away again.
#[derive(Debug, Default)]
pub(crate) struct Finds {
    /// By position.
    found: Vec<Found>,
    /// Positions of those of which something was found.
    pub(crate) held: Bits,
    /// Positions that are to be emptied before the next question.
    written: Vec<u32>,
    pub(crate) lengths: Vec<GroupLength>,
}

impl Finds {
    fn clear(&mut self, streams: usize) {
        for position in self.written.drain(..) {
            self.found[position as usize] = Found::default();
            self.held.remove(position);
        }
        self.found.resize(streams, Found::default());
        self.lengths.clear();
    }

    /// Forgets one stream.
    fn forget(&mut self, position: u32) {
        if self.held.remove(position) {
            self.found[position as usize] = Found::default();
            self.written.retain(|written| *written != position);
        }
    }

    pub(crate) fn get(&self, position: u32) -> Found {
        self.found[position as usize]
    }

    /// Whether this is better than what was found of the stream so far.
    fn is_better(&self, position: u32, found: &Found) -> bool {
        found.worth() > self.get(position).worth()
    }

    fn set(&mut self, position: u32, found: Found) {
        self.found[position as usize] = found;
        if self.held.insert(position) {
            self.written.push(position);
        }
    }

    /// Nothing was found of a stream; it has its groups all the same.
    fn set_sides(&mut self, position: u32, needs: &Resumption) {
        self.found[position as usize].sides = (self.lengths.len(), needs.sides.len());
        self.written.push(position);
        self.lengths.extend(lengths(needs, |_| [0; LEVELS]));
    }
}

impl Roster {
    /// Asks every stream of the model. Every stream's part of the answer is true of one moment during the
    /// call: the blocks are of the life and of the trust that stand beside them.
    pub fn ask<R>(&self, prompt: &Prompt<'_>, credit: &[Trust], read: impl FnOnce(&Answer<'_>) -> R) -> R {
        self.ask_for(prompt, credit, Listing::ALL, read)
    }

    /// Asks every stream of the model, and lists some of them. What that takes grows with the streams that
    /// hold something, and with those that are listed.
    pub fn ask_for<R>(
        &self,
        prompt: &Prompt<'_>,
        credit: &[Trust],
        listing: Listing,
        read: impl FnOnce(&Answer<'_>) -> R,
    ) -> R {
        self.answer(&Question { prompt, by_group: false, credit, listing }, read)
    }

    /// Asks every stream of the model, also for what each group by itself could go on from: see
    /// [`Match::sides`].
    pub fn ask_by_group<R>(
        &self,
        prompt: &Prompt<'_>,
        credit: &[Trust],
        listing: Listing,
        read: impl FnOnce(&Answer<'_>) -> R,
    ) -> R {
        self.answer(&Question { prompt, by_group: true, credit, listing }, read)
    }

    fn answer<R>(&self, question: &Question<'_>, read: impl FnOnce(&Answer<'_>) -> R) -> R {
        let mut attempt = 1;
        let (table, mut scratch) = loop {
            let table = self.table();
            let mut scratch = table.take_scratch();
            scratch.census.catch_up(&table, &self.changes);
            scratch.look(&table, question);
            if scratch.census.confirm(&table, &self.changes) || attempt == ATTEMPTS {
                break (table, scratch);
            }
            attempt += 1;
            table.scratch.lock().push(scratch);
        };
        scratch.look_again(&table, question);
        let answer = scratch.judge(&table, question);
        let read = read(&answer);
        table.scratch.lock().push(scratch);
        read
    }
}

impl Table {
    fn take_scratch(&self) -> Scratch {
        let kept = self.scratch.lock().pop();
        kept.unwrap_or_else(|| Scratch {
            readers: self.keyspaces.iter().map(|known| (known.index.reader(), Buffer::default())).collect(),
            hashed: kvplane_index::Prompt::new(Namespace::PLAIN, 1),
            pairs: Vec::new(),
            census: Census::default(),
            finds: Finds::default(),
            alike: Vec::new(),
            holders: Vec::new(),
            outside: Bits::default(),
            nothing: Resumption::default(),
        })
    }
}

/// A prompt's positions as engines with EAGLE see them: each token with the one that follows it. The last
/// token has none.
fn pairs<'p>(ids: &[u32], out: &'p mut Vec<u32>) -> &'p [u32] {
    if out.is_empty() {
        out.extend(ids.array_windows::<2>().flatten());
    }
    out
}

/// Streams of one look-up that need the same: they are asked together.
#[derive(Debug)]
struct Alike {
    needs: Arc<Resumption>,
    /// Their positions, and what their main group holds.
    streams: Vec<(u32, Depths)>,
    /// What of that the prompt can use.
    found: Vec<kvplane_index::Match>,
}

impl Alike {
    /// Those who need this.
    fn of<'a>(all: &'a mut Vec<Self>, needs: &Arc<Resumption>) -> &'a mut Self {
        let at = all.iter().position(|alike| alike.needs == *needs).unwrap_or(all.len());
        if at == all.len() {
            all.push(Self { needs: needs.clone(), streams: Vec::new(), found: Vec::new() });
        }
        &mut all[at]
    }

    fn add(&mut self, position: u32, mut found: kvplane_index::Match, usable: u32) {
        self.streams.push((position, found.depths));
        if self.needs.depends_on_the_end() {
            found.depths = found.depths.map(|depth| depth.min(usable));
        }
        self.found.push(found);
    }

    /// From where each can go on, or where one side could.
    fn resume(&self, answer: &mut kvplane_index::Answer<'_>, side: Option<usize>) -> Vec<Depths> {
        let mut depths = Vec::new();
        answer.resume(&self.found, &self.needs, side, &mut depths);
        depths
    }
}

/// What a prediction needs to know of a stream's blocks: where it can go on, and what its main group has on
/// the device.
fn held_blocks(depths: &Depths, main: &Depths) -> HeldBlocks {
    HeldBlocks { resumable: depths[LOCAL.index()], device: main[Tier::Device.index()] }
}

/// Marks of blocks that tiers behind the device hold, as far as the engine reaches them by itself.
fn behind_the_device() -> Marks {
    let mut marks = Marks::default();
    marks.set(Tier::Host, Marks::BEHIND);
    marks.set(Tier::Disk, Marks::BEHIND);
    marks
}

/// What is said of the sides of a stream, each for itself.
fn lengths(needs: &Resumption, depths: impl FnMut(usize) -> Depths) -> impl Iterator<Item = GroupLength> {
    let depths = (0..needs.sides.len()).map(depths);
    needs.sides.iter().zip(depths).map(|(side, depths)| GroupLength {
        group: side.group,
        kind: side.kind,
        depths,
    })
}

impl Scratch {
    /// Reads every index.
    fn look(&mut self, table: &Table, question: &Question<'_>) {
        self.pairs.clear();
        self.finds.clear(table.members.len());
        self.search(table, question, None);
    }

    /// Looks into every index: for all streams, or for one.
    fn search(&mut self, table: &Table, question: &Question<'_>, only: Option<u32>) {
        // A prompt is not hashed twice for one question, unless another shape came in between.
        let afresh = only.is_none() || table.keyspaces.len() > 1;
        for (at, keyspace) in table.keyspaces.iter().enumerate() {
            let shape = keyspace.shape;
            let (reader, buffer) = &mut self.readers[at];
            if question.prompt.block_size().is_some_and(|asked| asked != shape.size) {
                continue;
            }
            let mut answer = match *question.prompt {
                Prompt::Tokens { ids, namespace } => {
                    if afresh {
                        self.hashed.restart(namespace, shape.ids());
                    }
                    let ids = if shape.bigrams { pairs(ids, &mut self.pairs) } else { ids };
                    reader.query_tokens(&mut self.hashed, ids, buffer)
                }
                Prompt::Keyed { ids, names, keys } => {
                    if afresh {
                        self.hashed.restart(names.namespace(), shape.ids());
                    }
                    let ids = if shape.bigrams { pairs(ids, &mut self.pairs) } else { ids };
                    let cut = Cut { ids, positions: shape.size, ids_per_block: shape.ids(), names };
                    let hash = |blocks, hashes: &mut Vec<u64>| keys.hash(cut, blocks, hashes);
                    reader.query_hashed(&mut self.hashed, cut.blocks(), hash, buffer)
                }
                Prompt::Hashes { hashes, chained: true, .. } => reader.query_chained(hashes, buffer),
                Prompt::Hashes { hashes, chained: false, .. } => reader.query(hashes, buffer),
            };
            let length = question.prompt.length(shape);
            let usable = length.map_or(u32::MAX, PromptLength::usable_blocks);
            for found in answer.matches() {
                // A stream that came after the table was read is in the next answer.
                let Some(position) = table.position(found.owner as u32) else { continue };
                if only.is_some_and(|only| only != position) {
                    continue;
                }
                if let Some(needs) = &self.census.needs(position).needs {
                    Alike::of(&mut self.alike, needs).add(position, found, usable);
                    continue;
                }
                let main = found.depths;
                let held = held_blocks(&main, &main);
                let cached = length.map_or(0, |length| self.nothing.cached_tokens(length, held, |_| 0));
                let here = Found { block_size: shape.size, depths: main, main, cached, sides: (0, 0) };
                if self.finds.is_better(position, &here) {
                    self.finds.set(position, here);
                }
            }
            for alike in self.alike.drain(..) {
                let resumable = alike.resume(&mut answer, None);
                let sides = 0..if question.by_group { alike.needs.sides.len() } else { 0 };
                let by_side: Vec<_> = sides.map(|side| alike.resume(&mut answer, Some(side))).collect();
                for (at, &(position, main)) in alike.streams.iter().enumerate() {
                    let depths = resumable[at];
                    let behind = |from| answer.run_of(&alike.found[at], from, behind_the_device());
                    let held = held_blocks(&depths, &main);
                    let cached = length.map_or(0, |length| alike.needs.cached_tokens(length, held, behind));
                    let mut here = Found { block_size: shape.size, depths, main, cached, sides: (0, 0) };
                    if !self.finds.is_better(position, &here) {
                        continue;
                    }
                    if question.by_group {
                        here.sides = (self.finds.lengths.len(), by_side.len());
                        self.finds.lengths.extend(lengths(&alike.needs, |side| by_side[side][at]));
                    }
                    self.finds.set(position, here);
                }
            }
        }
    }

    /// Streams with sides are between two views during every batch, and a busy one would rarely be caught in
    /// a view. Those that were not are asked once more, each while its feed stands still. That may have to
    /// wait for the end of one batch, and lets the next one wait for one look-up.
    fn look_again(&mut self, table: &Table, question: &Question<'_>) {
        for position in self.census.unsettled_with_sides() {
            let member = &table.members[position as usize];
            let _standing_still = member.gate.read();
            self.census.read(table, position);
            let seen = self.census.seen(position);
            self.finds.forget(position);
            self.search(table, question, Some(position));
            if !member.cell.is_unchanged(&seen) {
                // Its feed is gone, or the stream is loaded anew.
                self.census.overtake(table, position);
            }
        }
    }

    /// Sorts out who is credited.
    fn judge<'a>(&'a mut self, table: &'a Table, question: &Question<'a>) -> Answer<'a> {
        let Question { credit, listing, .. } = *question;
        // After the look-up: what was found is no older than this says.
        let now = kvplane_runtime::now();
        self.census.age(table, now);
        let (census, asked) = (&self.census, question.prompt.block_size());
        let mut trust = Trust::Exact;
        let mut counts = Counts::default();
        for class in census.classes().filter(|class| class.could_answer(asked)) {
            trust = trust.max(class.worth(credit));
            if class.view.is_credited(credit) {
                counts.empty += class.count;
            } else {
                counts.not_credited += class.count;
            }
        }
        self.holders.clear();
        self.outside.clear();
        for position in self.finds.held.iter() {
            let class = census.class_of(position);
            let credited = class.view.is_credited(credit) && census.seen(position).is_settled();
            if !class.could_answer(asked) {
                // It has blocks of several sizes, and this is not the one of its last store.
                trust = trust.max(class.worth(credit));
                if !credited {
                    self.outside.insert(position);
                    counts.not_credited += 1;
                }
            } else if credited {
                counts.empty -= 1;
            }
            if credited {
                self.holders.push(Row { position, tokens: self.finds.get(position).tokens() });
            }
        }
        counts.holders = self.holders.len();
        let most = self.holders.iter().map(|row| row.tokens).max().unwrap_or(0);
        if most > 0 {
            counts.best = self.holders.iter().filter(|row| row.tokens == most).count();
        }
        list_best(&mut self.holders, listing);
        if listing.empty && question.by_group {
            let answer = self.assemble(table, question, now, (counts, most), trust);
            let sided: Vec<u32> =
                answer.empty().filter(|position| self.census.needs(*position).needs.is_some()).collect();
            for position in sided {
                if let Some(needs) = &self.census.needs(position).needs {
                    self.finds.set_sides(position, needs);
                }
            }
        }
        self.assemble(table, question, now, (counts, most), trust)
    }

    fn assemble<'a>(
        &'a self,
        table: &'a Table,
        question: &Question<'a>,
        now: Instant,
        (counts, most_tokens): (Counts, u64),
        trust: Trust,
    ) -> Answer<'a> {
        Answer {
            table,
            census: &self.census,
            finds: &self.finds,
            holders: &self.holders,
            outside: &self.outside,
            prompt_tokens: question.prompt.tokens(),
            hashes: match question.prompt {
                Prompt::Hashes { hashes, .. } => hashes.len(),
                Prompt::Tokens { .. } | Prompt::Keyed { .. } => 0,
            },
            block_size: question.prompt.block_size(),
            credit: question.credit,
            listing: question.listing,
            now,
            counts,
            most_tokens,
            trust,
        }
    }
}

/// Most tokens first, then by position; only those that are listed.
fn list_best(holders: &mut Vec<Row>, listing: Listing) {
    let rank = |row: &Row| (std::cmp::Reverse(row.tokens), row.position);
    if listing.min_tokens > 0 {
        holders.retain(|row| row.tokens >= listing.min_tokens);
    }
    if let Some(limit) = listing.limit
        && limit < holders.len()
    {
        holders.select_nth_unstable_by_key(limit, rank);
        holders.truncate(limit);
    }
    holders.sort_unstable_by_key(rank);
}
