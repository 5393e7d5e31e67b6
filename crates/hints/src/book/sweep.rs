//! What goes by itself: what is too old, too much for its tenant, or too much for the book. Always a few
//! cells at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::census::{Dropped, Limits, ReplicaReport};
use super::filing::{Filed, Rank};
use super::known::{Known, Listener};
use super::names::Ghost;
use crate::policy::{Eviction, Policies};

/// Drops are counted by tenant for this many tenants; what others lose is counted under [`OTHERS`]. Tenants
/// come and go, counts stay.
const TENANTS_COUNTED: usize = 4096;
/// No tenant's name: it is too odd, and it is only a label.
const OTHERS: &str = "(others)";

/// Why the book dropped something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    Ttl,
    Quota,
    Cap,
}

/// What the book dropped, counted.
#[derive(Debug, Default)]
pub(super) struct Drops {
    counts: BTreeMap<Arc<str>, BTreeMap<(Reason, bool), u64>>,
}

impl Drops {
    fn count(&mut self, tenant: &Arc<str>, reason: Reason, algorithm: Eviction) {
        let known = self.counts.len() < TENANTS_COUNTED || self.counts.contains_key(tenant);
        let tenant = if known { tenant.clone() } else { OTHERS.into() };
        *self.counts.entry(tenant).or_default().entry((reason, algorithm == Eviction::Lfu)).or_default() += 1;
    }

    pub(super) fn all(&self) -> Vec<Dropped> {
        let of = |tenant: &Arc<str>, (reason, by_hits): (Reason, bool), entries| Dropped {
            tenant: tenant.clone(),
            algorithm: if by_hits { Eviction::Lfu } else { Eviction::Lru },
            reason: match reason {
                Reason::Ttl => "ttl",
                Reason::Quota => "quota",
                Reason::Cap => "cap",
            },
            entries,
        };
        let counts = self.counts.iter();
        counts.flat_map(|(tenant, counts)| counts.iter().map(move |(key, n)| of(tenant, *key, *n))).collect()
    }
}

/// Whether there is more to do of the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    Done,
}

impl Known {
    /// Drops what a tenant has beyond its quota, and what the book has beyond its cap; looks at no more than
    /// `steps` cells.
    pub(super) fn keep_within(
        &mut self,
        tenant: Option<u32>,
        limits: &Limits,
        policies: &Policies,
        steps: usize,
        listener: Listener<'_>,
    ) -> Progress {
        for _ in 0..steps {
            let over_quota = tenant.filter(|tenant| {
                self.tenants.get(*tenant).is_some_and(|tenant| {
                    policies.max_entries(&tenant.name).is_some_and(|max| tenant.reported_keys > max)
                })
            });
            let (next, reason) = match over_quota {
                Some(tenant) => (self.tenants[tenant].order.first(), Reason::Quota),
                None if self.reported > limits.max_entries => (self.order.first(), Reason::Cap),
                None => return Progress::Done,
            };
            let Some(filed) = next.copied() else { return Progress::Done };
            self.drop_one(filed, reason, policies, listener);
        }
        Progress::More
    }

    /// Looks at one cell of the bucket that goes next.
    fn drop_one(&mut self, filed: Filed, reason: Reason, policies: &Policies, listener: Listener<'_>) {
        let (rank, replica, place) = filed;
        let tenant = self.replicas[replica].tenant;
        let algorithm = policies.of(&self.tenants[tenant].name).eviction;
        let Some(key) = self.pop(filed) else { return };
        let holders = self.cells.holders(self.places[place].table.get(key));
        let Some(at) = holders.position(replica).filter(|at| Rank::filed(&holders, *at) == rank) else {
            return;
        };
        let hits = holders.hits(at);
        if algorithm == Eviction::Lfu && hits > rank.hits {
            // It has answered since it was filed.
            self.tenants[tenant].by_hits = true;
            self.refile(filed, key, hits);
            return;
        }
        self.drop(replica, place, key, reason, algorithm, listener);
    }

    fn drop(
        &mut self,
        replica: u32,
        place: u32,
        key: u64,
        reason: Reason,
        algorithm: Eviction,
        listener: Listener<'_>,
    ) {
        if self.replicas[replica].ghost.is_none() {
            self.tell(listener, replica, place, key, false);
            self.drops.count(&self.tenants[self.replicas[replica].tenant].name, reason, algorithm);
        }
        self.take(replica, place, key);
        self.settle(replica);
    }

    /// Buckets that may hold something that is too old.
    pub(super) fn overdue(&self, now_us: i64, policies: &Policies) -> Vec<Filed> {
        let of_tenant = self.tenants.iter().flat_map(|(_, tenant)| {
            let policy = policies.of(&tenant.name);
            let last = now_us.saturating_sub(policy.ttl_us());
            let overdue = move |(rank, ..): &&Filed| rank.since_us() <= last;
            // Ordered by time, unless some are filed by hits.
            let by_hits = tenant.by_hits;
            tenant.order.iter().take_while(move |filed| by_hits || overdue(filed)).filter(overdue)
        });
        of_tenant.copied().collect()
    }

    /// Drops what is too old of a bucket's first `below` keys, from the last of them down; looks at no more
    /// than `steps`. Returns how many went, and how many keys are left to look at.
    pub(super) fn expire_some(
        &mut self,
        filed: Filed,
        mut below: usize,
        now_us: i64,
        policies: &Policies,
        steps: usize,
        listener: Listener<'_>,
    ) -> (usize, usize) {
        let (rank, replica, place) = filed;
        let mut dropped = 0;
        for _ in 0..steps {
            // The bucket goes with its last cell, and the replica with its last bucket.
            let owner = self.replicas.get(replica);
            let Some((owner, bucket)) =
                owner.and_then(|owner| Some((owner, owner.filing.get(&(rank, place))?)))
            else {
                return (dropped, 0);
            };
            below = below.min(bucket.len());
            let Some(key) = below.checked_sub(1).and_then(|at| bucket.key(at)) else { return (dropped, 0) };
            below -= 1;
            let policy = policies.of(&self.tenants[owner.tenant].name);
            let holders = self.cells.holders(self.places[place].table.get(key));
            let position = holders.position(replica).filter(|at| Rank::filed(&holders, *at) == rank);
            let seen = position.and_then(|at| holders.seen(at).at_us());
            if seen.is_some_and(|seen| now_us.saturating_sub(seen) < policy.ttl_us()) {
                continue;
            }
            // What moves to its place was looked at already.
            if let Some(bucket) = self.replicas[replica].filing.get_mut(&(rank, place)) {
                bucket.swap_remove(below);
            }
            if seen.is_some() {
                self.drop(replica, place, key, Reason::Ttl, policy.eviction, listener);
                dropped += 1;
            }
        }
        (dropped, below)
    }

    /// Statistics that nobody confirmed for as long as entries last are forgotten, and replicas that have
    /// nothing else.
    pub(super) fn expire_stats(&mut self, now_us: i64, policies: &Policies) {
        let old = |(number, replica): (u32, &super::names::Replica)| {
            let ttl_us = policies.of(&self.tenants[replica.tenant].name).ttl_us();
            let old = |report: ReplicaReport| now_us.saturating_sub(report.alive_us) >= ttl_us;
            replica.report.is_some_and(old).then_some(number)
        };
        let old: Vec<u32> = self.replicas.iter().filter_map(old).collect();
        for replica in old {
            self.replicas[replica].report = None;
            self.settle(replica);
        }
    }

    /// Takes away what is left of a forgotten replica, no more than `steps` cells.
    pub(super) fn drain(&mut self, ghost: &Ghost, steps: usize) -> Progress {
        let Ghost { replica, nth, .. } = *ghost;
        for _ in 0..steps {
            let owner = self.replicas.get(replica).filter(|owner| owner.ghost == Some(nth));
            let Some(owner) = owner else { return Progress::Done };
            let Some((rank, place)) = owner.filing.keys().next().copied() else {
                self.settle(replica);
                return Progress::Done;
            };
            if let Some(key) = self.pop((rank, replica, place))
                && self.is_filed((rank, replica, place), key)
            {
                self.take(replica, place, key);
            }
        }
        Progress::More
    }
}
