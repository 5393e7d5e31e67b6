//! How ranks are asked to flush: once, each until it is idle, or all together.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::{Operated, Reset};

/// How often a scheduler looks whether it is idle: between its steps.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Longer than anybody waits, and no overflow.
const LONGEST: Duration = Duration::from_hours(24);

/// Asks every rank once. Each one's word, in their order.
pub(crate) async fn flush_once(engine: &Arc<impl Operated + ?Sized>, reset: Reset) -> Vec<bool> {
    flush_left(engine, reset, &mut vec![false; engine.facts().ranks as usize]).await
}

/// Every rank by itself waits until it is idle. Each one's word, in their order.
pub(crate) async fn flush_ranks(engine: &Arc<impl Operated + ?Sized>, timeout: Duration) -> Vec<bool> {
    let deadline = deadline(timeout);
    let mut done = vec![false; engine.facts().ranks as usize];
    loop {
        done = flush_left(engine, Reset::default(), &mut done).await;
        if done.iter().all(|done| *done) || Instant::now() >= deadline {
            return done;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Asks all ranks, and all of them again as long as one refuses. Whether all accepted the same attempt.
pub(crate) async fn flush_together(
    engine: &Arc<impl Operated + ?Sized>,
    timeout: Duration,
    again: Duration,
) -> bool {
    let deadline = deadline(timeout);
    loop {
        let done = flush_once(engine, Reset::default()).await;
        if done.iter().all(|done| *done) {
            return true;
        }
        let next = Instant::now() + again;
        if next > deadline {
            return false;
        }
        tokio::time::sleep_until(next).await;
    }
}

/// When a wait is over.
fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(LONGEST)
}

/// Asks those that have not flushed yet. A publisher may keep its rank waiting: not on a server's thread.
async fn flush_left(engine: &Arc<impl Operated + ?Sized>, reset: Reset, done: &mut [bool]) -> Vec<bool> {
    let mut left = done.to_vec();
    let asked = engine.clone();
    let flush = spawn_blocking(move || {
        for (rank, done) in (0..).zip(&mut left) {
            *done = *done || asked.flush_rank(rank, reset);
        }
        left
    });
    // A panic is the engine's, and in the log.
    flush.await.unwrap_or_else(|_| done.to_vec())
}
