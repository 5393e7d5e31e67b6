//! What is encoded how often, and where.

use std::sync::atomic::{AtomicUsize, Ordering};

use kvplane_core::{EngineId, StreamId};
use kvplane_ingest::Stream;
use kvplane_stream::{HandedOptions, JournalOptions};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedStored};

use super::*;

/// A plan whose messages are their numbers, and that counts how often one is encoded.
#[derive(Default)]
struct Counting {
    encoded: AtomicUsize,
    /// Threads that encoded at the same time, at most.
    busy: AtomicUsize,
    most_busy: AtomicUsize,
}

const MESSAGES: usize = 3 * RECENT;

impl Plan for Counting {
    fn messages(&self) -> usize {
        MESSAGES
    }

    fn encode(&self, index: usize) -> Bytes {
        let busy = self.busy.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_busy.fetch_max(busy, Ordering::SeqCst);
        self.encoded.fetch_add(1, Ordering::SeqCst);
        std::thread::yield_now();
        self.busy.fetch_sub(1, Ordering::SeqCst);
        vec![index as u8].into()
    }
}

async fn read(mut messages: Messages<Counting>) -> Vec<Bytes> {
    let mut read = Vec::new();
    while let Some(message) = messages.next().await {
        read.push(message.unwrap());
        tokio::task::yield_now().await;
    }
    read
}

/// Readers in step share every message. The runtime has one thread, so that the order is always the same.
#[tokio::test]
async fn subscribers_that_begin_together_are_encoded_for_once() {
    let planned = Arc::new(Planned::new(Counting::default()));
    let subscribers: Vec<_> = (0..50).map(|_| Messages::of(planned.clone())).collect();
    let all = futures::future::join_all(subscribers.into_iter().map(read)).await;
    let expected: Vec<Bytes> = (0..MESSAGES).map(|index| vec![index as u8].into()).collect();
    assert!(all.iter().all(|read| *read == expected));
    assert_eq!(planned.plan().encoded.load(Ordering::SeqCst), MESSAGES);
    assert_eq!(planned.plan().most_busy.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_last_few_messages_are_kept_and_none_for_a_single_subscriber() {
    let planned = Arc::new(Planned::new(Counting::default()));
    let encoded = |planned: &Arc<Planned<Counting>>| planned.plan().encoded.load(Ordering::SeqCst);
    planned.message(0).await.unwrap();
    assert!(planned.recent.lock().await.is_empty());
    let other = planned.clone();
    for index in 0..=RECENT {
        planned.message(index).await.unwrap();
    }
    assert_eq!(encoded(&planned), RECENT + 2);
    for index in 1..=RECENT {
        other.message(index).await.unwrap();
    }
    assert_eq!(encoded(&planned), RECENT + 2);
    other.message(0).await.unwrap();
    assert_eq!((encoded(&planned), planned.recent.lock().await.len()), (RECENT + 3, RECENT));
}

/// A batch of any size: a small one is encoded where it is asked for, a large one on another thread, once.
#[tokio::test]
async fn large_entries_are_encoded_elsewhere() {
    let id = StreamId::new(EngineId::new("e"), 0);
    let stream = Stream::handed_over(id, HandedOptions::default(), JournalOptions::default());
    let mut next = 1_u64;
    for blocks in [1, 20_000_u64] {
        let before = stream.cursor();
        let stored = OwnedStored {
            block_hashes: (next..next + blocks).map(OwnedHash::Unsigned).collect(),
            token_ids: (0..16 * blocks as u32).collect(),
            block_size: 16,
            ..OwnedStored::default()
        };
        next += blocks;
        stream.hand_events(None, &[OwnedEvent::Stored(stored)]).unwrap();
        let new = stream.read_after(before, 10).unwrap();
        let (tell, threads) = std::sync::mpsc::sync_channel(8);
        let encode = move |entry: &Entry| {
            entry.encoded(Protocol::Smg, |_| {
                tell.send(std::thread::current().id()).unwrap();
                Bytes::from_static(b"entry")
            })
        };
        for _ in 0..2 {
            assert_eq!(entries(&new, Protocol::Smg, encode.clone()).await.unwrap().len(), new.len());
        }
        let threads: Vec<_> = threads.try_iter().collect();
        assert_eq!(threads.len(), new.len(), "each is encoded once");
        let is_small = blocks == 1;
        assert!(threads.iter().all(|&thread| (thread == std::thread::current().id()) == is_small));
    }
}
