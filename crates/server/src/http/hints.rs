//! The pages that an inference-cache controller uses: `/snapshot`, `/policy`, `/probe`. Their JSON is the
//! peer's; errors are ours.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use kvplane_access::ApiError;
use kvplane_core::{ErrorCode, PublicError};
use kvplane_hints::{Census, ReplicaCensus, Stats};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use time::OffsetDateTime;

use super::parameters::wrong_body;
use super::{policy, probe};
use crate::hints::Hints;
use crate::parts::Parts;

/// As much as the peer takes.
const MAX_POLICY: usize = 1 << 20;
const MAX_PROBE: usize = 4 << 10;

pub(super) fn routes(hints: Arc<Hints>) -> Router<Parts> {
    Router::new()
        .route("/snapshot", get(snapshot_page))
        .route("/policy", post(policy_page).put(policy_page))
        .route("/probe", post(probe_page))
        .with_state(hints)
}

/// The body, as JSON of a known form.
async fn read<T: DeserializeOwned>(request: Request, limit: usize) -> Result<T, PublicError> {
    let too_long = |_| PublicError::field("body", format!("breaks off, or has more than {limit} bytes"));
    let body = axum::body::to_bytes(request.into_body(), limit).await.map_err(too_long)?;
    serde_json::from_slice(&body).map_err(wrong_body)
}

async fn policy_page(State(hints): State<Arc<Hints>>, request: Request) -> Result<StatusCode, ApiError> {
    hints.counters.policy_page.fetch_add(1, Ordering::Relaxed);
    let pushed: policy::PolicySnapshot = read(request, MAX_POLICY).await?;
    let policies = pushed.policies(&hints.options.policies.default)?;
    let (tenants, quotas) = (policies.by_tenant.len(), policies.quotas.len());
    // What entries were asked for so far may have to be forgotten, one by one.
    let replaced = tokio::task::spawn_blocking(move || hints.book.set_policies(policies)).await;
    replaced.map_err(|_| PublicError::new(ErrorCode::Internal, "the policies could not be replaced"))?;
    tracing::info!(tenants, quotas, "policies for hints replaced");
    Ok(StatusCode::NO_CONTENT)
}

async fn probe_page(State(hints): State<Arc<Hints>>, request: Request) -> Result<Response, ApiError> {
    hints.counters.probe_page.fetch_add(1, Ordering::Relaxed);
    let asked: probe::ProbeRequest = read(request, MAX_PROBE).await?;
    Ok(Json(probe::run(&hints, asked).await?).into_response())
}

async fn snapshot_page(State(hints): State<Arc<Hints>>) -> Result<Json<Snapshot>, ApiError> {
    hints.counters.snapshot_page.fetch_add(1, Ordering::Relaxed);
    hints.engines_are_heard(None).await;
    // It counts everything that there is.
    let census = tokio::task::spawn_blocking(move || hints.book.census()).await;
    let failed = |_| PublicError::new(ErrorCode::Internal, "the snapshot could not be taken");
    Ok(Json(Snapshot::of(&census.map_err(failed)?)))
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "HintsSnapshot")]
pub(super) struct Snapshot {
    replicas: Vec<ReplicaRow>,
    tenants: Vec<TenantRow>,
    total_prefixes: usize,
    /// Nobody tells hot prefixes from others.
    hot_prefixes: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ReplicaRow {
    replica_id: String,
    tenant: String,
    cache_memory_bytes: i64,
    hit_rate: f32,
    pressure: f32,
    last_update: String,
    prefix_count: usize,
    last_event_at: String,
    stats_reported: bool,
    t2_hit_tokens: i64,
    t2_query_tokens: i64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TenantRow {
    tenant_id: String,
    index_entries: usize,
    hit_rate: f32,
    hit_rate_reported: bool,
    /// The peer's field is 0 too.
    memory_used: i64,
}

/// What is known of a replica over all its models.
#[derive(Debug, Default)]
struct Replica {
    stats: Option<(Stats, i64)>,
    prefixes: usize,
    last_event_us: i64,
}

impl Replica {
    /// Statistics are about the replica, not about a model: the last ones count.
    fn add(&mut self, census: &ReplicaCensus) {
        let newer = census.stats.filter(|(_, at)| self.stats.is_none_or(|(_, known)| known < *at));
        self.stats = newer.or(self.stats);
        self.prefixes += census.prefixes;
        self.last_event_us = self.last_event_us.max(census.last_event_us);
    }
}

impl Snapshot {
    fn of(census: &Census) -> Self {
        let mut replicas: BTreeMap<(&str, &str), Replica> = BTreeMap::new();
        for replica in &census.replicas {
            replicas.entry((&replica.tenant, &replica.replica)).or_default().add(replica);
        }
        // Prefixes, and the hit rates that were reported.
        let mut tenants: BTreeMap<&str, (usize, Vec<f32>)> = BTreeMap::new();
        for model in &census.models {
            tenants.entry(&model.tenant).or_default().0 += model.prefixes;
        }
        for ((tenant, _), replica) in &replicas {
            tenants.entry(tenant).or_default().1.extend(replica.stats.map(|(stats, _)| stats.hit_rate));
        }
        Self {
            total_prefixes: census.models.iter().map(|model| model.prefixes).sum(),
            hot_prefixes: 0,
            replicas: replicas.into_iter().map(replica_row).collect(),
            tenants: tenants.into_iter().map(tenant_row).collect(),
        }
    }
}

fn replica_row(((tenant, replica), known): ((&str, &str), Replica)) -> ReplicaRow {
    let (stats, at) = known.stats.unwrap_or_default();
    ReplicaRow {
        replica_id: replica.to_owned(),
        tenant: tenant.to_owned(),
        cache_memory_bytes: stats.cache_memory_bytes,
        hit_rate: stats.hit_rate,
        pressure: stats.pressure,
        last_update: moment(at),
        prefix_count: known.prefixes,
        last_event_at: moment(known.last_event_us),
        stats_reported: known.stats.is_some(),
        t2_hit_tokens: stats.t2_hit_tokens,
        t2_query_tokens: stats.t2_query_tokens,
    }
}

fn tenant_row((tenant, (prefixes, rates)): (&str, (usize, Vec<f32>))) -> TenantRow {
    let reported = !rates.is_empty();
    TenantRow {
        tenant_id: tenant.to_owned(),
        index_entries: prefixes,
        hit_rate: if reported { rates.iter().sum::<f32>() / rates.len() as f32 } else { 0.0 },
        hit_rate_reported: reported,
        memory_used: 0,
    }
}

/// The last moment that RFC 3339 can write: years have four digits.
const LAST_MOMENT_US: i64 = 253_402_300_799_999_999;

/// A moment as the peer's JSON has it; its first year stands for never.
fn moment(unix_us: i64) -> String {
    if unix_us <= 0 {
        return "0001-01-01T00:00:00Z".to_owned();
    }
    // A reporter's clock may say anything.
    let unix_us = unix_us.min(LAST_MOMENT_US);
    let (seconds, us) = (unix_us / 1_000_000, unix_us % 1_000_000);
    let moment = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = moment.to_calendar_date();
    let (month, (hour, minute, second)) = (u8::from(month), moment.to_hms());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_as_a_calendar_has_them() {
        for (unix_us, text) in [
            (i64::MIN, "0001-01-01T00:00:00Z"),
            (0, "0001-01-01T00:00:00Z"),
            (1, "1970-01-01T00:00:00.000001Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (951_868_800_000_000, "2000-03-01T00:00:00.000000Z"),
            (1_709_251_199_999_999, "2024-02-29T23:59:59.999999Z"),
            (1_794_700_800_000_000, "2026-11-15T00:00:00.000000Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
            (LAST_MOMENT_US, "9999-12-31T23:59:59.999999Z"),
            (LAST_MOMENT_US + 1, "9999-12-31T23:59:59.999999Z"),
            (i64::MAX, "9999-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(moment(unix_us), text);
        }
    }
}
