//! Encoding for subscribers: once for all who are sent the same, and not on the threads that answer
//! questions.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use kvplane_access::ApiError;
use kvplane_core::{ErrorCode, PublicError};
use kvplane_stream::{Entry, Protocol};
use tokio::sync::{Mutex, Semaphore};
use tonic::Status;

/// Threads that encode at a time: the others of the machine answer questions, however many subscribers begin.
static ENCODERS: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((processors / 2).clamp(1, 4))
});

/// Messages kept for other subscribers of a snapshot, each of about 1 MiB at most.
const RECENT: usize = 4;

/// Entries whose encoding takes up to about this much are encoded at once: some hundred microseconds.
const SMALL: usize = 256 << 10;

/// A snapshot, cut into messages.
pub(crate) trait Plan: Send + Sync + 'static {
    /// How many messages there are.
    fn messages(&self) -> usize;

    /// One of them.
    fn encode(&self, index: usize) -> Bytes;
}

/// A plan, with the messages that were encoded lately. Subscribers that begin together are sent the same
/// message at about the same time, and encoding it takes far longer than copying it.
#[derive(Debug)]
pub(crate) struct Planned<P> {
    plan: P,
    recent: Mutex<VecDeque<(usize, Bytes)>>,
}

impl<P: Plan> Planned<P> {
    pub(crate) fn new(plan: P) -> Self {
        Self { plan, recent: Mutex::default() }
    }

    pub(crate) fn plan(&self) -> &P {
        &self.plan
    }

    /// The message at an index. A reader that needs it while it is being encoded waits instead of encoding it
    /// again.
    async fn message(self: &Arc<Self>, index: usize) -> Result<Bytes, Status> {
        let mut recent = self.recent.lock().await;
        if let Some((_, message)) = recent.iter().find(|(known, _)| *known == index) {
            return Ok(message.clone());
        }
        let planned = self.clone();
        let message = elsewhere(move || planned.plan.encode(index)).await?;
        // Nothing is kept for a single subscriber.
        if Arc::strong_count(self) > 1 {
            recent.truncate(RECENT - 1);
            recent.push_front((index, message.clone()));
        }
        Ok(message)
    }
}

/// A snapshot on its way to one subscriber.
#[derive(Debug)]
pub(crate) struct Messages<P> {
    planned: Arc<Planned<P>>,
    next: usize,
}

impl<P: Plan> Messages<P> {
    pub(crate) fn of(planned: Arc<Planned<P>>) -> Self {
        Self { planned, next: 0 }
    }

    /// The next message; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        if self.next == self.planned.plan.messages() {
            return None;
        }
        let message = self.planned.message(self.next).await;
        self.next += 1;
        Some(message)
    }
}

/// Entries of a journal in a protocol's form, which they keep.
pub(crate) async fn entries(
    entries: &[Arc<Entry>],
    protocol: Protocol,
    encode: impl Fn(&Entry) -> Bytes + Send + 'static,
) -> Result<Vec<Bytes>, Status> {
    let new = entries.iter().filter(|entry| entry.encoding(protocol).is_none());
    if new.map(|entry| entry.cost()).sum::<usize>() <= SMALL {
        return Ok(entries.iter().map(|entry| encode(entry)).collect());
    }
    let entries = entries.to_vec();
    elsewhere(move || entries.iter().map(|entry| encode(entry)).collect()).await
}

/// Encodes on a thread that serves nobody else. A thread that has begun keeps its place to the end, also when
/// the reader asked is gone.
async fn elsewhere<T: Send + 'static>(encode: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
    let place = ENCODERS.acquire().await.map_err(|_| failed())?;
    let encoded = tokio::task::spawn_blocking(move || {
        let _place = place;
        encode()
    });
    encoded.await.map_err(|_| failed())
}

fn failed() -> Status {
    ApiError(PublicError::new(ErrorCode::Internal, "a message could not be encoded")).into()
}

#[cfg(test)]
mod tests;
