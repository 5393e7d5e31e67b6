//! A replica that is fed by the wire alone.

use std::collections::BTreeMap;

use kvplane_ingest::Stream;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::subscribe_response::Item;
use tonic::Streaming;

use crate::DEADLINE;
use crate::rig::Rig;

/// A replica fed by the wire alone.
#[derive(Debug)]
pub struct Subscriber {
    messages: Streaming<proto::SubscribeResponse>,
    /// What it holds: hash to copies.
    pub blocks: BTreeMap<u64, u64>,
    /// Every reset that it received.
    pub resets: Vec<proto::ResetReason>,
    /// The position of the last message.
    pub cursor: proto::Cursor,
    /// Batches that it received.
    pub batches: usize,
    /// Streams that were removed.
    pub gone: usize,
    /// The continuity of the stream, in the order in which it was announced.
    pub continuities: Vec<proto::Continuity>,
    /// A snapshot is under way.
    partial: bool,
}

impl Subscriber {
    /// A replica of what these messages say.
    pub fn new(messages: Streaming<proto::SubscribeResponse>) -> Self {
        Self {
            messages,
            blocks: BTreeMap::new(),
            resets: Vec::new(),
            cursor: proto::Cursor::default(),
            batches: 0,
            gone: 0,
            continuities: Vec::new(),
            partial: false,
        }
    }

    /// The next message, applied.
    pub async fn next(&mut self) -> Result<(), tonic::Status> {
        let message =
            tokio::time::timeout(DEADLINE, self.messages.message()).await.expect("no message came")?;
        let message = message.expect("the stream ended without a status");
        self.cursor = proto::Cursor { epoch: message.epoch, sequence: message.sequence, digest: None };
        match message.item.unwrap() {
            Item::Reset(reset) => {
                self.resets.push(reset.reason());
                self.blocks.clear();
                self.partial = true;
            }
            Item::Snapshot(chunk) => {
                self.continuities.extend(chunk.last.then(|| chunk.continuity()));
                chunk.stored.iter().for_each(|stored| self.stored(stored));
                self.partial = !chunk.last;
            }
            Item::Standing(continuity) => self.continuities.push(continuity.continuity()),
            Item::Gone(_) => {
                self.gone += 1;
                self.blocks.clear();
            }
            Item::Batch(batch) => {
                self.batches += 1;
                self.continuities.extend(Some(batch.continuity()).filter(|reported| *reported as i32 != 0));
                for event in batch.events {
                    self.event(event.kind.unwrap());
                }
            }
        }
        Ok(())
    }

    fn event(&mut self, kind: proto::event::Kind) {
        use proto::event::Kind;
        match kind {
            Kind::Stored(stored) => self.stored(&stored),
            Kind::Removed(removed) => {
                for block in removed.blocks {
                    if block.copies == 0 {
                        self.blocks.remove(&block.hash);
                    } else {
                        self.blocks.insert(block.hash, u64::from(block.copies));
                    }
                }
            }
            Kind::Cleared(_) | Kind::Dropped(_) => self.blocks.clear(),
        }
    }

    fn stored(&mut self, stored: &proto::Stored) {
        for block in stored.blocks.iter().filter(|block| block.copies > 0) {
            self.blocks.insert(block.hash, u64::from(block.copies));
        }
    }

    /// Follows until it stands where the stream stands.
    pub async fn catch_up(&mut self, rig: &Rig) {
        self.follow_to(&rig.stream(0)).await;
    }

    /// Follows until it stands where this stream stands.
    pub async fn follow_to(&mut self, stream: &Stream) {
        loop {
            let cursor = stream.cursor();
            let here = self.cursor.epoch == cursor.epoch.as_u64() && self.cursor.sequence == cursor.sequence;
            if here && !self.partial {
                return;
            }
            self.next().await.unwrap();
        }
    }
}
