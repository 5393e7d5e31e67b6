//! What Dynamo's two trees share: events and prompts in its types.

use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};

use crate::workload::{Blocks, EngineHashes, Kind, Slice};

/// Its events own their blocks: applying one gives it away.
pub(super) fn stage(slice: &Slice, blocks: &Blocks) -> Vec<Option<RouterEvent>> {
    let hash = |engine, id| ExternalSequenceBlockHash(EngineHashes::Equal.of(engine, id));
    let events = slice.events.iter().enumerate().map(|(number, event)| {
        let engine = event.engine;
        let ids = slice.blocks(event).iter();
        let data = match event.kind {
            Kind::Store { parent } => KvCacheEventData::Stored(KvCacheStoreData {
                parent_hash: parent.map(|id| hash(engine, id)),
                start_position: None,
                blocks: ids
                    .map(|&id| KvCacheStoredBlockData {
                        block_hash: hash(engine, id),
                        tokens_hash: LocalBlockHash(blocks.content(id)),
                        mm_extra_info: None,
                    })
                    .collect(),
            }),
            Kind::Remove => KvCacheEventData::Removed(KvCacheRemoveData {
                block_hashes: ids.map(|&id| hash(engine, id)).collect(),
            }),
        };
        Some(RouterEvent::new(u64::from(engine), KvCacheEvent { event_id: number as u64, data, dp_rank: 0 }))
    });
    events.collect()
}

pub(super) fn prompts(prompts: &[Vec<u64>]) -> Vec<Vec<LocalBlockHash>> {
    prompts.iter().map(|prompt| prompt.iter().copied().map(LocalBlockHash).collect()).collect()
}

pub(super) fn spread(scores: &OverlapScores, depths: &mut [u32]) {
    depths.fill(0);
    for (worker, blocks) in &scores.scores {
        depths[worker.worker_id as usize] = *blocks;
    }
}
