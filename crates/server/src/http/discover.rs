//! `/v1/discover`: how sources of engines are, and what became of every pod.

use axum::Json;
use axum::extract::State;
use kvplane_access::ApiError;
use kvplane_kubernetes::{Board, PodReport, SourceReport};
use schemars::JsonSchema;
use serde::Serialize;

use super::parameters::{Pairs, Parameters};

/// Pods of one answer: some 2 KiB for each.
const MAX_PODS: usize = 10_000;

/// The answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Discovered {
    /// Every entry of `[[discover]]`.
    sources: Vec<SourceReport>,
    /// What became of their pods, or of the one that `pod` names.
    pods: Vec<PodReport>,
}

pub(super) async fn page(State(board): State<Board>, query: Pairs) -> Result<Json<Discovered>, ApiError> {
    let mut given = Parameters::read(query, &[])?;
    let pod = given.text("pod", &[])?;
    given.finish()?;
    Ok(Json(Discovered { sources: board.sources(), pods: board.pods(pod.as_deref(), MAX_PODS) }))
}
