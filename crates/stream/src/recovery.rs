//! What a Dynamo router gets of a stream when it recovers (`WorkerKvQueryResponse`).
//!
//! Its reader counts no copies, knows no groups and has no field for trust: it is given residency
//! transitions, and nothing at all while the stream's state is not worth crediting.

use std::sync::Arc;

use kvplane_core::{Continuity, Reason, Tier, Trust, TrustState};
use kvplane_wire::dynamo::{
    KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData, KvCacheStoredBlockData, ResetScope,
    RouterEvent, StorageTier, WorkerKvQueryResponse as Answer,
};

use crate::change::{Entry, Transition};
use crate::ledger::{Range, Snapshot, Window};

/// A stream, as peers name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worker {
    /// The engine's number.
    pub id: u64,
    /// The data-parallel rank.
    pub rank: u32,
}

/// Which numbers events have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbering {
    /// Each transition has its own, and none is left out.
    Transitions,
    /// Those that batches were handed over with. All that a batch did has its number, and a batch that did
    /// nothing is sent as a removal of no block: no number is left out but those that were never handed over.
    Batches,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// The first number wanted; without one, the whole state.
    pub start: Option<u64>,
    /// Only checked against `start`.
    pub end: Option<u64>,
}

impl Recovery {
    /// The answer to a question that makes no sense.
    pub fn refusal(self) -> Option<Answer> {
        let (start_id, end_id) = self.start.zip(self.end)?;
        (end_id < start_id).then_some(Answer::InvalidRange { start_id, end_id })
    }

    /// The answer from the window alone; `None` where the whole state must be sent.
    pub fn from_window(self, worker: Worker, numbering: Numbering, window: &Window) -> Option<Answer> {
        let start = self.start?;
        let range = match numbering {
            Numbering::Transitions => window.transitions_from(start),
            Numbering::Batches => window.batches_from(start),
        };
        match range {
            Range::Entries { entries, last: last_event_id } => {
                let events = match numbering {
                    Numbering::Transitions => worker.transitions(&entries, start),
                    Numbering::Batches => worker.batches(&entries, start),
                };
                Some(Answer::Events { events, last_event_id })
            }
            Range::TooNew { newest } => Some(Answer::TooNew {
                requested_start: start,
                requested_end: self.end.unwrap_or(newest),
                newest_available: newest,
            }),
            Range::Outside => None,
        }
    }
}

/// Why a stream's state is not worth giving out, if it is not.
pub fn withheld(trust: &TrustState, continuity: Continuity, credit: &[Trust]) -> Option<String> {
    if trust.has(Reason::Unheard) {
        return Some("nothing is known yet".to_owned());
    }
    if trust.is_credited_at(continuity, credit) {
        return None;
    }
    if continuity != Continuity::Live {
        return Some(format!("continuity is {continuity}"));
    }
    let reason = trust.worst().map_or("none", |worst| worst.reason.as_str());
    Some(format!("trust is {}, reason {reason}, which is not credited", trust.level()))
}

impl Worker {
    /// The whole state: a reader drops what it had. Numbers of its events mean nothing.
    pub fn dump(self, snapshot: &Snapshot, numbering: Numbering) -> Answer {
        let events = snapshot.as_transitions();
        let events = events.iter().enumerate().map(|(at, event)| self.event(at as u64, event)).collect();
        let last_event_id = match numbering {
            Numbering::Transitions => snapshot.last_event_id,
            Numbering::Batches => snapshot.engine_sequence.unwrap_or_default(),
        };
        Answer::TreeDump { events, last_event_id, reset_scope: ResetScope::All }
    }

    /// The transitions of `entries`, from number `start` on.
    fn transitions(self, entries: &[Arc<Entry>], start: u64) -> Vec<RouterEvent> {
        let numbered = entries.iter().flat_map(|entry| (entry.first_event_id..).zip(&entry.transitions));
        numbered.filter(|(id, _)| *id >= start).map(|(id, transition)| self.event(id, transition)).collect()
    }

    /// The transitions of `entries`, by the numbers that these were handed over with, from `start` on.
    fn batches(self, entries: &[Arc<Entry>], start: u64) -> Vec<RouterEvent> {
        let mut events = Vec::with_capacity(entries.len());
        let mut own = Vec::new();
        for entry in entries {
            let Some(number) = entry.engine_sequence else {
                own.extend(&entry.transitions);
                continue;
            };
            // What kvplane did, because numbers before this one are missing, stands under the last of those
            // that is asked for.
            let missing = number.saturating_sub(1).max(start);
            events.extend(own.drain(..).map(|transition| self.event(missing, transition)));
            if entry.transitions.is_empty() {
                let nothing = KvCacheRemoveData { block_hashes: Vec::new() };
                events.push(self.router_event(number, Tier::Device, KvCacheEventData::Removed(nothing)));
            }
            events.extend(entry.transitions.iter().map(|transition| self.event(number, transition)));
        }
        events
    }

    /// One transition under a number.
    pub fn event(self, event_id: u64, transition: &Transition) -> RouterEvent {
        let (tier, data) = match transition {
            Transition::Stored { tier, parent, blocks } => {
                let blocks = blocks.iter().map(|block| KvCacheStoredBlockData {
                    block_hash: block.hash,
                    tokens_hash: block.content,
                    mm_extra_info: None,
                });
                let data =
                    KvCacheStoreData { parent_hash: *parent, start_position: None, blocks: blocks.collect() };
                (*tier, KvCacheEventData::Stored(data))
            }
            Transition::Removed { tier, hashes } => {
                (*tier, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: hashes.clone() }))
            }
            Transition::Cleared => (Tier::Device, KvCacheEventData::Cleared),
        };
        self.router_event(event_id, tier, data)
    }

    fn router_event(self, event_id: u64, tier: Tier, data: KvCacheEventData) -> RouterEvent {
        let tier = match tier {
            Tier::Device => StorageTier::Device,
            Tier::Host => StorageTier::HostPinned,
            Tier::Disk => StorageTier::Disk,
            Tier::Remote | Tier::Unknown => StorageTier::External,
        };
        RouterEvent::new(self.id, tier, KvCacheEvent { event_id, data, dp_rank: self.rank })
    }
}
