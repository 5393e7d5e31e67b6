//! An engine's own word, for somebody who wants to look at it and not to follow the engine.

use kvplane_core::EngineKind;
use kvplane_transport::HttpClient;

use super::place::{Found, FoundRank, place};
use super::spec::{DiscoverySpec, Overrides};
use super::{Asker, Refusal};

/// What an engine says of its publishers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineWord {
    /// Its ranks as the engine itself has them.
    pub says: Vec<FoundRank>,
    /// Its topic, where all its publishers have the same one.
    pub topic: String,
    /// Tokens per block.
    pub block_size: Option<u32>,
    /// It serves adapters, and its events do not name them.
    pub untold_adapters: bool,
    /// Its ranks as a plane would follow them: what the operator configured wins.
    pub followed: Vec<FoundRank>,
    /// The topic that a plane would follow.
    pub followed_topic: String,
    /// What is wrong with some of these ranks, in words.
    pub complaints: Vec<String>,
}

/// Asks an engine once where its ranks publish. Changes nothing anywhere.
pub async fn ask_engine(kind: EngineKind, spec: &DiscoverySpec) -> Result<EngineWord, Refusal> {
    let asker = Asker::new(kind, spec.clone(), HttpClient::new());
    let (description, host) = (asker.describe().await?, asker.host());
    let said = place(&Overrides::default(), &host, &description);
    let Found { ranks: followed, topic: followed_topic, complaints, .. } =
        place(&spec.overrides, &host, &description);
    Ok(EngineWord {
        says: said.ranks,
        topic: said.topic,
        block_size: description.block_size,
        untold_adapters: description.untold_adapters,
        followed,
        followed_topic,
        complaints,
    })
}
