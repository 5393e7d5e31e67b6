//! What every stream holds, by content: one index per model and block size, fed by the journals, and the
//! question that is asked of all of them.
//!
//! ```text
//! Catalog ── Roster (a model) ── Table ─┬─ Member (a stream): its view
//!                                       └─ Keyspace (a block size): its index
//! StreamFeed (under the stream's lock) writes both: its own view, its own slots
//! ```

mod answer;
mod ask;
mod bits;
mod census;
mod changes;
mod feed;
mod freshness;
mod needs;
mod prompt;
mod question;
mod roster;
mod view;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvplane_core::StreamId;
use kvplane_index::{Options, Refused, Stats};
use parking_lot::RwLock;
use tokio::sync::Notify;

pub use answer::{Answer, Counts, GroupLength, Match, Note};
pub use ask::Listing;
pub use feed::StreamFeed;
pub use freshness::{Freshness, age_ms};
pub use prompt::{Prompt, PromptKeys};
pub use question::{Asking, DEFAULT_LIMIT, Question, check_length};
pub use roster::{Identity, Member, Roster};
pub use view::View;

/// Blocks that are reclaimed at a time: well below a millisecond of a worker's time.
const RECLAIM_STEP: usize = 4_096;
/// Between two steps others get their turn.
const RECLAIM_PAUSE: Duration = Duration::from_millis(1);

/// All indexes.
#[derive(Debug)]
pub struct Catalog {
    options: Options,
    models: RwLock<BTreeMap<String, Arc<Roster>>>,
    /// Something was cleared or removed, or the catalog is gone.
    to_reclaim: Arc<Notify>,
}

/// What one index holds, and what it did not take.
#[derive(Debug, Clone)]
pub struct IndexStats {
    /// The model.
    pub model: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Its positions are pairs of tokens.
    pub bigrams: bool,
    /// What it holds.
    pub stats: Stats,
}

impl Catalog {
    /// An empty catalog; `options` bound each index.
    pub fn new(options: Options) -> Arc<Self> {
        Arc::new(Self { options, models: RwLock::default(), to_reclaim: Arc::default() })
    }

    /// The streams of a model.
    pub fn model(&self, name: &str) -> Option<Arc<Roster>> {
        self.models.read().get(name).cloned()
    }

    /// The models that there are.
    pub fn models(&self) -> Vec<String> {
        self.models.read().keys().cloned().collect()
    }

    /// What every index holds.
    pub fn stats(&self) -> Vec<IndexStats> {
        let rosters: Vec<Arc<Roster>> = self.models.read().values().cloned().collect();
        let of_one = |roster: &Arc<Roster>| {
            let (model, table) = (roster.model.clone(), roster.table());
            let stats = table.keyspaces.iter().map(|keyspace| IndexStats {
                model: model.clone(),
                block_size: keyspace.shape.size,
                bigrams: keyspace.shape.bigrams,
                stats: keyspace.index.stats(),
            });
            stats.collect::<Vec<_>>()
        };
        rosters.iter().flat_map(of_one).collect()
    }

    /// How often a store was not taken, by model and reason.
    pub fn refused(&self) -> Vec<(String, [(Refused, u64); 2])> {
        let counted = |roster: &Roster| {
            [Refused::Budget, Refused::Waiting].map(|refused| (refused, roster.refused.get(refused)))
        };
        self.models.read().values().map(|roster| (roster.model.clone(), counted(roster))).collect()
    }

    /// A stream comes. It is in answers until its feed is dropped.
    pub fn join(
        self: &Arc<Self>,
        id: StreamId,
        identity: Identity,
        block_size: Option<u32>,
        view: View,
        freshness: Arc<Freshness>,
    ) -> StreamFeed {
        let mut models = self.models.write();
        let roster = models.entry(identity.model.clone());
        let new = || Arc::new(Roster::new(&identity.model, self.options.clone()));
        let roster = roster.or_insert_with(new).clone();
        let member = roster.join(id, identity, block_size, view, freshness);
        StreamFeed::new(self.clone(), roster, member, view)
    }

    fn leave(&self, roster: &Roster, member: &Member) {
        let mut models = self.models.write();
        if roster.leave(member) {
            models.remove(&roster.model);
        }
    }

    fn wake_reclaimer(&self) {
        self.to_reclaim.notify_one();
    }

    /// Gives back what dead generations hold, a little at a time, for as long as there is a catalog.
    pub fn reclaim(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let catalog = Arc::downgrade(self);
        let to_reclaim = self.to_reclaim.clone();
        async move {
            loop {
                to_reclaim.notified().await;
                loop {
                    let Some(catalog) = Weak::upgrade(&catalog) else { return };
                    if !catalog.reclaim_step() {
                        break;
                    }
                    drop(catalog);
                    tokio::time::sleep(RECLAIM_PAUSE).await;
                }
            }
        }
    }

    /// One step in every index. Says whether there is more to do.
    fn reclaim_step(&self) -> bool {
        let rosters: Vec<Arc<Roster>> = self.models.read().values().cloned().collect();
        let mut more = false;
        for roster in rosters {
            for keyspace in &roster.table().keyspaces {
                more |= keyspace.index.reclaim(RECLAIM_STEP);
            }
        }
        more
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        self.to_reclaim.notify_one();
    }
}

#[cfg(test)]
mod tests;
