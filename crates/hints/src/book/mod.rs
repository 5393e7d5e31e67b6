//! Who holds what: prefixes that replicas reported, and those of engines that are heard here.
//!
//! ```text
//! names.rs   tenant ─> model ─┬─> scheme ─> adapter = a place ──> table.rs  hash -> row
//!                             └─> replica                                        │
//!                                    │                                           v
//!                                    └─> filing.rs  buckets of keys        cells.rs  a cell per holder
//!                                        by time: what goes first                (when, who, tokens)
//! ```
//!
//! A lookup goes from the left to the cells, a removal of a hash too; a clear goes by the replica's own
//! buckets, so both cost what they remove. Lookups share the lock. Writers hold it for a few hundred cells at
//! a time; a clear makes its replica a *ghost* first, which nobody finds and no lookup matches, and takes its
//! cells away after that.
//!
//! An entry that is too old is never matched. It counts as *known*, for scope and for censuses, until
//! [`Book::expire`] comes by, as it does at inference-cache.

mod admit;
mod cells;
mod census;
mod filing;
mod hear;
mod known;
mod look;
mod names;
mod reported;
mod sweep;
mod table;
#[cfg(test)]
mod tests;
mod wide;

use std::sync::Arc;

use parking_lot::{RwLock, RwLockWriteGuard};

use self::cells::{Cell, Seen};
use self::known::{Known, Listener};
use self::look::View;
use self::names::{Ghost, Tenant};
use self::sweep::Progress;
use crate::RESERVED_TENANT;
use crate::decide;
use crate::observer::{Happened, Observer};
use crate::policy::{Eviction, Policies};
use crate::prefix::{Entry, PrefixHash};
use crate::question::{Question, ReasonCode, Verdict};

pub use self::census::{
    Census, Dropped, Expired, Limits, ModelCensus, Refused, ReplicaCensus, Reported, Stats, Whose,
};

/// Cells that are written before others get the lock: some 100 us.
const AT_ONCE: usize = 256;

/// Who holds what.
#[derive(Debug)]
pub struct Book {
    limits: Limits,
    policies: RwLock<Arc<Policies>>,
    known: RwLock<Known>,
    observer: Option<Arc<dyn Observer>>,
}

impl Book {
    /// An empty book, and an observer of its changes.
    pub fn new(limits: Limits, policies: Policies, observer: Option<Arc<dyn Observer>>) -> Self {
        Self { limits, policies: RwLock::new(Arc::new(policies)), known: RwLock::new(Known::new()), observer }
    }

    /// What the book dropped by itself.
    pub fn dropped(&self) -> Vec<Dropped> {
        self.known.read().drops.all()
    }

    /// The memory that it takes, but for what the allocator adds.
    pub fn bytes(&self) -> usize {
        self.known.read().bytes()
    }

    /// How tenants are treated.
    pub fn policies(&self) -> Arc<Policies> {
        self.policies.read().clone()
    }

    /// Treats tenants otherwise from now on. What is too much for a smaller quota goes with the tenant's next
    /// report, or when [`Self::expire`] comes by.
    pub fn set_policies(&self, policies: Policies) {
        *self.policies.write() = Arc::new(policies);
        self.forget_hits(&mut self.known.write());
    }

    /// Where hits do not count any more, time alone decides what goes first.
    fn forget_hits(&self, known: &mut RwLockWriteGuard<'_, Known>) {
        let policies = self.policies();
        let by_time = |(number, tenant): (u32, &Tenant)| {
            (tenant.by_hits && policies.of(&tenant.name).eviction == Eviction::Lru).then_some(number)
        };
        let tenants: Vec<u32> = known.tenants.iter().filter_map(by_time).collect();
        for tenant in tenants {
            while known.refile_by_time(tenant, AT_ONCE) == Progress::More {
                RwLockWriteGuard::bump(known);
            }
        }
    }

    /// A replica holds these, as of `at_us`. Nothing is taken of a reserved tenant, of an empty scheme, or of
    /// a replica that is heard here, and no hash of more than [`PrefixHash::MAX_BYTES`]. Entries that cannot
    /// be named are left out; a report of a replica that cannot be named is refused.
    pub fn report(
        &self,
        whose: Whose<'_>,
        scheme: &str,
        at_us: i64,
        entries: &[Entry],
    ) -> Result<Reported, Refused> {
        let mut reported = Reported::default();
        if whose.tenant == RESERVED_TENANT || scheme.is_empty() {
            return Ok(reported);
        }
        let policies = self.policies();
        let mut known = self.known.write();
        for (nth, entries) in entries.chunks(AT_ONCE).enumerate() {
            if nth > 0 {
                RwLockWriteGuard::bump(&mut known);
            }
            if known.find(whose).is_some_and(|replica| known.replicas[replica].heard) {
                break;
            }
            let replica = known.admit(whose, Some(&self.limits))?;
            self.write(&mut known, replica, scheme, at_us, entries, &mut reported);
            let tenant = known.replicas[replica].tenant;
            known.settle(replica);
            self.keep_within(&mut known, &policies, Some(tenant));
        }
        Ok(reported)
    }

    fn write(
        &self,
        known: &mut Known,
        replica: u32,
        scheme: &str,
        at_us: i64,
        entries: &[Entry],
        reported: &mut Reported,
    ) {
        let listener = self.listener();
        let model = known.replicas[replica].model;
        let mut last: Option<(&Arc<str>, bool, Option<u32>)> = None;
        for entry in entries {
            let wide = matches!(entry.hash, PrefixHash::Wide(_));
            if matches!(&entry.hash, PrefixHash::Wide(bytes) if bytes.len() > PrefixHash::MAX_BYTES) {
                continue;
            }
            // Entries of one report mostly go to one place.
            let place = match last {
                Some((adapter, was_wide, place)) if was_wide == wide && **adapter == *entry.adapter => place,
                _ => known.place(model, scheme, &entry.adapter, wide, Some(&self.limits)).ok(),
            };
            last = Some((&entry.adapter, wide, place));
            let Some(place) = place else {
                reported.unnamed += 1;
                continue;
            };
            reported.taken += 1;
            let key = known.key(&entry.hash);
            let cell = Cell { seen: Seen::reported(at_us, entry.tier), tokens: entry.tokens };
            if known.put(replica, place, key, cell) {
                known.tell(listener, replica, place, key, true);
            }
            let owner = &mut known.replicas[replica];
            owner.last_event_us = owner.last_event_us.max(at_us);
        }
    }

    fn keep_within(&self, known: &mut RwLockWriteGuard<'_, Known>, policies: &Policies, tenant: Option<u32>) {
        let listener = self.listener();
        while known.keep_within(tenant, &self.limits, policies, AT_ONCE, listener) == Progress::More {
            RwLockWriteGuard::bump(known);
        }
    }

    /// A replica does not hold this any more, in any scheme; with an empty adapter with none. Returns how
    /// many went.
    pub fn evict(&self, whose: Whose<'_>, hash: &PrefixHash, adapter: &str) -> usize {
        let mut known = self.known.write();
        let Some(replica) = known.find(whose).filter(|replica| !known.replicas[*replica].heard) else {
            return 0;
        };
        let Some(key) = known.find_key(hash) else { return 0 };
        let mut evicted = 0;
        for place in known.places_of(replica, hash, adapter) {
            evicted += usize::from(self.evict_from(&mut known, replica, place, key));
        }
        known.settle(replica);
        evicted
    }

    fn evict_from(&self, known: &mut Known, replica: u32, place: u32, key: u64) -> bool {
        let holds = known.cells.holders(known.places[place].table.get(key)).position(replica).is_some();
        if holds {
            known.tell(self.listener(), replica, place, key, false);
        }
        let Some(filed) = known.take(replica, place, key) else { return false };
        known.tidy(filed);
        holds
    }

    /// A replica holds nothing any more; what it said of itself goes too. Returns how many prefixes went.
    pub fn clear(&self, whose: Whose<'_>) -> usize {
        let mut known = self.known.write();
        let Some(replica) = known.find(whose).filter(|replica| !known.replicas[*replica].heard) else {
            return 0;
        };
        let ghost = self.detach(&mut known, whose, replica);
        Self::drain(&mut known, &ghost);
        ghost.entries
    }

    fn detach(&self, known: &mut Known, whose: Whose<'_>, replica: u32) -> Ghost {
        let ghost = known.detach(replica);
        if let Some(listener) = self.listener() {
            listener.happened(whose, Happened::Cleared);
        }
        ghost
    }

    fn drain(known: &mut RwLockWriteGuard<'_, Known>, ghost: &Ghost) {
        while known.drain(ghost, AT_ONCE) == Progress::More {
            RwLockWriteGuard::bump(known);
        }
    }

    /// A replica is gone, with everything about it.
    pub fn forget(&self, whose: Whose<'_>) {
        let mut known = self.known.write();
        if let Some(replica) = known.find(whose) {
            let ghost = self.detach(&mut known, whose, replica);
            Self::drain(&mut known, &ghost);
        }
    }

    /// Forgets what was reported too long ago, and what is too much. Others get the lock in between.
    pub fn expire(&self, now_us: i64) -> Expired {
        let policies = self.policies();
        let overdue = self.known.read().overdue(now_us, &policies);
        let mut expired = Expired::default();
        for filed in overdue {
            let mut left = usize::MAX;
            while left > 0 {
                let mut known = self.known.write();
                let (dropped, below) =
                    known.expire_some(filed, left, now_us, &policies, AT_ONCE, self.listener());
                expired.entries += dropped;
                left = below;
            }
        }
        let mut known = self.known.write();
        known.expire_stats(now_us, &policies);
        self.forget_hits(&mut known);
        let tenants: Vec<u32> = known.tenants.iter().map(|(number, _)| number).collect();
        for tenant in tenants {
            self.keep_within(&mut known, &policies, Some(tenant));
        }
        expired
    }

    /// Who should serve a prompt.
    pub fn lookup(&self, question: &Question<'_>, now_us: i64) -> Verdict {
        let policies = self.policies();
        let policy = policies.of(question.tenant);
        let asked = match decide::before_lookup(question, policy) {
            Ok(asked) => asked,
            Err(reason) => return Verdict::nobody(reason),
        };
        let matched = {
            let known = self.known.read();
            let view = View::new(&known, question, now_us, policy.ttl_us());
            let decision = decide::decide(question, asked, policy, &view);
            if policy.eviction == Eviction::Lfu {
                view.credit(asked.hashes(), &decision.delivered);
            }
            decision.verdict
        };
        matched.unwrap_or_else(|| {
            if !policy.affinity_routing {
                return Verdict::nobody(ReasonCode::NoHint);
            }
            // Writers need not wait for the hash of a long prompt.
            let seed = decide::seed(asked);
            let known = self.known.read();
            decide::affinity(seed, &View::new(&known, question, now_us, policy.ttl_us()))
        })
    }

    /// The replicas of a tenant's model with their statistics, and how many distinct prefixes they hold.
    pub fn state(&self, tenant: &str, model: &str) -> (Vec<(Arc<str>, Stats)>, usize) {
        let known = self.known.read();
        let Some(model) = known.model(tenant, model) else { return (Vec::new(), 0) };
        let model = &known.models[model];
        let stats = |(name, number): (&Arc<str>, &u32)| {
            let report = known.replicas[*number].report?;
            Some((name.clone(), report.stats))
        };
        (model.replicas.iter().filter_map(stats).collect(), model.keys)
    }

    /// Everything, counted.
    pub fn census(&self) -> Census {
        let known = self.known.read();
        let mut census = Census::default();
        for (tenant, number) in &known.by_name {
            for (model, number) in &known.tenants[*number].models {
                let of = &known.models[*number];
                if of.keys > 0 {
                    census.models.push(ModelCensus {
                        tenant: tenant.clone(),
                        model: model.clone(),
                        prefixes: of.keys,
                        entries: of.entries,
                    });
                }
                census.replicas.extend(of.replicas.iter().map(|(replica, number)| {
                    let of = &known.replicas[*number];
                    ReplicaCensus {
                        tenant: tenant.clone(),
                        model: model.clone(),
                        replica: replica.clone(),
                        stats: of.report.map(|report| (report.stats, report.alive_us)),
                        prefixes: of.entries(),
                        last_event_us: of.last_event_us,
                        heard: of.heard,
                    }
                }));
            }
        }
        census
    }

    #[cfg(test)]
    fn holds(&self, whose: Whose<'_>, scheme: &str, adapter: &str, hash: &PrefixHash) -> bool {
        let known = self.known.read();
        let holds = || {
            let replica = known.find(whose)?;
            let wide = matches!(hash, PrefixHash::Wide(_));
            let place = known.find_place(known.replicas[replica].model, scheme, adapter, wide)?;
            let row = known.places[place].table.get(known.find_key(hash)?);
            known.cells.holders(row).position(replica)
        };
        holds().is_some()
    }

    fn listener(&self) -> Listener<'_> {
        self.observer.as_deref().filter(|observer| observer.listens())
    }
}
