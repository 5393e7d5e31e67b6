//! Who holds how much of a prompt: the look-up in the indexes, put together with what each stream's word is worth.

use std::sync::Arc;

use kvplane_core::{HeldBlocks, Marks, Namespace, PromptLength, Resumption, Tier, Trust};
use kvplane_index::{Buffer, Depths, LEVELS, Reader};

use crate::answer::{Answer, Found, GroupLength, LOCAL, Row};
use crate::needs::Known;
use crate::prompt::{Cut, Prompt};
use crate::roster::{Roster, Table};
use crate::view::Seen;

#[cfg(doc)]
use crate::Match;

/// How often a look-up is repeated because a stream moved on meanwhile. A stream that still does is not credited. Streams with
/// sides are not counted: see [`Scratch::look_again`].
const ATTEMPTS: usize = 4;

/// A prompt, and how the answer is to be.
struct Question<'a> {
    prompt: &'a Prompt<'a>,
    /// Each group's length is asked for too.
    by_group: bool,
}

/// Room for one question at a time.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// One per keyspace of the table, in its order.
    readers: Vec<(Reader, Buffer)>,
    hashed: kvplane_index::Prompt,
    /// The prompt as pairs of tokens, once somebody needs it so.
    pairs: Vec<u32>,
    /// By position, as all that follow. What streams need stays from question to question.
    needs: Vec<Known>,
    seen: Vec<Seen>,
    found: Vec<Found>,
    lengths: Vec<GroupLength>,
    alike: Vec<Alike>,
    credited: Vec<Row>,
    passed_over: Vec<Row>,
    /// What streams need that need nothing but their main blocks.
    nothing: Resumption,
}

impl Roster {
    /// Asks every stream of the model. Every stream's part of the answer is true of one moment during the call: the
    /// blocks are of the life and of the trust that stand beside them.
    pub fn ask<R>(&self, prompt: &Prompt<'_>, credit: &[Trust], read: impl FnOnce(&Answer<'_>) -> R) -> R {
        self.answer(&Question { prompt, by_group: false }, credit, read)
    }

    /// Asks every stream of the model, also for what each group by itself could go on from: see [`Match::sides`].
    pub fn ask_by_group<R>(
        &self,
        prompt: &Prompt<'_>,
        credit: &[Trust],
        read: impl FnOnce(&Answer<'_>) -> R,
    ) -> R {
        self.answer(&Question { prompt, by_group: true }, credit, read)
    }

    fn answer<R>(&self, question: &Question<'_>, credit: &[Trust], read: impl FnOnce(&Answer<'_>) -> R) -> R {
        let mut attempt = 1;
        let (table, mut scratch) = loop {
            let table = self.table();
            let mut scratch = table.take_scratch();
            scratch.look(&table, question);
            if scratch.confirm(&table) || attempt == ATTEMPTS {
                break (table, scratch);
            }
            attempt += 1;
        };
        scratch.look_again(&table, question);
        let answer = scratch.judge(&table, question, credit);
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
            needs: self.members.iter().map(|_| Known::default()).collect(),
            seen: Vec::new(),
            found: Vec::new(),
            lengths: Vec::new(),
            alike: Vec::new(),
            credited: Vec::new(),
            passed_over: Vec::new(),
            nothing: Resumption::default(),
        })
    }
}

/// A prompt's positions as engines with EAGLE see them: each token with the one that follows it. The last token has none.
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
    streams: Vec<(usize, Depths)>,
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

    fn add(&mut self, position: usize, mut found: kvplane_index::Match, usable: u32) {
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

/// What a prediction needs to know of a stream's blocks: where it can go on, and what its main group has on the device.
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
    /// Reads every view, then every index.
    fn look(&mut self, table: &Table, question: &Question<'_>) {
        self.seen.clear();
        self.seen.extend(table.members.iter().map(|member| member.cell.read()));
        for (known, member) in self.needs.iter_mut().zip(&table.members) {
            known.refresh(&member.needs);
        }
        self.pairs.clear();
        self.lengths.clear();
        self.found.clear();
        self.found.resize(table.members.len(), Found::default());
        self.search(table, question, None);
    }

    /// Looks into every index: for all streams, or for one.
    fn search(&mut self, table: &Table, question: &Question<'_>, only: Option<usize>) {
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
                let position = table.positions.get(found.owner as usize).copied().flatten();
                let Some(position) = position.map(|position| position as usize) else { continue };
                if only.is_some_and(|only| only != position) {
                    continue;
                }
                if let Some(needs) = &self.needs[position].needs {
                    Alike::of(&mut self.alike, needs).add(position, found, usable);
                    continue;
                }
                let main = found.depths;
                let held = held_blocks(&main, &main);
                let cached = length.map_or(0, |length| self.nothing.cached_tokens(length, held, |_| 0));
                let here = Found { block_size: shape.size, depths: main, main, cached, sides: (0, 0) };
                if here.worth() > self.found[position].worth() {
                    self.found[position] = here;
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
                    if here.worth() <= self.found[position].worth() {
                        continue;
                    }
                    if question.by_group {
                        here.sides = (self.lengths.len(), by_side.len());
                        self.lengths.extend(lengths(&alike.needs, |side| by_side[side][at]));
                    }
                    self.found[position] = here;
                }
            }
        }
    }

    /// Whether every stream is still in the view that was read before the look-up. Those that are not have moved on:
    /// what was found of them may be of either view.
    fn confirm(&mut self, table: &Table) -> bool {
        let mut unchanged = true;
        for ((member, seen), known) in table.members.iter().zip(&mut self.seen).zip(&self.needs) {
            if seen.is_settled() && !member.cell.is_unchanged(seen) {
                *seen = seen.overtaken();
                unchanged &= known.has_sides();
            }
        }
        unchanged
    }

    /// Streams with sides are between two views during every batch, and a busy one would rarely be caught in a view. Those that were not are asked once more, each while its
    /// feed stands still. That may have to wait for the end of one batch, and lets the next one wait for one look-up.
    fn look_again(&mut self, table: &Table, question: &Question<'_>) {
        for (position, member) in table.members.iter().enumerate() {
            if self.seen[position].is_settled() || !self.needs[position].has_sides() {
                continue;
            }
            let _standing_still = member.gate.read();
            let seen = member.cell.read();
            self.needs[position].refresh(&member.needs);
            self.found[position] = Found::default();
            self.search(table, question, Some(position));
            // Its feed may be gone, or the stream be loaded anew.
            self.seen[position] = if member.cell.is_unchanged(&seen) { seen } else { seen.overtaken() };
        }
    }

    /// Sorts out who is credited.
    fn judge<'a>(&'a mut self, table: &'a Table, question: &Question<'_>, credit: &[Trust]) -> Answer<'a> {
        self.credited.clear();
        self.passed_over.clear();
        let mut trust = Trust::Exact;
        // After the look-up: what was found is no older than this says.
        let now = kvplane_runtime::now();
        for (position, (member, seen)) in table.members.iter().zip(&self.seen).enumerate() {
            let mut found = self.found[position];
            let block_size = if found.block_size == 0 { member.block_size() } else { Some(found.block_size) };
            if question.prompt.block_size().zip(block_size).is_some_and(|(asked, size)| asked != size) {
                continue; // it could not have answered
            }
            let age = member.freshness.age_at(now);
            let view = seen.view.at_age(&member.freshness, age);
            let credited = seen.is_settled() && view.is_credited(credit);
            // Of a stream that is passed over, blocks may be missing here at the least.
            trust = trust.max(view.trust).max(if credited { Trust::Exact } else { Trust::Lower });
            if !credited {
                self.passed_over.push(Row { position, view, age, block_size, found: Found::default() });
                continue;
            }
            if let Some(needs) = self.needs[position].needs.as_deref().filter(|_| question.by_group)
                && found.block_size == 0
            {
                // Nothing was found of it; it has its groups all the same.
                found.sides = (self.lengths.len(), needs.sides.len());
                self.lengths.extend(lengths(needs, |_| [0; LEVELS]));
            }
            self.credited.push(Row { position, view, age, block_size, found });
        }
        // Stable: equal ones stay in the order of engines and ranks.
        self.credited.sort_by_key(|row| std::cmp::Reverse(row.tokens()));
        let most = self.credited.first().map_or(0, Row::tokens);
        let best = if most == 0 { 0 } else { self.credited.partition_point(|row| row.tokens() == most) };
        Answer {
            table,
            credited: &self.credited,
            best,
            passed_over: &self.passed_over,
            lengths: &self.lengths,
            prompt_tokens: question.prompt.tokens(),
            trust,
        }
    }
}
