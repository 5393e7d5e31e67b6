//! A quantity that peers share: places, bytes, calls under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::PeerKey;

/// Why there is no share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// Everything is taken.
    Total,
    /// This peer has all that one peer may have.
    Peer,
}

/// A quantity with a limit in total and a limit per peer.
#[derive(Debug)]
pub struct Shares {
    total: usize,
    per_peer: usize,
    /// How many may wait for a share.
    queue: usize,
    pub(super) taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Taken {
    total: usize,
    by_peer: HashMap<PeerKey, usize>,
    pub(super) waiting: usize,
}

/// What one peer has taken, until it is dropped.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    peer: PeerKey,
    amount: usize,
}

impl Shares {
    /// At most `total`, of which one peer may have `per_peer`.
    pub fn new(total: usize, per_peer: usize) -> Arc<Self> {
        Self::with_queue(total, per_peer, 0)
    }

    /// The same, where up to `queue` callers may wait.
    pub fn with_queue(total: usize, per_peer: usize, queue: usize) -> Arc<Self> {
        Arc::new(Self { total, per_peer, queue, taken: Mutex::default(), freed: Notify::new() })
    }

    /// Takes an amount at once, or not at all.
    pub fn take(self: &Arc<Self>, peer: PeerKey, amount: usize) -> Result<Share, Full> {
        self.taken.lock().add(peer, amount, self)?;
        Ok(Share { shares: self.clone(), peer, amount })
    }

    /// Takes an amount as soon as there is one, within a time. A full queue is refused at once.
    pub async fn take_within(
        self: &Arc<Self>,
        peer: PeerKey,
        amount: usize,
        within: Duration,
    ) -> Result<Share, Full> {
        let full = match self.take(peer, amount) {
            Ok(share) => return Ok(share),
            Err(full) => full,
        };
        let Some(_waiting) = Waiting::enter(self) else { return Err(full) };
        let deadline = Instant::now() + within;
        loop {
            // Registered before the attempt, so that a share that is freed in between is not missed.
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            let full = match self.take(peer, amount) {
                Ok(share) => return Ok(share),
                Err(full) => full,
            };
            if timeout_at(deadline, freed).await.is_err() {
                return Err(full);
            }
        }
    }

    /// How much is taken.
    pub fn taken(&self) -> usize {
        self.taken.lock().total
    }
}

impl Taken {
    fn add(&mut self, peer: PeerKey, amount: usize, limits: &Shares) -> Result<(), Full> {
        let of_peer = self.by_peer.get(&peer).copied().unwrap_or(0);
        if of_peer.saturating_add(amount) > limits.per_peer {
            return Err(Full::Peer);
        }
        if self.total.saturating_add(amount) > limits.total {
            return Err(Full::Total);
        }
        self.total += amount;
        self.by_peer.insert(peer, of_peer + amount);
        Ok(())
    }

    fn give_back(&mut self, peer: PeerKey, amount: usize) {
        self.total -= amount;
        if let Some(of_peer) = self.by_peer.get_mut(&peer) {
            *of_peer -= amount;
            if *of_peer == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }
}

/// One who waits.
struct Waiting<'s>(&'s Shares);

impl<'s> Waiting<'s> {
    fn enter(shares: &'s Shares) -> Option<Self> {
        let mut taken = shares.taken.lock();
        if taken.waiting >= shares.queue {
            return None;
        }
        taken.waiting += 1;
        Some(Self(shares))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.taken.lock().waiting -= 1;
    }
}

impl Share {
    /// Takes more.
    pub fn grow(&mut self, by: usize) -> Result<(), Full> {
        self.shares.taken.lock().add(self.peer, by, &self.shares)?;
        self.amount += by;
        Ok(())
    }

    /// Gives everything back and stays usable.
    pub fn clear(&mut self) {
        let amount = std::mem::take(&mut self.amount);
        if amount > 0 {
            self.shares.taken.lock().give_back(self.peer, amount);
            self.shares.freed.notify_waiters();
        }
    }

    /// How much it is.
    pub fn amount(&self) -> usize {
        self.amount
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.clear();
    }
}
