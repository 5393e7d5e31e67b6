//! What is said, as the server's messages.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream;
use kvplane_hints::{CacheTier, Stats};
use kvplane_proto::inferencecache::cache_event::Type;
use kvplane_proto::inferencecache::inference_cache_client::InferenceCacheClient;
use kvplane_proto::inferencecache::{Ack, CacheEvent, CacheStateUpdate, PrefixEntry, ReplicaStats};
use tonic::{Code, Request, Response, Status};

use super::connection::Connection;
use crate::outbox::{Add, Outcome, Saying};

/// Who is reported on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The tenant.
    pub tenant: String,
    /// The model.
    pub model: String,
    /// How prefixes are hashed.
    pub scheme: String,
    /// The replica.
    pub replica: String,
}

/// Says it, within the deadline, and returns how that went; with the server's words if it failed.
pub(super) async fn say(
    connection: Connection,
    identity: Arc<Identity>,
    saying: Saying,
    deadline: Duration,
) -> (Outcome, Option<Status>) {
    let call = tokio::time::timeout(deadline, send(&connection, &identity, saying, deadline));
    let answer = tokio::select! {
        answer = call => answer,
        () = connection.broken.cancelled() => return (Outcome::Unanswered, Some(Status::unavailable("the connection broke"))),
    };
    match answer {
        Ok(Ok(ack)) if ack.get_ref().accepted => (Outcome::Taken, None),
        Ok(Ok(ack)) => (Outcome::Refused, Some(Status::aborted(ack.into_inner().reason_code))),
        Ok(Err(status)) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
            (Outcome::Failed, Some(turned_away(&connection, status)))
        }
        Ok(Err(status)) => (outcome_of(&status), Some(status)),
        Err(_) => (Outcome::Unanswered, Some(Status::deadline_exceeded("no answer in time"))),
    }
}

/// The token may have been replaced: the next call has the one that is there by then. Returns what is to be
/// said of it.
fn turned_away(connection: &Connection, status: Status) -> Status {
    match connection.token.read_again() {
        Ok(()) => status,
        Err(error) => Status::new(status.code(), format!("{}; {error}", status.message())),
    }
}

/// A server that finds fault with what is said finds it again; other errors pass. Some of them are not the
/// server's own words: it may not have come to the end of the call.
fn outcome_of(error: &Status) -> Outcome {
    match error.code() {
        Code::InvalidArgument | Code::ResourceExhausted | Code::FailedPrecondition | Code::OutOfRange => {
            Outcome::Refused
        }
        Code::DeadlineExceeded | Code::Unavailable | Code::Cancelled | Code::Unknown => Outcome::Unanswered,
        _ => Outcome::Failed,
    }
}

async fn send(
    connection: &Connection,
    identity: &Identity,
    saying: Saying,
    deadline: Duration,
) -> Result<Response<Ack>, Status> {
    let mut client = InferenceCacheClient::new(connection.channel());
    match saying {
        Saying::Clear => {
            let event = identity.event(Type::AllCleared, Bytes::new(), "");
            client.publish_event(with_deadline(event, deadline)).await
        }
        Saying::Eviction { fingerprint, adapter } => {
            let hash = Bytes::copy_from_slice(&fingerprint.to_be_bytes());
            let event = identity.event(Type::PrefixEvicted, hash, &adapter);
            client.publish_event(with_deadline(event, deadline)).await
        }
        Saying::Adds(adds) => {
            let update = CacheStateUpdate { prefixes: entries(&adds), ..identity.update() };
            let once = stream::iter([update]);
            client.report_cache_state(with_deadline(once, deadline)).await
        }
        Saying::Stats(stats) => {
            let update = CacheStateUpdate { stats: Some(identity.stats(&stats)), ..identity.update() };
            let once = stream::iter([update]);
            client.report_cache_state(with_deadline(once, deadline)).await
        }
    }
}

fn with_deadline<T>(message: T, deadline: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    request
}

/// One entry for each prefix; the hashes are parts of one buffer.
fn entries(adds: &[Add]) -> Vec<PrefixEntry> {
    let mut hashes = BytesMut::with_capacity(adds.len() * 8);
    for add in adds {
        hashes.extend_from_slice(&add.fingerprint.to_be_bytes());
    }
    let hashes = hashes.freeze();
    let entry = |(at, add): (usize, &Add)| PrefixEntry {
        prefix_hash: hashes.slice(at * 8..at * 8 + 8),
        token_count: i32::try_from(add.tokens).unwrap_or(i32::MAX),
        tier: CacheTier::to_wire(add.tier),
        adapter_id: add.adapter.to_string(),
        ..PrefixEntry::default()
    };
    adds.iter().enumerate().map(entry).collect()
}

impl Identity {
    fn event(&self, kind: Type, prefix_hash: Bytes, adapter: &str) -> CacheEvent {
        CacheEvent {
            r#type: kind.into(),
            replica_id: self.replica.clone(),
            model_id: self.model.clone(),
            tenant_id: self.tenant.clone(),
            prefix_hash,
            timestamp_us: unix_us(),
            adapter_id: adapter.to_owned(),
        }
    }

    fn update(&self) -> CacheStateUpdate {
        CacheStateUpdate {
            replica_id: self.replica.clone(),
            model_id: self.model.clone(),
            tenant_id: self.tenant.clone(),
            hash_scheme: self.scheme.clone(),
            timestamp_us: unix_us(),
            ..CacheStateUpdate::default()
        }
    }

    fn stats(&self, stats: &Stats) -> ReplicaStats {
        ReplicaStats {
            replica_id: self.replica.clone(),
            cache_memory_bytes: stats.cache_memory_bytes,
            hit_rate: stats.hit_rate,
            pressure: stats.pressure,
            client_version: concat!("kvplane/", env!("CARGO_PKG_VERSION")).to_owned(),
            t2_hit_tokens: stats.t2_hit_tokens,
            t2_query_tokens: stats.t2_query_tokens,
        }
    }
}

/// The wall clock, in microseconds: a server's freshness is counted by it.
pub fn unix_us() -> i64 {
    i64::try_from(kvplane_runtime::unix_time().as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::OutboxOptions;
    use prost::Message as _;

    #[test]
    fn the_largest_message_is_below_what_servers_take() {
        let options = OutboxOptions::default();
        // The bound counts 32 bytes for an entry, and its adapter.
        let adapter: Arc<str> = Arc::from("a".repeat(968));
        let count = options.max_message / 1_000;
        let add = Add { fingerprint: u64::MAX, tokens: u32::MAX, tier: CacheTier::T3, adapter };
        let longest = "x".repeat(1_024);
        let identity = Identity {
            tenant: longest.clone(),
            model: longest.clone(),
            scheme: longest.clone(),
            replica: longest,
        };
        let update = CacheStateUpdate { prefixes: entries(&vec![add; count]), ..identity.update() };
        assert!(update.encoded_len() < 4 << 20, "{}", update.encoded_len());
    }

    #[test]
    fn a_fingerprint_is_eight_bytes_with_the_first_one_first() {
        let add = Add { fingerprint: 258, tokens: 16, tier: CacheTier::T2, adapter: Arc::from("sql") };
        let entry = entries(&[add]).remove(0);
        assert_eq!(&entry.prefix_hash[..], [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!((entry.token_count, entry.tier, entry.adapter_id.as_str()), (16, 2, "sql"));
        assert!(entry.block_hashes.is_empty() && entry.block_token_counts.is_empty());
    }
}
