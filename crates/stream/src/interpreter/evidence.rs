//! Blocks that an engine reported as cached for a request, while the past of its stream is not known.
//!
//! A prefix that was cached before a stream was heard, and stays in use, is never stored again. Its engine's
//! hashes are not known, so it is invisible. What the engine reports for a request (`cached_tokens`) proves
//! that it held the first blocks of that prompt at some moment after the request was sent. Such blocks are
//! recorded under hashes of our own.
//!
//! The engine removes them under hashes that are not known here. So none of them outlives anything that may
//! have been such a removal:
//!
//! | what happens | what follows |
//! |---|---|
//! | a removal of a block that was not held here, a clear, a loss, another epoch, another tier, a reason that says more than that the past is unknown | all are released; reports about requests that were sent before are rejected |
//! | a store of a block with equal tokens | that one is released: the engine's hash is known from here on |
//! | a report about a prompt of which some block was stored | blocks from there on are not recorded |
//!
//! The last two keep a block from being counted twice, under both hashes: the engine's removal would take the
//! one and leave the other.

use std::collections::VecDeque;
use std::sync::Arc;

use kvplane_core::{Continuity, Namespace, Reason, Tier, chain_hash, hash_blocks};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Interpreter, Reading};
use crate::change::Change;
use crate::ledger::Ledger;
use crate::persist::persist;
use crate::state::{Chain, Parent, PlaceId};

/// Blocks of one stream that are held by evidence; the oldest go first.
const MAX_BLOCKS: usize = 65_536;
/// Contents of stored blocks that are remembered, in at most 32 MiB. Beyond that nothing is recorded any
/// more, until everything is forgotten.
const MAX_CONTENTS: usize = 1 << 20;
/// Keeps our hashes apart from the content's own.
const OWN_HASHES: u64 = 0x6b76_706c_616e_6545;

/// A moment before a request was sent to the engine; see [`Interpreter::mark_request`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestMark(u64);

persist!(RequestMark(_));

/// What is held by evidence.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    accepted: bool,
    /// Changes with everything that may have removed a block under a hash that is not known.
    generation: u64,
    /// Contents of all blocks that were stored since residency was last forgotten, as if they were plain.
    contents: FxHashSet<u64>,
    /// Blocks were stored whose tokens are not known, or too many.
    opaque: bool,
    /// By our hash.
    held: FxHashMap<u64, Held>,
    /// Our hashes of a content.
    by_content: FxHashMap<u64, Vec<u64>>,
    /// Oldest first; an entry whose number is not the block's is void.
    order: VecDeque<(u64, u64)>,
    reports: u64,
}

persist!(Evidence { accepted, generation, contents, opaque, held, by_content, order, reports });

#[derive(Debug)]
struct Held {
    content: u64,
    /// The last report of it.
    report: u64,
}

persist!(Held { content, report });

/// What the journal had counted before a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted([u64; 3]);

impl Evidence {
    /// How many blocks are held by evidence.
    pub(super) fn len(&self) -> u64 {
        self.held.len() as u64
    }

    /// Residency is forgotten, and this with it.
    pub(super) fn forget(&mut self) {
        let generation = self.generation + 1;
        *self = Self { accepted: self.accepted, generation, reports: self.reports, ..Self::default() };
    }

    /// Blocks were stored under the engine's hashes. Says which of ours have equal tokens.
    fn note_stored(&mut self, changes: &[Change]) -> Vec<u64> {
        let mut superseded = Vec::new();
        for change in changes {
            let Change::Stored(stored) = change else { continue };
            for block in &stored.blocks {
                let Some(tokens) = block.tokens() else {
                    self.opaque = true;
                    continue;
                };
                let content = plain_content(&tokens.unpacked());
                superseded.extend(self.by_content.get(&content).into_iter().flatten());
                self.remember(content);
            }
        }
        superseded
    }

    fn remember(&mut self, content: u64) {
        if self.contents.len() < MAX_CONTENTS {
            self.contents.insert(content);
        } else {
            self.opaque = true;
        }
    }

    /// Our hashes of all that is held, by the last report of each.
    fn in_order(&self) -> Vec<u64> {
        let mut all: Vec<(u64, u64)> = self.held.iter().map(|(hash, held)| (held.report, *hash)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, hash)| hash).collect()
    }

    fn take_out(&mut self, hash: u64) {
        let Some(held) = self.held.remove(&hash) else { return };
        if let Some(hashes) = self.by_content.get_mut(&held.content) {
            hashes.retain(|other| *other != hash);
            if hashes.is_empty() {
                self.by_content.remove(&held.content);
            }
        }
    }

    /// Of the blocks beyond the bound, the oldest; of one report, the last ones of the prompt.
    fn oldest_beyond_bound(&mut self) -> Vec<u64> {
        let mut beyond = self.held.len().saturating_sub(MAX_BLOCKS);
        let mut oldest = Vec::new();
        while beyond > 0 {
            let Some((report, hash)) = self.order.pop_front() else { break };
            if self.held.get(&hash).is_some_and(|held| held.report == report) {
                oldest.push(hash);
                beyond -= 1;
            }
        }
        if self.order.len() > 2 * MAX_BLOCKS {
            let held = &self.held;
            self.order.retain(|(report, hash)| held.get(hash).is_some_and(|held| held.report == *report));
        }
        oldest
    }
}

impl Interpreter {
    /// From now on reports about requests are accepted. Call it before the first batch: what was stored
    /// before is not known to it.
    pub fn accept_evidence(&mut self, ledger: &Ledger) {
        // Who went on from a memory accepted them all along.
        if !std::mem::replace(&mut self.evidence.accepted, true) {
            self.evidence.opaque |= ledger.state().entries() > 0;
        }
    }

    /// How many blocks are held because the engine reported them as cached.
    pub fn evidence_blocks(&self) -> u64 {
        self.evidence.len()
    }

    /// A request is about to be sent to the engine. `None` where nothing that it reports could be recorded.
    pub fn mark_request(&self, ledger: &Ledger) -> Option<RequestMark> {
        self.takes_evidence(ledger).then_some(RequestMark(self.evidence.generation))
    }

    /// The engine reported how many tokens of a plain prompt it had cached: no adapter, salt, image or other
    /// key. Says how many blocks are held by that; 0 where the report cannot be used.
    pub fn prove_prefix(
        &mut self,
        ledger: &mut Ledger,
        mark: RequestMark,
        tokens: &[u32],
        cached_tokens: u64,
    ) -> usize {
        if self.mark_request(ledger) != Some(mark) {
            return 0;
        }
        let Some((block_size, place)) =
            ledger.block_size().filter(|&size| size > 0).zip(device_place(ledger))
        else {
            return 0;
        };
        let size = block_size as usize;
        let whole = usize::try_from(cached_tokens).unwrap_or(usize::MAX).min(tokens.len()) / size;
        let mut contents = Vec::new();
        hash_blocks(&tokens[..whole * size], size, Namespace::PLAIN, &mut contents);
        let mut reading = Reading::default();
        let proven = self.hold_prefix(ledger, tokens, block_size, &contents, place, &mut reading);
        let oldest = self.evidence.oldest_beyond_bound();
        self.release_evidence(ledger, oldest, place, &mut reading);
        ledger.release_left(&mut reading.draft);
        if !reading.draft.changes.is_empty() {
            self.commit(ledger, reading.draft);
        }
        proven
    }

    /// Holds the blocks of a prompt up to the first that the engine stored under a hash of its own.
    fn hold_prefix(
        &mut self,
        ledger: &mut Ledger,
        tokens: &[u32],
        block_size: u32,
        contents: &[u64],
        place: PlaceId,
        reading: &mut Reading,
    ) -> usize {
        self.evidence.reports += 1;
        let report = self.evidence.reports;
        let (mut prefix, mut parent) = (None, Parent::Root);
        let mut hashes = Vec::new();
        let mut blocks = Vec::new();
        for (content, tokens) in contents.iter().zip(tokens.chunks_exact(block_size as usize)) {
            if self.evidence.contents.contains(content) {
                break;
            }
            prefix = Some(chain_hash(prefix, *content));
            let hash = prefix.unwrap_or_default() ^ OWN_HASHES;
            if let Some(held) = self.evidence.held.get_mut(&hash) {
                held.report = report;
            } else {
                // A block of the engine has this hash: whose it is is unknown.
                if ledger.state().find(hash).is_some_and(|slot| ledger.state().held_where(slot, |_| true)) {
                    break;
                }
                let chain = Chain::new((block_size, parent), tokens, Arc::default(), None);
                let Ok(slot) = ledger.slot(hash) else { break };
                if ledger.state().chain(slot, block_size).is_none()
                    && ledger.define(slot, chain, &mut reading.draft).is_err()
                {
                    break;
                }
                ledger.hold_known(slot, place, 1, &mut reading.draft);
                if let Some(chain) = ledger.state().chain(slot, block_size) {
                    blocks.push(ledger.known_block(slot, chain, 1));
                }
                self.evidence.held.insert(hash, Held { content: *content, report });
                self.evidence.by_content.entry(*content).or_default().push(hash);
            }
            hashes.push(hash);
            parent = Parent::Block(hash);
        }
        self.evidence.order.extend(hashes.iter().rev().map(|hash| (report, *hash)));
        if !blocks.is_empty() {
            ledger.counters.proven_blocks += blocks.len() as u64;
            let place = ledger.state().places.get(place).clone();
            reading.draft.tell_proven(&place, blocks, block_size, None);
        }
        hashes.len()
    }

    /// At the end of a batch: lets go of what may have been removed, and of what is known under the engine's
    /// hash.
    pub(super) fn settle_evidence(&mut self, ledger: &mut Ledger, before: Counted, reading: &mut Reading) {
        if !self.evidence.accepted {
            return;
        }
        let superseded = self.evidence.note_stored(&reading.draft.changes);
        let may_be_gone = before != count(ledger);
        if may_be_gone || !self.takes_evidence(ledger) {
            self.evidence.generation += 1;
        }
        if self.evidence.held.is_empty() {
            return;
        }
        let Some(place) = device_place(ledger) else { return };
        let gone =
            if may_be_gone || !self.takes_evidence(ledger) { self.evidence.in_order() } else { superseded };
        self.release_evidence(ledger, gone, place, reading);
        ledger.release_left(&mut reading.draft);
    }

    /// Blocks came under the engine's hashes, without their tokens: any of them may be one of ours.
    pub(super) fn void_evidence(&mut self, ledger: &mut Ledger, reading: &mut Reading) {
        if !self.evidence.accepted {
            return;
        }
        self.evidence.opaque = true;
        self.evidence.generation += 1;
        let Some(place) = device_place(ledger) else { return };
        let all = self.evidence.in_order();
        self.release_evidence(ledger, all, place, reading);
    }

    fn release_evidence(
        &mut self,
        ledger: &mut Ledger,
        hashes: Vec<u64>,
        place: PlaceId,
        reading: &mut Reading,
    ) {
        let mut blocks = Vec::with_capacity(hashes.len());
        for hash in hashes {
            if !self.evidence.held.contains_key(&hash) {
                continue;
            }
            self.evidence.take_out(hash);
            // A clear may have taken it with everything else.
            let slot = ledger.state().find(hash).filter(|&slot| ledger.state().copies(slot, place) > 0);
            if let Some(slot) = slot {
                blocks.push(self.take_copies(ledger, slot, hash, place, u32::MAX, reading));
            }
        }
        if !blocks.is_empty() {
            let place = ledger.state().places.get(place).clone();
            reading.draft.tell_removed(place, blocks);
        }
    }

    /// Whether the past of the stream is unknown, and nothing else keeps it from being exact. Engines that
    /// tell a flush by removing all that they hold, groups, levels or partial blocks are left out: there a
    /// hash of ours would be in the way, or a report says too little.
    fn takes_evidence(&self, ledger: &Ledger) -> bool {
        let semantics = &self.options.semantics;
        let unknown_past = |reason| {
            matches!(
                reason,
                Reason::History
                    | Reason::Gap
                    | Reason::Unproven
                    | Reason::Undecodable
                    | Reason::UnprovenFlush
            )
        };
        let active = ledger.trust().active();
        self.evidence.accepted
            && !self.evidence.opaque
            && ledger.continuity() == Continuity::Live
            && !active.is_empty()
            && active.iter().all(|active| unknown_past(active.reason))
            && !semantics.flushes_by_removals
            && !semantics.windows
            && !semantics.partial_blocks
            && !ledger.last_attributes.bigrams
            && !ledger.sides.are_there()
            && !ledger.state().has_other_tiers()
    }
}

/// The content of a block as if it had neither adapter nor salt nor keys.
fn plain_content(tokens: &[u32]) -> u64 {
    let mut contents = Vec::with_capacity(1);
    hash_blocks(tokens, tokens.len().max(1), Namespace::PLAIN, &mut contents);
    contents.pop().unwrap_or_default()
}

/// What is counted before a batch; see [`Interpreter::settle_evidence`].
pub(super) fn count(ledger: &Ledger) -> Counted {
    let counters = &ledger.counters;
    Counted([counters.unknown_removals, counters.misplaced_removals, counters.clears])
}

/// The device, where blocks are whole prefixes.
fn device_place(ledger: &Ledger) -> Option<PlaceId> {
    let mut places = ledger.state().places.iter();
    places.find(|(_, place)| place.tier == Tier::Device && place.is_main()).map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_remembered_within_their_bound() {
        let mut evidence = Evidence::default();
        for content in 0..MAX_CONTENTS as u64 {
            evidence.remember(content);
        }
        assert!(!evidence.opaque);
        for content in 0..MAX_CONTENTS as u64 {
            evidence.remember(u64::MAX - content);
        }
        assert!(evidence.opaque, "nothing is recorded any more");
        assert_eq!(evidence.contents.len(), MAX_CONTENTS);
        // While a table grows there are two, the old one half as large: a content and a byte for each place.
        let places = (evidence.contents.capacity() * 8 / 7).next_power_of_two();
        assert!((places + places / 2) * (size_of::<u64>() + 1) <= 32 << 20);
        evidence.forget();
        assert!(!evidence.opaque && evidence.contents.is_empty());
    }
}
