//! `StreamCacheEvents`: what is added and evicted from now on.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use futures::stream::{self, BoxStream, StreamExt as _};
use kvplane_access::ApiError;
use kvplane_core::{ErrorCode, PublicError};
use kvplane_hints::{Happened, Observer, Whose};
use kvplane_metrics::hint_counters::{Counters, Refusal};
use kvplane_proto::inferencecache as proto;
use kvplane_proto::inferencecache::cache_event::Type;
use kvplane_report::unix_us;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender, channel};
use tonic::Status;

use super::Hints;

/// Events that a listener may be behind. One that is further behind gets an error, and ends: nobody waits for
/// it.
const KEPT: usize = 8192;
/// Listeners at the same time.
const MAX_LISTENERS: usize = 256;

/// Hands what changes in the book to listeners.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Made for the first listener.
    sender: OnceLock<Sender<Arc<proto::CacheEvent>>>,
}

impl Events {
    pub(super) fn listeners(&self) -> usize {
        self.sender.get().map_or(0, Sender::receiver_count)
    }
}

impl Observer for Events {
    fn listens(&self) -> bool {
        self.listeners() > 0
    }

    fn happened(&self, whose: Whose<'_>, what: Happened<'_>) {
        let Some(sender) = self.sender.get() else { return };
        let (kind, prefix) = match what {
            Happened::Added { hash, adapter } => (Type::PrefixAdded, Some((hash, adapter))),
            Happened::Evicted { hash, adapter } => (Type::PrefixEvicted, Some((hash, adapter))),
            Happened::Updated => (Type::ReplicaUpdated, None),
            Happened::Cleared => (Type::AllCleared, None),
        };
        let event = proto::CacheEvent {
            r#type: kind.into(),
            replica_id: whose.replica.to_owned(),
            model_id: whose.model.to_owned(),
            tenant_id: whose.tenant.to_owned(),
            prefix_hash: prefix.map(|(hash, _)| hash.to_bytes().into()).unwrap_or_default(),
            timestamp_us: unix_us(),
            adapter_id: prefix.map(|(_, adapter)| adapter.to_owned()).unwrap_or_default(),
        };
        // The listener may have gone just now.
        let _ = sender.send(Arc::new(event));
    }
}

/// What a listener wants to hear of: an empty name, or no types, is everything.
#[derive(Debug)]
struct Wanted {
    tenant: String,
    model: String,
    types: HashSet<i32>,
}

impl Wanted {
    fn is(&self, event: &proto::CacheEvent) -> bool {
        (self.tenant.is_empty() || self.tenant == event.tenant_id)
            && (self.model.is_empty() || self.model == event.model_id)
            && (self.types.is_empty() || self.types.contains(&event.r#type))
    }
}

/// Everything that happens from now on and is wanted.
pub(super) fn listen(
    hints: &Arc<Hints>,
    request: proto::StreamEventsRequest,
) -> Result<BoxStream<'static, Result<proto::CacheEvent, Status>>, PublicError> {
    let sender = hints.events.sender.get_or_init(|| channel(KEPT).0);
    if sender.receiver_count() >= MAX_LISTENERS {
        hints.counters.refused.count(Refusal::TooManyListeners);
        let message = format!("there are {MAX_LISTENERS} listeners already");
        return Err(PublicError::new(ErrorCode::LimitReached, message).with_next("end one of them first"));
    }
    let proto::StreamEventsRequest { model_id, tenant_id, types } = request;
    let wanted = Wanted { tenant: tenant_id, model: model_id, types: types.into_iter().collect() };
    let state = Some((sender.subscribe(), wanted, hints.clone()));
    let events = stream::unfold(state, async |state| {
        let (mut receiver, wanted, hints) = state?;
        match next(&mut receiver, &wanted, &hints.counters).await? {
            Ok(event) => Some((Ok(event), Some((receiver, wanted, hints)))),
            Err(behind) => Some((Err(Status::from(ApiError(behind))), None)),
        }
    });
    Ok(events.boxed())
}

/// The next event that is wanted.
async fn next(
    receiver: &mut Receiver<Arc<proto::CacheEvent>>,
    wanted: &Wanted,
    counters: &Counters,
) -> Option<Result<proto::CacheEvent, PublicError>> {
    loop {
        match receiver.recv().await {
            Ok(event) if wanted.is(&event) => return Some(Ok(Arc::unwrap_or_clone(event))),
            Ok(_) => {}
            Err(RecvError::Lagged(missed)) => {
                counters.refused.count(Refusal::SlowListener);
                let message =
                    format!("missed {missed} events by reading too slowly: subscribe again from the start");
                return Some(Err(PublicError::new(ErrorCode::DataLoss, message)));
            }
            Err(RecvError::Closed) => return None,
        }
    }
}
