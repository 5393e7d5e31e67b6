//! The naive book: maps and scans, nothing else. What the fast book answers is compared with this.
//!
//! It does not decide which of several equals is dropped: it looks which ones the book dropped, and whether
//! it might have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::book::look::{HOT_FOR_US, HOT_RATE};
use crate::book::{Book, Census, Expired, Limits, ModelCensus, ReplicaCensus, Stats, Whose};
use crate::decide::{self, Candidate, Knowledge, Unknown, Warm};
use crate::policy::{Eviction, Policies};
use crate::prefix::{CacheTier, Entry, Note, PrefixHash};
use crate::question::{Question, ReasonCode, Verdict};
use crate::{Asked, RESERVED_TENANT};

type Name = (Arc<str>, Arc<str>, Arc<str>);
/// (tenant, model, scheme, adapter, hash).
type Key = (Arc<str>, Arc<str>, Arc<str>, Arc<str>, PrefixHash);

#[derive(Debug, Clone)]
struct Held {
    tokens: u32,
    /// `None` for an engine that is heard.
    last_seen: Option<i64>,
    tier: CacheTier,
    hits: u32,
}

#[derive(Debug)]
pub(super) struct Oracle {
    limits: Limits,
    policies: Policies,
    entries: BTreeMap<Key, BTreeMap<Arc<str>, Held>>,
    /// With when they were reported, and when the replica was last known to be alive.
    stats: BTreeMap<Name, (Stats, i64, i64)>,
    heard: BTreeSet<Name>,
    last_event: BTreeMap<Name, i64>,
}

impl Oracle {
    pub(super) fn new(limits: Limits, policies: Policies) -> Self {
        Self {
            limits,
            policies,
            entries: BTreeMap::new(),
            stats: BTreeMap::new(),
            heard: BTreeSet::new(),
            last_event: BTreeMap::new(),
        }
    }

    pub(super) fn set_policies(&mut self, policies: Policies) {
        self.policies = policies;
    }

    /// After the book took the same report.
    pub(super) fn report(
        &mut self,
        whose: Whose<'_>,
        scheme: &str,
        at_us: i64,
        entries: &[Entry],
        book: &Book,
    ) {
        if whose.tenant == RESERVED_TENANT || scheme.is_empty() || self.heard.contains(&owned(whose)) {
            return;
        }
        for entry in entries {
            // Times before 1970 are as good as 1970, and very late ones as the last that there is.
            self.put(whose, scheme, entry, Some(at_us.clamp(0, (1 << 54) - 1)));
            let last = self.last_event.entry(owned(whose)).or_default();
            *last = at_us.max(*last);
        }
        if !entries.is_empty() {
            self.follow(book, &|tenant| tenant == whose.tenant);
        }
    }

    pub(super) fn evict(&mut self, whose: Whose<'_>, hash: &PrefixHash, adapter: &str) -> usize {
        if self.heard.contains(&owned(whose)) {
            return 0;
        }
        self.remove(whose, |key| key.4 == *hash && (adapter.is_empty() || *key.3 == *adapter))
    }

    pub(super) fn clear(&mut self, whose: Whose<'_>) -> usize {
        if self.heard.contains(&owned(whose)) {
            return 0;
        }
        self.stats.remove(&owned(whose));
        self.remove(whose, |_| true)
    }

    pub(super) fn set_stats(&mut self, whose: Whose<'_>, stats: Stats, at_us: i64) -> bool {
        let taken = whose.tenant != RESERVED_TENANT && !self.heard.contains(&owned(whose));
        if taken {
            self.stats.insert(owned(whose), (stats.finite(), at_us, at_us));
        }
        taken
    }

    pub(super) fn hear_stats(&mut self, whose: Whose<'_>, stats: Stats, at_us: i64) {
        self.hear(whose, "", &[]);
        if whose.tenant != RESERVED_TENANT {
            self.stats.insert(owned(whose), (stats.finite(), at_us, at_us));
        }
    }

    pub(super) fn alive(&mut self, whose: Whose<'_>, at_us: i64) -> bool {
        let heard = self.heard.contains(&owned(whose));
        if let Some((_, _, alive)) = self.stats.get_mut(&owned(whose)).filter(|_| !heard) {
            *alive = at_us;
        }
        !heard
    }

    pub(super) fn hear(&mut self, whose: Whose<'_>, scheme: &str, notes: &[Note]) {
        if whose.tenant == RESERVED_TENANT {
            return;
        }
        if self.heard.insert(owned(whose)) {
            self.remove(whose, |_| true);
            self.stats.remove(&owned(whose));
            self.last_event.remove(&owned(whose));
        }
        for note in notes {
            match note {
                Note::Held(prefix) => {
                    let entry = Entry {
                        hash: PrefixHash::Fingerprint(prefix.fingerprint),
                        tokens: prefix.tokens,
                        tier: prefix.tier,
                        adapter: prefix.adapter.clone(),
                    };
                    self.put(whose, scheme, &entry, None);
                }
                Note::Gone { fingerprint, adapter } => {
                    let hash = PrefixHash::Fingerprint(*fingerprint);
                    self.remove(whose, |key| *key.2 == *scheme && key.4 == hash && key.3 == *adapter);
                }
                Note::Nothing => {
                    self.remove(whose, |_| true);
                }
            }
        }
    }

    pub(super) fn forget(&mut self, whose: Whose<'_>) {
        self.heard.remove(&owned(whose));
        self.stats.remove(&owned(whose));
        self.remove(whose, |_| true);
    }

    /// After the book did.
    pub(super) fn expire(&mut self, now_us: i64, book: &Book) -> Expired {
        let mut entries = 0;
        let policies = &self.policies;
        self.entries.retain(|key, holders| {
            let before = holders.len();
            let ttl_us = policies.of(&key.0).ttl_us();
            holders.retain(|_, held| held.last_seen.is_none_or(|seen| now_us - seen < ttl_us));
            entries += before - holders.len();
            !holders.is_empty()
        });
        self.stats.retain(|name, (.., alive)| now_us - *alive < policies.of(&name.0).ttl_us());
        self.follow(book, &|_| true);
        Expired { entries }
    }

    pub(super) fn lookup(&mut self, question: &Question<'_>, now_us: i64) -> Verdict {
        let policy = self.policies.of(question.tenant).clone();
        let asked = match decide::before_lookup(question, &policy) {
            Ok(asked) => asked,
            Err(reason) => return Verdict::nobody(reason),
        };
        let names = self.names(question);
        let view = View { oracle: self, names: &names, question, now_us, ttl_us: policy.ttl_us() };
        let decision = decide::decide(question, asked, &policy, &view);
        if policy.eviction == Eviction::Lfu {
            for (who, depth) in decision.delivered {
                let hashes = match asked {
                    Asked::Chain { hashes, .. } => &hashes[..depth],
                    Asked::Exact { hash, .. } => std::slice::from_ref(hash),
                    Asked::Nothing => &[],
                };
                for hash in hashes {
                    let held =
                        self.entries.get_mut(&key(question, hash)).and_then(|held| held.get_mut(&names[who]));
                    held.expect("it was delivered").hits += 1;
                }
            }
        }
        decision.verdict.unwrap_or_else(|| {
            if !policy.affinity_routing {
                return Verdict::nobody(ReasonCode::NoHint);
            }
            let view = View { oracle: self, names: &names, question, now_us, ttl_us: policy.ttl_us() };
            decide::affinity(decide::seed(asked), &view)
        })
    }

    pub(super) fn state(&self, tenant: &str, model: &str) -> (Vec<(Arc<str>, Stats)>, usize) {
        let of = |((of_tenant, of_model, replica), (stats, ..)): (&Name, &(Stats, i64, i64))| {
            (**of_tenant == *tenant && **of_model == *model).then(|| (replica.clone(), *stats))
        };
        let replicas = self.stats.iter().filter_map(of).collect();
        let prefixes = self.entries.keys().filter(|key| *key.0 == *tenant && *key.1 == *model).count();
        (replicas, prefixes)
    }

    pub(super) fn census(&self) -> Census {
        let mut models: BTreeMap<(Arc<str>, Arc<str>), (usize, usize)> = BTreeMap::new();
        let mut replicas: BTreeMap<Name, usize> = BTreeMap::new();
        for ((tenant, model, ..), holders) in &self.entries {
            let counts = models.entry((tenant.clone(), model.clone())).or_default();
            *counts = (counts.0 + 1, counts.1 + holders.len());
            for replica in holders.keys() {
                *replicas.entry((tenant.clone(), model.clone(), replica.clone())).or_default() += 1;
            }
        }
        for name in self.stats.keys().chain(&self.heard) {
            replicas.entry(name.clone()).or_default();
        }
        let replicas = replicas.into_iter().map(|(name, prefixes)| ReplicaCensus {
            stats: self.stats.get(&name).map(|(stats, _, alive)| (*stats, *alive)),
            heard: self.heard.contains(&name),
            prefixes,
            last_event_us: self.last_event.get(&name).copied().unwrap_or(0),
            tenant: name.0,
            model: name.1,
            replica: name.2,
        });
        let models = models.into_iter().map(|((tenant, model), (prefixes, entries))| ModelCensus {
            tenant,
            model,
            prefixes,
            entries,
        });
        Census { replicas: replicas.collect(), models: models.collect() }
    }

    /// How many schemes each (whose, adapter, hash) is held in.
    pub(super) fn held(&self) -> BTreeMap<(Name, Arc<str>, PrefixHash), usize> {
        let mut held = BTreeMap::new();
        for ((tenant, model, _, adapter, hash), holders) in &self.entries {
            for replica in holders.keys() {
                let name = (tenant.clone(), model.clone(), replica.clone());
                *held.entry((name, adapter.clone(), hash.clone())).or_default() += 1;
            }
        }
        held
    }

    fn put(&mut self, whose: Whose<'_>, scheme: &str, entry: &Entry, last_seen: Option<i64>) {
        let Whose { tenant, model, replica } = whose;
        let key = (tenant.into(), model.into(), scheme.into(), entry.adapter.clone(), entry.hash.clone());
        let holders = self.entries.entry(key).or_default();
        let hits = holders.get(replica).map_or(0, |held| held.hits);
        holders.insert(replica.into(), Held { tokens: entry.tokens, last_seen, tier: entry.tier, hits });
    }

    fn remove(&mut self, whose: Whose<'_>, matches: impl Fn(&Key) -> bool) -> usize {
        let mut removed = 0;
        self.entries.retain(|key, holders| {
            if *key.0 == *whose.tenant && *key.1 == *whose.model && matches(key) {
                removed += usize::from(holders.remove(whose.replica).is_some());
            }
            !holders.is_empty()
        });
        self.forget_times();
        removed
    }

    /// Times of replicas of which nothing else is known go with them.
    fn forget_times(&mut self) {
        let known: BTreeSet<Name> =
            self.census().replicas.into_iter().map(|of| (of.tenant, of.model, of.replica)).collect();
        self.last_event.retain(|name, _| known.contains(name));
    }

    /// What goes first.
    fn rank(&self, key: &Key, held: &Held) -> Option<(u32, i64)> {
        let hits = if self.policies.of(&key.0).eviction == Eviction::Lfu { held.hits } else { 0 };
        Some((hits, held.last_seen? >> 22))
    }

    fn reported(&self) -> usize {
        self.entries.values().flat_map(BTreeMap::values).filter(|held| held.last_seen.is_some()).count()
    }

    fn reported_keys(&self, tenant: &str) -> usize {
        let reported = |holders: &BTreeMap<_, Held>| holders.values().any(|held| held.last_seen.is_some());
        self.entries.iter().filter(|(key, holders)| *key.0 == *tenant && reported(holders)).count()
    }

    /// Drops what the book dropped for a quota or the cap, if it might.
    fn follow(&mut self, book: &Book, quota_counts: &dyn Fn(&str) -> bool) {
        let (mut gone, mut kept) = (Vec::new(), Vec::new());
        for (key, holders) in &self.entries {
            for (replica, held) in holders {
                let whose = Whose { tenant: &key.0, model: &key.1, replica };
                let there = book.holds(whose, &key.2, &key.3, &key.4);
                let Some(rank) = self.rank(key, held) else {
                    assert!(there, "an engine that is heard lost {key:?}");
                    continue;
                };
                if there { &mut kept } else { &mut gone }.push((rank, key.clone(), replica.clone()));
            }
        }
        let quota = |tenant: &str| self.policies.max_entries(tenant).filter(|_| quota_counts(tenant));
        let over_cap = self.reported() > self.limits.max_entries;
        let mut over_quota = BTreeSet::new();
        for (rank, key, _) in &gone {
            let max = quota(&key.0).filter(|max| self.reported_keys(&key.0) > *max);
            over_quota.extend(max.map(|_| key.0.clone()));
            assert!(over_cap || max.is_some(), "{key:?} was dropped for nothing");
            // For a quota it is older than what is left of the tenant, for the cap than all that is left.
            for (other, of, _) in kept.iter().filter(|(_, of, _)| max.is_none() || of.0 == key.0) {
                assert!(rank <= other, "{key:?} was dropped before {of:?}");
            }
        }
        for (_, key, replica) in &gone {
            let holders = self.entries.get_mut(key).expect("it was just there");
            holders.remove(replica);
            if holders.is_empty() {
                self.entries.remove(key);
            }
        }
        for tenant in over_quota {
            let max = self.policies.max_entries(&tenant).expect("it has a quota");
            assert!(self.reported_keys(&tenant) == max || over_cap, "too much was dropped of {tenant}");
        }
        for (tenant, _) in self.policies.quotas.iter().filter(|(tenant, _)| quota_counts(tenant)) {
            assert!(self.policies.max_entries(tenant).is_none_or(|max| self.reported_keys(tenant) <= max));
        }
        assert!(self.reported() <= self.limits.max_entries);
        self.forget_times();
    }

    fn names(&self, question: &Question<'_>) -> Vec<Arc<str>> {
        let Question { tenant, model, scheme, .. } = *question;
        let in_scope = |key: &Key| *key.0 == *tenant && *key.1 == *model && *key.2 == *scheme;
        let in_scope = self.entries.iter().filter(|(key, _)| in_scope(key));
        let names: BTreeSet<Arc<str>> = in_scope.flat_map(|(_, holders)| holders.keys().cloned()).collect();
        names.into_iter().collect()
    }
}

fn key(question: &Question<'_>, hash: &PrefixHash) -> Key {
    let Question { tenant, model, scheme, adapter, .. } = *question;
    (tenant.into(), model.into(), scheme.into(), adapter.into(), hash.clone())
}

fn owned(whose: Whose<'_>) -> Name {
    (whose.tenant.into(), whose.model.into(), whose.replica.into())
}

struct View<'a> {
    oracle: &'a Oracle,
    names: &'a [Arc<str>],
    question: &'a Question<'a>,
    now_us: i64,
    ttl_us: i64,
}

impl View<'_> {
    fn stats(&self, replica: &Arc<str>) -> Option<(Stats, i64)> {
        let Question { tenant, model, .. } = *self.question;
        let (stats, at, _) = self.oracle.stats.get(&(tenant.into(), model.into(), replica.clone()))?;
        Some((*stats, *at))
    }

    fn holders(&self, hash: &PrefixHash) -> Vec<Candidate<usize>> {
        let Some(holders) = self.oracle.entries.get(&key(self.question, hash)) else { return Vec::new() };
        let candidate = |(replica, held): (&Arc<str>, &Held)| {
            let age = held.last_seen.map_or(0, |seen| (self.now_us - seen).max(0));
            (age < self.ttl_us).then(|| Candidate {
                who: self.names.binary_search(replica).expect("it is in scope"),
                matched_tokens: held.tokens,
                depth: 1,
                freshness: 1.0 - age as f32 / self.ttl_us as f32,
                tier: held.tier,
                pressure: self
                    .stats(replica)
                    .filter(|(_, at)| self.now_us - at < self.ttl_us)
                    .map_or(0.0, |(stats, _)| stats.pressure),
            })
        };
        holders.iter().filter_map(candidate).collect()
    }
}

impl Knowledge for View<'_> {
    type Who = usize;

    fn name(&self, who: usize) -> &Arc<str> {
        &self.names[who]
    }

    fn unknown(&self) -> Option<Unknown> {
        let Question { tenant, model, scheme, .. } = *self.question;
        let any = |matches: &dyn Fn(&Key) -> bool| self.oracle.entries.keys().any(matches);
        if self.oracle.entries.is_empty() {
            return Some(Unknown::Everything);
        }
        if !any(&|key| *key.0 == *tenant) {
            return Some(Unknown::Tenant);
        }
        if !any(&|key| *key.0 == *tenant && *key.1 == *model) {
            return Some(Unknown::Model);
        }
        let known = any(&|key| *key.0 == *tenant && *key.1 == *model && *key.2 == *scheme);
        (!known).then_some(Unknown::Scheme)
    }

    fn replicas(&self) -> usize {
        self.names.len()
    }

    fn nth(&self, at: usize) -> Option<Arc<str>> {
        self.names.get(at).cloned()
    }

    fn chain(&self, hashes: &[PrefixHash], counts: &[u32]) -> Vec<Candidate<usize>> {
        let mut runs: Vec<Candidate<usize>> = Vec::new();
        for (at, (hash, count)) in hashes.iter().zip(counts).enumerate() {
            for holder in self.holders(hash) {
                if at == 0 {
                    runs.push(Candidate { matched_tokens: *count, ..holder });
                } else if let Some(run) = runs.iter_mut().find(|run| run.who == holder.who && run.depth == at)
                {
                    run.depth += 1;
                    run.matched_tokens += count;
                    run.freshness = run.freshness.min(holder.freshness);
                    run.tier = run.tier.max(holder.tier);
                }
            }
        }
        runs
    }

    fn exact(&self, hash: &PrefixHash) -> Vec<Candidate<usize>> {
        self.holders(hash)
    }

    fn hot(&self) -> Vec<Warm> {
        let hot = |replica: &Arc<str>| {
            let (stats, at) = self.stats(replica)?;
            let age = (self.now_us - at).max(0);
            (age < HOT_FOR_US && stats.hit_rate >= HOT_RATE).then(|| Warm {
                replica: replica.clone(),
                hit_rate: stats.hit_rate,
                pressure: stats.pressure,
                freshness: 1.0 - age as f32 / HOT_FOR_US as f32,
            })
        };
        self.names.iter().filter_map(hot).collect()
    }
}
