//! All receipts: a ring bounded in bytes, and what they sum up to.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::account::Account;
use crate::cause::Losses;
use crate::receipt::{Decided, Delivered, Receipt, ReceiptId};
use crate::replay::Replay;

/// Tokens that one report may speak of.
const MAX_TOKENS: u64 = 1 << 32;

/// Why a request has no account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unledgered {
    /// Nobody said what was delivered before the receipt had to make room.
    NotReported,
    /// The request was given up.
    Aborted,
}

impl Unledgered {
    /// Every reason.
    pub const ALL: [Self; 2] = [Self::NotReported, Self::Aborted];

    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotReported => "not_reported",
            Self::Aborted => "aborted",
        }
    }
}

/// Why a receipt cannot be settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleError {
    /// There is none, or no more.
    NoSuchReceipt,
    /// It is already.
    Settled,
    /// More was delivered than the prompt has.
    MoreThanPrompt,
}

/// Tokens over all settled receipts, and counts of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LedgerTotals {
    /// Receipts.
    pub decided: u64,
    /// Those that are settled.
    pub settled: u64,
    /// Of those, prediction and delivery were equal.
    pub equal: u64,
    /// L, of settled receipts, as all that follows.
    pub prompt: u64,
    /// C.
    pub ceiling: u64,
    /// F.
    pub fleet: u64,
    /// E.
    pub eligible: u64,
    /// S.
    pub predicted: u64,
    /// D.
    pub delivered: u64,
    /// What random picks would have delivered.
    pub random: u64,
    /// Delivered beyond predictions.
    pub gained: u64,
    /// By cause.
    pub losses: Losses,
    /// Exact predictions that nothing explains.
    pub drifts: u64,
    /// Without an account, by reason.
    pub unledgered: [u64; Unledgered::ALL.len()],
}

/// The receipts.
#[derive(Debug)]
pub struct Ledger {
    ring: VecDeque<Receipt>,
    /// Where a receipt is, counted from the first that ever was.
    places: FxHashMap<ReceiptId, u64>,
    dropped: u64,
    bytes: usize,
    limit: usize,
    next: u64,
    totals: LedgerTotals,
}

impl Ledger {
    /// Receipts of `limit` bytes at most.
    pub fn new(limit: usize) -> Self {
        Self {
            ring: VecDeque::new(),
            places: FxHashMap::default(),
            dropped: 0,
            bytes: 0,
            limit,
            next: 1,
            totals: LedgerTotals::default(),
        }
    }

    /// What all came to.
    pub fn totals(&self) -> LedgerTotals {
        self.totals
    }

    /// What the ring takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Opens a receipt.
    pub fn open(&mut self, decided: Decided) -> ReceiptId {
        let id = ReceiptId(self.next);
        self.next += 1;
        self.totals.decided += 1;
        self.bytes += decided.bytes();
        self.places.insert(id, self.dropped + self.ring.len() as u64);
        self.ring.push_back(Receipt { id, decided, settled: None, aborted: false });
        while self.bytes > self.limit && self.ring.len() > 1 {
            self.drop_oldest();
        }
        id
    }

    fn drop_oldest(&mut self) {
        let Some(receipt) = self.ring.pop_front() else { return };
        self.bytes -= receipt.decided.bytes();
        self.places.remove(&receipt.id);
        self.dropped += 1;
        if receipt.settled.is_none() && !receipt.aborted {
            self.totals.unledgered[Unledgered::NotReported as usize] += 1;
        }
    }

    /// A receipt, while it is kept.
    pub fn get(&self, id: ReceiptId) -> Option<&Receipt> {
        let place = self.places.get(&id)?;
        self.ring.get((place - self.dropped) as usize)
    }

    fn get_mut(&mut self, id: ReceiptId) -> Option<&mut Receipt> {
        let place = self.places.get(&id)?;
        self.ring.get_mut((place - self.dropped) as usize)
    }

    /// The request was given up: nothing was delivered, and nothing was lost. Says whether it was open.
    pub fn abort(&mut self, id: ReceiptId) -> bool {
        let Some(receipt) = self.get_mut(id).filter(|receipt| receipt.settled.is_none() && !receipt.aborted)
        else {
            return false;
        };
        receipt.aborted = true;
        let freed = 8 * std::mem::take(&mut receipt.decided.contents).len();
        self.bytes -= freed;
        self.totals.unledgered[Unledgered::Aborted as usize] += 1;
        true
    }

    /// Whether the replay is needed: nothing needs to be explained where prediction and delivery are equal.
    pub fn needs_replay(&self, id: ReceiptId, cached: u64) -> bool {
        self.get(id).is_some_and(|receipt| receipt.settled.is_none() && receipt.decided.predicted != cached)
    }

    /// Settles a receipt.
    pub fn settle(
        &mut self,
        id: ReceiptId,
        delivered: Delivered,
        replay: &Replay,
    ) -> Result<Account, SettleError> {
        let receipt = self.get_mut(id).ok_or(SettleError::NoSuchReceipt)?;
        if receipt.settled.is_some() {
            return Err(SettleError::Settled);
        }
        // More than any prompt has is said by mistake, and sums must not overflow.
        if delivered.cached.max(delivered.prompt.unwrap_or(0)) > MAX_TOKENS {
            return Err(SettleError::MoreThanPrompt);
        }
        let most = delivered.prompt.unwrap_or(0).max(receipt.decided.prompt);
        // Of a prompt whose tokens are unknown, nothing is too much.
        if delivered.cached > most && most > 0 {
            return Err(SettleError::MoreThanPrompt);
        }
        let account = Account::settle(&receipt.decided, &delivered, replay);
        let freed = 8 * std::mem::take(&mut receipt.decided.contents).len();
        let cached = delivered.cached;
        let was_aborted = std::mem::take(&mut receipt.aborted);
        receipt.settled = Some((delivered, account));
        let Decided { prompt, ceiling, fleet, eligible, predicted, random, .. } = receipt.decided;
        self.bytes -= freed;
        let totals = &mut self.totals;
        if was_aborted {
            totals.unledgered[Unledgered::Aborted as usize] -= 1;
        }
        totals.settled += 1;
        totals.equal += u64::from(predicted == cached);
        totals.prompt += prompt;
        totals.ceiling += ceiling;
        totals.fleet += fleet;
        totals.eligible += eligible;
        totals.predicted += predicted;
        totals.delivered += cached;
        totals.random += random;
        totals.gained += account.gained;
        totals.losses.add_all(&account.losses);
        totals.drifts += u64::from(account.drift.is_some());
        Ok(account)
    }

    /// Settled receipts that lost the most, the worst first.
    pub fn worst(&self, count: usize) -> Vec<&Receipt> {
        let lost =
            |receipt: &&Receipt| receipt.settled.as_ref().map_or(0, |(_, account)| account.losses.sum());
        let mut receipts: Vec<&Receipt> = self.ring.iter().filter(|receipt| lost(receipt) > 0).collect();
        receipts.sort_by_key(|receipt| std::cmp::Reverse(lost(receipt)));
        receipts.truncate(count);
        receipts
    }
}

#[cfg(test)]
mod tests;
