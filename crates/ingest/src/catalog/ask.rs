//! Who holds how much of a prompt: the look-up in the indexes, put together with what each stream's word is worth.

use kvplane_core::{Continuity, Namespace, SpecKind, Tier, Trust};
use kvplane_index::{Buffer, Depths, LEVELS, Reader};

use super::prompt::{Cut, Prompt};
use super::roster::{Member, Roster, Table};
use super::view::{Seen, View};

/// How often a look-up is repeated because a stream moved on meanwhile. A stream that still does is not credited.
const ATTEMPTS: usize = 4;

/// `blocks` and `tokens` of a match count what the engine can reach by itself: this tier and the warmer ones.
const LOCAL: Tier = Tier::Disk;

/// One stream in an answer.
#[derive(Debug, Clone, Copy)]
pub struct Match<'a> {
    /// Which stream.
    pub member: &'a Member,
    /// Where it stands and what its word is worth.
    pub view: View,
    /// Tokens per block; `None` while the stream has not said.
    pub block_size: Option<u32>,
    /// Blocks from which the engine can go on, by tier, each with everything warmer.
    pub depths: Depths,
    /// Blocks that the main group holds, whatever the others do: as much as `depths`, or more.
    pub main: Depths,
    sides: &'a [GroupLength],
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
    table: &'a Table,
    credited: &'a [Row],
    best: usize,
    passed_over: &'a [Row],
    /// The weakest of all streams that could have answered, credited or not.
    pub trust: Trust,
}

impl<'a> Answer<'a> {
    /// The credited streams: most tokens first, then by engine and rank. Streams that hold nothing are among them.
    pub fn matches(&self) -> impl ExactSizeIterator<Item = Match<'a>> + use<'a> {
        let table = self.table;
        self.credited.iter().map(move |row| row.as_match(table))
    }

    /// The credited streams that hold the most; none when nobody holds anything.
    pub fn best(&self) -> impl ExactSizeIterator<Item = Match<'a>> + use<'a> {
        self.matches().take(self.best)
    }

    /// The streams that are not credited, by engine and rank.
    pub fn not_credited(&self) -> impl ExactSizeIterator<Item = Match<'a>> + use<'a> {
        let table = self.table;
        self.passed_over.iter().map(move |row| row.as_match(table))
    }
}

#[derive(Debug)]
struct Row {
    /// Among the table's members.
    position: usize,
    view: View,
    block_size: Option<u32>,
    depths: Depths,
}

impl Row {
    fn as_match<'t>(&self, table: &'t Table) -> Match<'t> {
        let &Self { position, view, block_size, depths } = self;
        Match { member: &table.members[position], view, block_size, depths, main: depths, sides: &[] }
    }
}

/// What the indexes say of one stream.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    block_size: u32,
    depths: Depths,
}

impl Found {
    /// A stream that has blocks of several sizes is worth what the best of them gives.
    fn tokens(&self) -> [u64; 2] {
        let tokens = |tier: Tier| u64::from(self.depths[tier.index()]) * u64::from(self.block_size);
        [tokens(LOCAL), tokens(Tier::Remote)]
    }
}

/// Room for one question at a time.
#[derive(Debug)]
pub(super) struct Scratch {
    /// One per keyspace of the table, in its order.
    readers: Vec<(Reader, Buffer)>,
    hashed: kvplane_index::Prompt,
    /// The prompt as pairs of tokens, once somebody needs it so.
    pairs: Vec<u32>,
    /// By position, as all that follow.
    seen: Vec<Seen>,
    found: Vec<Found>,
    credited: Vec<Row>,
    passed_over: Vec<Row>,
}

impl Roster {
    /// Asks every stream of the model. Every stream's part of the answer is true of one moment during the call: the
    /// blocks are of the life and of the trust that stand beside them.
    pub fn ask<R>(&self, prompt: &Prompt<'_>, credit: &[Trust], read: impl FnOnce(&Answer<'_>) -> R) -> R {
        let mut attempt = 1;
        let (table, mut scratch) = loop {
            let table = self.table();
            let mut scratch = table.take_scratch();
            scratch.look(&table, prompt);
            if scratch.confirm(&table) || attempt == ATTEMPTS {
                break (table, scratch);
            }
            attempt += 1;
        };
        let answer = scratch.judge(&table, prompt, credit);
        let read = read(&answer);
        table.scratch.lock().push(scratch);
        read
    }
}

impl Roster {
    /// Asks every stream of the model, also for what each group by itself could go on from: see [`Match::sides`].
    pub fn ask_by_group<R>(
        &self,
        prompt: &Prompt<'_>,
        credit: &[Trust],
        read: impl FnOnce(&Answer<'_>) -> R,
    ) -> R {
        self.ask(prompt, credit, read)
    }
}

impl Table {
    fn take_scratch(&self) -> Scratch {
        let kept = self.scratch.lock().pop();
        kept.unwrap_or_else(|| Scratch {
            readers: self.keyspaces.iter().map(|known| (known.index.reader(), Buffer::default())).collect(),
            hashed: kvplane_index::Prompt::new(Namespace::PLAIN, 1),
            pairs: Vec::new(),
            seen: Vec::new(),
            found: Vec::new(),
            credited: Vec::new(),
            passed_over: Vec::new(),
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

impl Scratch {
    /// Reads every view, then every index.
    fn look(&mut self, table: &Table, prompt: &Prompt<'_>) {
        self.seen.clear();
        self.seen.extend(table.members.iter().map(|member| member.cell.read()));
        self.pairs.clear();
        self.found.clear();
        self.found.resize(table.members.len(), Found::default());
        for (at, keyspace) in table.keyspaces.iter().enumerate() {
            let shape = keyspace.shape;
            let (reader, buffer) = &mut self.readers[at];
            if prompt.block_size().is_some_and(|asked| asked != shape.size) {
                continue;
            }
            let answer = match *prompt {
                Prompt::Tokens { ids, namespace } => {
                    self.hashed.restart(namespace, shape.ids());
                    let ids = if shape.bigrams { pairs(ids, &mut self.pairs) } else { ids };
                    reader.query_tokens(&mut self.hashed, ids, buffer)
                }
                Prompt::Keyed { ids, namespace, keys } => {
                    self.hashed.restart(namespace, shape.ids());
                    let ids = if shape.bigrams { pairs(ids, &mut self.pairs) } else { ids };
                    let cut = Cut { ids, positions: shape.size, ids_per_block: shape.ids(), namespace };
                    let hash = |blocks, hashes: &mut Vec<u64>| keys.hash(cut, blocks, hashes);
                    reader.query_hashed(&mut self.hashed, cut.blocks(), hash, buffer)
                }
                Prompt::Hashes { hashes, chained: true, .. } => reader.query_chained(hashes, buffer),
                Prompt::Hashes { hashes, chained: false, .. } => reader.query(hashes, buffer),
            };
            for found in answer.matches() {
                let position = table.positions.get(found.owner as usize).copied().flatten();
                // A stream that came after the table was read is in the next answer.
                let Some(best) = position.and_then(|position| self.found.get_mut(position as usize)) else {
                    continue;
                };
                let here = Found { block_size: shape.size, depths: found.depths };
                if here.tokens() > best.tokens() {
                    *best = here;
                }
            }
        }
    }

    /// Whether every stream is still in the view that was read before the look-up. Those that are not have moved on:
    /// what was found of them may be of either view.
    fn confirm(&mut self, table: &Table) -> bool {
        let mut unchanged = true;
        for (member, seen) in table.members.iter().zip(&mut self.seen) {
            if seen.is_settled() && !member.cell.is_unchanged(seen) {
                *seen = seen.overtaken();
                unchanged = false;
            }
        }
        unchanged
    }

    /// Sorts out who is credited.
    fn judge<'a>(&'a mut self, table: &'a Table, prompt: &Prompt<'_>, credit: &[Trust]) -> Answer<'a> {
        self.credited.clear();
        self.passed_over.clear();
        let mut trust = Trust::Exact;
        for (position, ((member, seen), found)) in
            table.members.iter().zip(&self.seen).zip(&self.found).enumerate()
        {
            let block_size = if found.block_size == 0 { member.block_size() } else { Some(found.block_size) };
            if prompt.block_size().zip(block_size).is_some_and(|(asked, size)| asked != size) {
                continue; // it could not have answered
            }
            let view = seen.view;
            let credited = seen.is_settled() && view.is_credited(credit);
            // Of a stream that is passed over, blocks may be missing here at the least.
            trust = trust.max(view.trust).max(if credited { Trust::Exact } else { Trust::Lower });
            if credited {
                self.credited.push(Row { position, view, block_size, depths: found.depths });
            } else {
                self.passed_over.push(Row { position, view, block_size, depths: [0; LEVELS] });
            }
        }
        let tokens = |row: &Row| row.as_match(table).tokens();
        // Stable: equal ones stay in the order of engines and ranks.
        self.credited.sort_by_key(|row| std::cmp::Reverse(tokens(row)));
        let most = self.credited.first().map_or(0, tokens);
        let best = if most == 0 { 0 } else { self.credited.partition_point(|row| tokens(row) == most) };
        Answer { table, credited: &self.credited, best, passed_over: &self.passed_over, trust }
    }
}
