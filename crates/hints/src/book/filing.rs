//! What is dropped first, and what a replica holds: every cell is filed once, in its replica's bucket of that
//! rank and place.
//!
//! Buckets list keys and are never searched: a cell that leaves one, because it goes or is reported again
//! later, only lowers the bucket's count. Its key is found when the bucket is emptied, or by [`Known::tidy`]
//! once more keys are void than not.

use super::cells::{Holders, Row, Seen};
use super::known::Known;
use super::sweep::Progress;

/// Time is kept in steps of 2^22 microseconds (4 s): what was reported within one is dropped in any order.
/// Finer buckets would be many and nearly empty where a replica reports ten times a second.
const STEP_BITS: u32 = 22;
/// Keys of a bucket that are looked at whenever one is void: more than one, so that tidying wins.
const TIDIED: usize = 4;

/// What goes first: the fewest hits, then the longest ago. Where hits do not count, they are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) hits: u32,
    pub(super) step: u32,
}

impl Rank {
    /// Of engines that are heard: never dropped, and in no order.
    const HEARD: Rank = Rank { hits: u32::MAX, step: u32::MAX };

    pub(super) fn of(seen: Seen, hits: u32) -> Self {
        seen.at_us().map_or(Self::HEARD, |at_us| Self { hits, step: (at_us >> STEP_BITS) as u32 })
    }

    /// The rank of a cell as it is filed.
    pub(super) fn filed(holders: &Holders<'_>, at: usize) -> Self {
        Self::of(holders.seen(at), holders.filed(at))
    }

    /// Everything in this step was reported at this time or later.
    pub(super) fn since_us(self) -> i64 {
        i64::from(self.step) << STEP_BITS
    }
}

/// A bucket: its rank, its replica, its place.
pub(super) type Filed = (Rank, u32, u32);

/// Keys that were filed here, and how many of them still are.
///
/// Tidying goes through the keys again and again, a few at a time: those that still belong here are moved
/// from `unseen` to `listed`, once. A cell's mark says whether its key is listed: if it equals the bucket's.
/// So keys that were filed twice are found too, and when none is unseen, the bucket's mark turns over and all
/// are unseen again.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    unseen: Vec<u64>,
    listed: Vec<u64>,
    mark: bool,
    pub(super) live: usize,
}

impl Bucket {
    pub(super) fn len(&self) -> usize {
        self.unseen.len() + self.listed.len()
    }

    pub(super) fn room(&self) -> usize {
        self.unseen.capacity() + self.listed.capacity()
    }

    pub(super) fn key(&self, at: usize) -> Option<u64> {
        let listed = at.checked_sub(self.unseen.len());
        listed.map_or_else(|| self.unseen.get(at), |at| self.listed.get(at)).copied()
    }

    /// Takes a key out; the last one, or the last unseen one, takes its place.
    pub(super) fn swap_remove(&mut self, at: usize) {
        match at.checked_sub(self.unseen.len()) {
            Some(at) => self.listed.swap_remove(at),
            None => self.unseen.swap_remove(at),
        };
    }

    fn pop(&mut self) -> Option<u64> {
        self.unseen.pop().or_else(|| self.listed.pop())
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> impl Iterator<Item = u64> {
        self.unseen.iter().chain(&self.listed).copied()
    }
}

impl Known {
    /// Lists a key. The mark is for its cell.
    pub(super) fn file(&mut self, (rank, replica, place): Filed, key: u64) -> bool {
        let owner = &mut self.replicas[replica];
        let bucket = owner.filing.entry((rank, place)).or_insert_with(|| {
            if rank != Rank::HEARD {
                self.order.insert((rank, replica, place));
                self.tenants[owner.tenant].order.insert((rank, replica, place));
            }
            self.buckets += 1;
            Bucket::default()
        });
        let room = bucket.room();
        bucket.listed.push(key);
        bucket.live += 1;
        self.filed_room += bucket.room() - room;
        bucket.mark
    }

    /// A cell is not filed there any more.
    pub(super) fn unfile(&mut self, filed: Filed) {
        let (rank, replica, place) = filed;
        let Some(bucket) = self.replicas[replica].filing.get_mut(&(rank, place)) else { return };
        bucket.live -= 1;
        if bucket.live == 0 {
            self.close(filed);
        }
    }

    /// Takes the next key out of a bucket, whether it still belongs there or not. A bucket without keys is
    /// gone.
    pub(super) fn pop(&mut self, filed: Filed) -> Option<u64> {
        let (rank, replica, place) = filed;
        let key = self.replicas[replica].filing.get_mut(&(rank, place))?.pop();
        if key.is_none() {
            self.close(filed);
        }
        key
    }

    fn close(&mut self, filed: Filed) {
        let (rank, replica, place) = filed;
        let owner = &mut self.replicas[replica];
        self.order.remove(&filed);
        self.tenants[owner.tenant].order.remove(&filed);
        if let Some(bucket) = owner.filing.remove(&(rank, place)) {
            self.buckets -= 1;
            self.filed_room -= bucket.room();
        }
    }

    /// Looks at a few keys, after a cell has left the bucket but its key has not, and drops those that are
    /// void.
    pub(super) fn tidy(&mut self, filed: Filed) {
        let (rank, replica, place) = filed;
        for _ in 0..TIDIED {
            let Some(owner) = self.replicas.get(replica) else { return };
            let Some(bucket) = owner.filing.get(&(rank, place)) else { return };
            if bucket.len() <= 2 * bucket.live + 2 * TIDIED {
                return;
            }
            let key = bucket.unseen.last().copied();
            let row = key.map_or(Row::NOWHERE, |key| self.places[place].table.get(key));
            let holders = self.cells.holders(row);
            let belongs = holders
                .position(replica)
                .filter(|at| Rank::filed(&holders, *at) == rank && holders.mark(*at) != bucket.mark);
            let hits = belongs.map_or(0, |at| holders.filed(at));
            let Some(bucket) = self.replicas[replica].filing.get_mut(&(rank, place)) else { return };
            let room = bucket.room();
            if let Some(key) = bucket.unseen.pop() {
                if let Some(at) = belongs {
                    bucket.listed.push(key);
                    self.cells.set_filed(row, at, hits, bucket.mark);
                }
            } else {
                std::mem::swap(&mut bucket.unseen, &mut bucket.listed);
                bucket.listed = Vec::new();
                bucket.mark = !bucket.mark;
            }
            self.filed_room = self.filed_room - room + bucket.room();
        }
    }

    /// Whether the replica's cell of this key is filed there.
    pub(super) fn is_filed(&self, (rank, replica, place): Filed, key: u64) -> bool {
        let holders = self.cells.holders(self.places[place].table.get(key));
        holders.position(replica).is_some_and(|at| Rank::filed(&holders, at) == rank)
    }

    /// Files by time alone what was filed by hits, no more than `steps` keys.
    pub(super) fn refile_by_time(&mut self, tenant: u32, steps: usize) -> Progress {
        for _ in 0..steps {
            // By hits first: what has any is last.
            let Some(of) = self.tenants.get(tenant) else { return Progress::Done };
            let Some(filed) = of.order.last().copied().filter(|(rank, ..)| rank.hits > 0) else {
                self.tenants[tenant].by_hits = false;
                return Progress::Done;
            };
            if let Some(key) = self.pop(filed) {
                self.refile(filed, key, 0);
            }
        }
        Progress::More
    }

    /// Moves a key that was popped to where it belongs by its hits. Nothing happens if it did not belong
    /// where it was.
    pub(super) fn refile(&mut self, filed: Filed, key: u64, hits: u32) {
        let (rank, replica, place) = filed;
        let row = self.places[place].table.get(key);
        let holders = self.cells.holders(row);
        let Some(at) = holders.position(replica).filter(|at| Rank::filed(&holders, *at) == rank) else {
            return;
        };
        let mark = self.file((Rank { hits, ..rank }, replica, place), key);
        self.cells.set_filed(row, at, hits, mark);
        self.unfile(filed);
    }
}
