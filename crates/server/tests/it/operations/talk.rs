//! Asking over both protocols, and what both answer alike.

use std::collections::BTreeMap;

use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::admin_client::AdminClient;
use kvplane_proto::kvplane::v1::progress::Item;
use serde_json::{Value, json};
use tonic::{Code, Status, Streaming};

use crate::rig::{Rig, call};

/// A rank's verdict, as both protocols tell it.
#[derive(Debug, Clone, PartialEq)]
pub struct RankResult {
    pub verdict: String,
    pub why: String,
    pub may_still_complete: bool,
    pub cleared: Vec<String>,
    pub remaining: Vec<(String, Option<u64>)>,
}

/// Ranks by engine and number.
pub type Ranks = BTreeMap<(String, u32), RankResult>;

/// `POST /flush_cache`: the status, and every rank's verdict.
pub async fn flush_over_http(rig: &Rig, body: Value) -> (u16, Ranks) {
    let (status, answer) = call(rig.http, "POST", "/flush_cache", &body).await;
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let ranks = answer["ranks"].as_array().unwrap_or_else(|| panic!("{status} {answer}")).iter();
    let ranks = ranks.map(|rank| {
        let remaining = rank["tiers_remaining"].as_array().unwrap().iter();
        let reported = RankResult {
            verdict: rank["verdict"].as_str().unwrap().to_owned(),
            why: rank["why"].as_str().unwrap().to_owned(),
            may_still_complete: rank["may_still_complete"].as_bool().unwrap(),
            cleared: texts(&rank["tiers_cleared"]),
            remaining: remaining
                .map(|left| (left["tier"].as_str().unwrap().to_owned(), left["blocks"].as_u64()))
                .collect(),
        };
        let name = rank["engine"].as_str().unwrap().to_owned();
        ((name, u32::try_from(rank["rank"].as_u64().unwrap()).unwrap()), reported)
    });
    (status, ranks.collect())
}

pub async fn admin(rig: &Rig) -> AdminClient<tonic::transport::Channel> {
    AdminClient::connect(format!("http://{}", rig.grpc)).await.unwrap()
}

/// What every operation takes, as JSON has it.
pub fn operation(body: &Value) -> proto::OperationRequest {
    let list = |name: &str| -> Vec<String> {
        let value = body.get(name).cloned().unwrap_or(json!([]));
        let values = if value.is_array() { value } else { json!([value]) };
        serde_json::from_value(values).unwrap()
    };
    let selection =
        proto::EngineSelection { engines: list("engine"), models: list("model"), kinds: list("kind") };
    proto::OperationRequest {
        selection: Some(selection),
        deadline_s: body["deadline_s"].as_f64(),
        dry_run: body["dry_run"].as_bool().unwrap_or(false),
    }
}

pub fn flush_request(body: &Value) -> proto::FlushRequest {
    let flag = |name: &str| body[name].as_bool().unwrap_or(false);
    proto::FlushRequest {
        operation: Some(operation(body)),
        timeout_s: body["timeout_s"].as_f64().unwrap_or(0.0),
        proof_timeout_s: body["proof_timeout_s"].as_f64(),
        nudge: flag("nudge"),
        reset_running: flag("reset_running"),
        reset_external: flag("reset_external"),
    }
}

/// `Flush`: the outcome as the status that HTTP has for it, and every rank's verdict. The same body as over
/// HTTP.
pub async fn flush_over_grpc(rig: &Rig, body: Value) -> (u16, Ranks) {
    let steps = admin(rig).await.flush(flush_request(&body)).await.unwrap().into_inner();
    let (plan, ranks, summary) = all(steps).await.unwrap();
    assert_eq!(plan.verb, "flush");
    assert_eq!(ranks.len(), plan.ranks.len());
    let status = match summary.unwrap().outcome() {
        proto::Outcome::All => 200,
        proto::Outcome::Partly => 207,
        proto::Outcome::None => 502,
        proto::Outcome::Unspecified => panic!("no outcome"),
    };
    let ranks = ranks.into_iter().map(|rank| {
        let verdict = rank.verdict().as_str_name().trim_start_matches("VERDICT_").to_lowercase();
        let remaining = rank.tiers_remaining.into_iter().map(|left| (left.tier, left.blocks)).collect();
        let reported = RankResult {
            verdict,
            why: rank.why,
            may_still_complete: rank.may_still_complete,
            cleared: rank.tiers_cleared,
            remaining,
        };
        ((rank.engine, rank.rank), reported)
    });
    (status, ranks.collect())
}

/// Everything that an operation tells: the plan, the last report of each rank, and the summary.
pub async fn all(
    mut steps: Streaming<proto::Progress>,
) -> Result<(proto::Plan, Vec<proto::RankReport>, Option<proto::Summary>), Status> {
    let (mut plan, mut ranks, mut summary) = (None, Vec::new(), None);
    while let Some(step) = steps.message().await? {
        assert!(summary.is_none(), "nothing follows the summary");
        match step.item.unwrap() {
            Item::Plan(reported) => assert!(plan.replace(reported).is_none()),
            Item::Rank(rank) if rank.phase() == proto::Phase::Over => ranks.push(rank),
            Item::Rank(rank) => assert_eq!(rank.verdict(), proto::Verdict::Unspecified),
            Item::Summary(reported) => summary = Some(reported),
        }
    }
    Ok((plan.unwrap(), ranks, summary))
}

/// The code with which an operation ends before it began.
pub async fn refused(rig: &Rig, body: &Value) -> (Code, String) {
    let status = admin(rig).await.flush(flush_request(body)).await.unwrap_err();
    (status.code(), status.message().to_owned())
}
