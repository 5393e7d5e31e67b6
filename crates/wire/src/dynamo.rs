//! What a Dynamo router reads when it recovers a worker: `WorkerKvQueryResponse` as JSON.
//!
//! Names and order of fields are the peer's; absent parents, positions and multimodal parts are written as
//! null. Kinds of events are in snake case, kinds of responses are not.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// The answer to a recovery query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerKvQueryResponse {
    /// The events from the requested one to the newest, with their own ids.
    Events {
        /// In order.
        events: Vec<RouterEvent>,
        /// The newest id; the reader's cursor from now on.
        last_event_id: u64,
    },
    /// The whole state as events: the reader replaces what it had. Ids of the events mean nothing.
    TreeDump {
        /// Parents before children.
        events: Vec<RouterEvent>,
        /// The newest id that the dump surely holds.
        last_event_id: u64,
        /// What the reader must drop first.
        #[serde(default)]
        reset_scope: ResetScope,
    },
    /// The requested start lies beyond what exists.
    TooNew {
        /// As requested.
        requested_start: u64,
        /// As requested; the newest when none was.
        requested_end: u64,
        /// The newest id.
        newest_available: u64,
    },
    /// The end lies before the start.
    InvalidRange {
        /// As requested.
        start_id: u64,
        /// As requested.
        end_id: u64,
    },
    /// The query cannot be answered.
    Error(String),
}

/// What a dump replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetScope {
    /// All tiers and domains of the worker's rank.
    #[default]
    All,
    /// One domain.
    Domain(ResidencyDomain),
}

/// One event of one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterEvent {
    /// The worker.
    pub worker_id: u64,
    /// Where the blocks lie.
    #[serde(default)]
    pub storage_tier: StorageTier,
    /// Who holds them; always written here, but old writers leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residency_domain: Option<ResidencyDomain>,
    /// What happened.
    pub event: KvCacheEvent,
}

/// Where blocks lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageTier {
    /// On the accelerator.
    #[default]
    Device,
    /// In the host's memory.
    HostPinned,
    /// On a disk.
    Disk,
    /// Somewhere else.
    External,
}

/// Who holds blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResidencyDomain {
    /// The worker itself.
    Worker,
    /// A cache that outlives the worker.
    CacheOwner,
}

/// An event with its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCacheEvent {
    /// Its number among the events of its worker and rank.
    pub event_id: u64,
    /// What happened.
    pub data: KvCacheEventData,
    /// The data-parallel rank.
    #[serde(default)]
    pub dp_rank: u32,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvCacheEventData {
    /// Blocks became resident.
    Stored(KvCacheStoreData),
    /// Blocks went away.
    Removed(KvCacheRemoveData),
    /// Everything of the worker's rank went away.
    Cleared,
}

/// Blocks that follow one another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCacheStoreData {
    /// The engine's hash of the block before the first; null at the start of a prompt.
    pub parent_hash: Option<u64>,
    /// The first block's position, if given.
    pub start_position: Option<u32>,
    /// The blocks.
    pub blocks: Vec<KvCacheStoredBlockData>,
}

/// One block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCacheStoredBlockData {
    /// The engine's hash.
    pub block_hash: u64,
    /// The hash of the content alone.
    pub tokens_hash: u64,
    /// Multimodal items, if given.
    pub mm_extra_info: Option<BlockExtraInfo>,
}

/// Multimodal items of a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockExtraInfo {
    /// The items.
    pub mm_objects: Vec<MultimodalObject>,
}

/// One multimodal item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MultimodalObject {
    /// Its identity.
    pub mm_hash: u64,
    /// The token ranges that it covers: start and end.
    pub offsets: Vec<(usize, usize)>,
}

/// Blocks that went away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCacheRemoveData {
    /// The engine's hashes.
    pub block_hashes: Vec<u64>,
}

/// What an indexer dumps, by `model:group`.
pub type IndexerDump = HashMap<String, IndexerDumpPart>;

/// What an indexer knows of one model and group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IndexerDumpPart {
    /// Tokens per block.
    pub block_size: u32,
    /// Stores, parents before children.
    pub events: Vec<RouterEvent>,
    /// kvplane's own: at which batch each worker's rank was dumped. Dynamo's indexer has none.
    pub streams: Vec<DumpedStream>,
    /// Dynamo's indexer could not dump this part.
    pub error: Option<String>,
}

/// At which batch a worker's rank was dumped, and what that is worth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DumpedStream {
    /// The worker.
    pub worker_id: u64,
    /// The data-parallel rank.
    pub dp_rank: u32,
    /// The publisher's number of the last batch that the dump has.
    pub sequence: u64,
    /// That batch's payload, as XXH3-128 in hexadecimal digits.
    pub digest: String,
    /// What the state is worth.
    pub trust: String,
    /// Groups of the cache; the dump has the main one.
    pub groups: usize,
}

impl RouterEvent {
    /// An event of a worker's own blocks.
    pub fn new(worker_id: u64, storage_tier: StorageTier, event: KvCacheEvent) -> Self {
        Self { worker_id, storage_tier, residency_domain: Some(ResidencyDomain::Worker), event }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORED: &str = r#"{"worker_id":7,"storage_tier":"device","residency_domain":"worker","event":{"event_id":4,"data":{"stored":{"parent_hash":null,"start_position":null,"blocks":[{"block_hash":18446744073709551615,"tokens_hash":11,"mm_extra_info":null}]}},"dp_rank":0}}"#;
    const REMOVED: &str = r#"{"worker_id":7,"storage_tier":"device","residency_domain":"worker","event":{"event_id":4,"data":{"removed":{"block_hashes":[1]}},"dp_rank":0}}"#;
    const CLEARED: &str = r#"{"worker_id":7,"storage_tier":"device","residency_domain":"worker","event":{"event_id":4,"data":"cleared","dp_rank":0}}"#;

    fn event(data: KvCacheEventData) -> RouterEvent {
        RouterEvent::new(7, StorageTier::Device, KvCacheEvent { event_id: 4, data, dp_rank: 0 })
    }

    fn samples() -> [(RouterEvent, &'static str); 3] {
        let block = KvCacheStoredBlockData { block_hash: u64::MAX, tokens_hash: 11, mm_extra_info: None };
        let store = KvCacheStoreData { parent_hash: None, start_position: None, blocks: vec![block] };
        let remove = KvCacheRemoveData { block_hashes: vec![1] };
        [
            (event(KvCacheEventData::Stored(store)), STORED),
            (event(KvCacheEventData::Removed(remove)), REMOVED),
            (event(KvCacheEventData::Cleared), CLEARED),
        ]
    }

    #[test]
    fn events_are_the_peers_bytes() {
        for (event, json) in samples() {
            assert_eq!(serde_json::to_string(&event).unwrap(), json);
            assert_eq!(serde_json::from_str::<RouterEvent>(json).unwrap(), event);
        }
    }

    #[test]
    fn responses_are_the_peers_bytes() {
        use WorkerKvQueryResponse as Response;
        let events: Vec<_> = samples().into_iter().map(|(event, _)| event).collect();
        let list = format!("[{STORED},{REMOVED},{CLEARED}]");
        let responses = [
            (
                Response::Events { events: events.clone(), last_event_id: 4 },
                format!(r#"{{"Events":{{"events":{list},"last_event_id":4}}}}"#),
            ),
            (
                Response::TreeDump { events, last_event_id: 4, reset_scope: ResetScope::All },
                format!(r#"{{"TreeDump":{{"events":{list},"last_event_id":4,"reset_scope":"all"}}}}"#),
            ),
            (
                Response::TooNew { requested_start: 9, requested_end: 4, newest_available: 4 },
                r#"{"TooNew":{"requested_start":9,"requested_end":4,"newest_available":4}}"#.to_owned(),
            ),
            (
                Response::InvalidRange { start_id: 9, end_id: 4 },
                r#"{"InvalidRange":{"start_id":9,"end_id":4}}"#.to_owned(),
            ),
            (Response::Error("msg".to_owned()), r#"{"Error":"msg"}"#.to_owned()),
        ];
        for (response, json) in responses {
            assert_eq!(serde_json::to_string(&response).unwrap(), json);
            assert_eq!(serde_json::from_str::<Response>(&json).unwrap(), response);
        }
    }

    #[test]
    fn what_old_writers_leave_out() {
        let bare = r#"{"worker_id":1,"event":{"event_id":2,"data":"cleared"}}"#;
        let event: RouterEvent = serde_json::from_str(bare).unwrap();
        assert_eq!((event.storage_tier, event.residency_domain), (StorageTier::Device, None));
        let dump = r#"{"TreeDump":{"events":[],"last_event_id":0}}"#;
        let dump: WorkerKvQueryResponse = serde_json::from_str(dump).unwrap();
        let scope = ResetScope::All;
        assert_eq!(
            dump,
            WorkerKvQueryResponse::TreeDump { events: vec![], last_event_id: 0, reset_scope: scope }
        );
        let domain = serde_json::to_string(&ResetScope::Domain(ResidencyDomain::CacheOwner)).unwrap();
        assert_eq!(domain, r#"{"domain":"cache_owner"}"#);
    }
}
