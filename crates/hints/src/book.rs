//! Who holds what: prefixes that replicas reported, and those of engines that are heard here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::RESERVED_TENANT;
use crate::decide::{self, Candidate, Knowledge, Unknown};
use crate::observer::{Happened, Observer};
use crate::policy::{Eviction, Policies};
use crate::prefix::{CacheTier, Entry, Note, PrefixHash};
use crate::question::{Question, ReasonCode, Verdict};

/// Statistics older than this do not make a replica hot.
const HOT_FOR_US: i64 = 5 * 60 * 1_000_000;
/// A replica that hits less often is not hot.
const HOT_RATE: f32 = 0.1;

/// Bounds of the whole book.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Reported (replica, prefix) pairs. Engines that are heard do not count: what they hold is bounded elsewhere.
    pub max_entries: usize,
    /// Names of tenants, models, schemes, adapters and replicas that reports bring. Engines that are heard do not count.
    pub max_names: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_entries: 1_000_000, max_names: 65_536 }
    }
}

/// Why something was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// One more name would be too many.
    #[error("too many tenants, models, schemes, adapters and replicas: at most {max} names are kept")]
    TooManyNames {
        /// The bound.
        max: usize,
    },
    /// A name is too long.
    #[error("a name has {bytes} bytes: at most {max} are allowed")]
    NameTooLong {
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
}

/// A replica of a tenant's model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose<'a> {
    /// The tenant.
    pub tenant: &'a str,
    /// The model.
    pub model: &'a str,
    /// The replica.
    pub replica: &'a str,
}

/// What a replica says of itself. Numbers that are none are 0.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stats {
    /// Bytes of its cache in use.
    pub cache_memory_bytes: i64,
    /// Hits by queries, 0 to 1.
    pub hit_rate: f32,
    /// How busy it is, 0 to 1.
    pub pressure: f32,
    /// Tokens found behind the device.
    pub t2_hit_tokens: i64,
    /// Tokens looked for behind the device.
    pub t2_query_tokens: i64,
}

/// What was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expired {
    /// How many (replica, prefix) pairs.
    pub entries: usize,
}

/// Entries that the book dropped by itself, since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Whose.
    pub tenant: Arc<str>,
    /// By which order.
    pub algorithm: Eviction,
    /// `ttl`, `quota` or `cap`.
    pub reason: &'static str,
    /// How many (replica, prefix) pairs.
    pub entries: u64,
}

/// What is known of a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaCensus {
    /// Its tenant.
    pub tenant: Arc<str>,
    /// Its model.
    pub model: Arc<str>,
    /// Its name.
    pub replica: Arc<str>,
    /// Its statistics, and when they came.
    pub stats: Option<(Stats, i64)>,
    /// Prefixes that it holds.
    pub prefixes: usize,
    /// When something of it was last told.
    pub last_event_us: i64,
    /// It is an engine that is heard here.
    pub heard: bool,
}

/// What is known of a tenant's model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCensus {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The model.
    pub model: Arc<str>,
    /// Distinct prefixes.
    pub prefixes: usize,
    /// (replica, prefix) pairs.
    pub entries: usize,
}

/// Everything, counted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Census {
    /// By replica.
    pub replicas: Vec<ReplicaCensus>,
    /// By tenant and model.
    pub models: Vec<ModelCensus>,
}

type Name = (Arc<str>, Arc<str>, Arc<str>);
type Key = (Arc<str>, Arc<str>, Arc<str>, Arc<str>, PrefixHash);

#[derive(Debug, Clone)]
struct Held {
    tokens: u32,
    /// `None` for an engine that is heard: it says so itself when that changes.
    last_seen: Option<i64>,
    tier: CacheTier,
    hits: u64,
}

#[derive(Debug, Default)]
struct Known {
    /// (tenant, model, scheme, adapter, hash) to replica.
    entries: BTreeMap<Key, BTreeMap<Arc<str>, Held>>,
    stats: BTreeMap<Name, (Stats, i64)>,
    heard: BTreeSet<Name>,
}

/// Who holds what.
#[derive(Debug)]
pub struct Book {
    limits: Limits,
    policies: RwLock<Arc<Policies>>,
    known: RwLock<Known>,
    observer: Option<Arc<dyn Observer>>,
}

impl Book {
    /// An empty book, and somebody who is told of its changes.
    pub fn new(limits: Limits, policies: Policies, observer: Option<Arc<dyn Observer>>) -> Self {
        Self { limits, policies: RwLock::new(Arc::new(policies)), known: RwLock::default(), observer }
    }

    /// What the book dropped by itself.
    pub fn dropped(&self) -> Vec<Dropped> {
        Vec::new()
    }

    /// An estimate of the memory that it takes.
    pub fn bytes(&self) -> usize {
        0
    }

    /// How tenants are treated.
    pub fn policies(&self) -> Arc<Policies> {
        self.policies.read().clone()
    }

    /// Treats tenants otherwise from now on.
    pub fn set_policies(&self, policies: Policies) {
        *self.policies.write() = Arc::new(policies);
    }

    /// A replica holds these, as of `at_us`. Returns how many were taken: none of a reserved tenant, of an empty scheme, or of a
    /// replica that is heard here.
    pub fn report(
        &self,
        whose: Whose<'_>,
        scheme: &str,
        at_us: i64,
        entries: &[Entry],
    ) -> Result<usize, Refused> {
        let mut known = self.known.write();
        if whose.tenant == RESERVED_TENANT || scheme.is_empty() || known.heard.contains(&owned(whose)) {
            return Ok(0);
        }
        for entry in entries {
            known.put(whose, scheme, entry, Some(at_us));
        }
        known.keep_within(&self.limits, &self.policies.read());
        Ok(entries.len())
    }

    /// A replica does not hold this any more, in any scheme; with an empty adapter in none. Returns how many went.
    pub fn evict(&self, whose: Whose<'_>, hash: &PrefixHash, adapter: &str) -> usize {
        let mut known = self.known.write();
        if known.heard.contains(&owned(whose)) {
            return 0;
        }
        known.remove(whose, |key| key.4 == *hash && (adapter.is_empty() || *key.3 == *adapter))
    }

    /// A replica holds nothing any more; what it said of itself goes too. Returns how many prefixes went.
    pub fn clear(&self, whose: Whose<'_>) -> usize {
        let mut known = self.known.write();
        if known.heard.contains(&owned(whose)) {
            return 0;
        }
        known.stats.remove(&owned(whose));
        known.remove(whose, |_| true)
    }

    /// What a replica says of itself.
    pub fn set_stats(&self, whose: Whose<'_>, stats: Stats, at_us: i64) -> Result<(), Refused> {
        if whose.tenant == RESERVED_TENANT {
            return Ok(());
        }
        let number = |value: f32| if value.is_finite() { value } else { 0.0 };
        let stats = Stats { hit_rate: number(stats.hit_rate), pressure: number(stats.pressure), ..stats };
        self.known.write().stats.insert(owned(whose), (stats, at_us));
        if let Some(observer) = self.observer.as_ref().filter(|observer| observer.listens()) {
            observer.happened(whose, Happened::Updated);
        }
        Ok(())
    }

    /// A replica is alive: what it said of itself still holds.
    pub fn alive(&self, whose: Whose<'_>, at_us: i64) {
        if let Some((_, at)) = self.known.write().stats.get_mut(&owned(whose)) {
            *at = at_us;
        }
    }

    /// What changed for an engine that is heard here. From the first call on it speaks for itself: reports about it are not taken.
    pub fn hear(&self, whose: Whose<'_>, scheme: &str, notes: &[Note]) {
        let mut known = self.known.write();
        if known.heard.insert(owned(whose)) {
            known.remove(whose, |_| true);
        }
        for note in notes {
            match note {
                Note::Held(prefix) => {
                    let hash = PrefixHash::Fingerprint(prefix.fingerprint);
                    let entry = Entry {
                        hash,
                        tokens: prefix.tokens,
                        tier: prefix.tier,
                        adapter: prefix.adapter.clone(),
                    };
                    known.put(whose, scheme, &entry, None);
                }
                Note::Gone { fingerprint, adapter } => {
                    let hash = PrefixHash::Fingerprint(*fingerprint);
                    known.remove(whose, |key| key.4 == hash && key.3 == *adapter);
                }
                Note::Nothing => {
                    known.remove(whose, |_| true);
                }
            }
        }
    }

    /// A replica is gone, with everything about it.
    pub fn forget(&self, whose: Whose<'_>) {
        let mut known = self.known.write();
        known.heard.remove(&owned(whose));
        known.stats.remove(&owned(whose));
        known.remove(whose, |_| true);
    }

    /// Forgets what was reported too long ago.
    pub fn expire(&self, now_us: i64) -> Expired {
        let policies = self.policies();
        let mut entries = 0;
        self.known.write().entries.retain(|key, holders| {
            let ttl = policies.of(&key.0).ttl.as_micros() as i64;
            let before = holders.len();
            holders.retain(|_, held| held.last_seen.is_none_or(|seen| now_us - seen < ttl));
            entries += before - holders.len();
            !holders.is_empty()
        });
        Expired { entries }
    }

    /// Who should serve a prompt.
    pub fn lookup(&self, question: &Question<'_>, now_us: i64) -> Verdict {
        let policies = self.policies();
        let policy = policies.of(question.tenant);
        let asked = match decide::before_lookup(question, policy) {
            Ok(asked) => asked,
            Err(reason) => return Verdict::nobody(reason),
        };
        let mut known = self.known.write();
        let view = View { known: &known, question, now_us, ttl_us: policy.ttl.as_micros() as i64 };
        let verdict = decide::decide(question, asked, policy, &view);
        if verdict.reason == ReasonCode::PrefixMatch {
            known.credit(question, asked, &verdict);
        }
        verdict
    }

    /// The replicas of a tenant's model with their statistics, and how many distinct prefixes they hold.
    pub fn state(&self, tenant: &str, model: &str) -> (Vec<(Arc<str>, Stats)>, usize) {
        let known = self.known.read();
        let of = |stats: (&Name, &(Stats, i64))| {
            let ((of_tenant, of_model, replica), (stats, _)) = stats;
            (**of_tenant == *tenant && **of_model == *model).then(|| (replica.clone(), *stats))
        };
        let replicas = known.stats.iter().filter_map(of).collect();
        let prefixes = known.entries.keys().filter(|key| *key.0 == *tenant && *key.1 == *model).count();
        (replicas, prefixes)
    }

    /// Everything, counted.
    pub fn census(&self) -> Census {
        let known = self.known.read();
        let mut models: BTreeMap<(Arc<str>, Arc<str>), (usize, usize)> = BTreeMap::new();
        let mut replicas: BTreeMap<Name, (usize, i64)> = BTreeMap::new();
        for ((tenant, model, ..), holders) in &known.entries {
            let counts = models.entry((tenant.clone(), model.clone())).or_default();
            *counts = (counts.0 + 1, counts.1 + holders.len());
            for (replica, held) in holders {
                let counts = replicas.entry((tenant.clone(), model.clone(), replica.clone())).or_default();
                *counts = (counts.0 + 1, counts.1.max(held.last_seen.unwrap_or(0)));
            }
        }
        for key in known.stats.keys() {
            replicas.entry(key.clone()).or_default();
        }
        let replicas = replicas.into_iter().map(|(key, (prefixes, last_event_us))| ReplicaCensus {
            stats: known.stats.get(&key).copied(),
            heard: known.heard.contains(&key),
            prefixes,
            last_event_us,
            tenant: key.0,
            model: key.1,
            replica: key.2,
        });
        let models = models.into_iter().map(|((tenant, model), (prefixes, entries))| ModelCensus {
            tenant,
            model,
            prefixes,
            entries,
        });
        Census { replicas: replicas.collect(), models: models.collect() }
    }
}

impl Known {
    fn put(&mut self, whose: Whose<'_>, scheme: &str, entry: &Entry, last_seen: Option<i64>) {
        let key = (
            whose.tenant.into(),
            whose.model.into(),
            scheme.into(),
            entry.adapter.clone(),
            entry.hash.clone(),
        );
        let holders = self.entries.entry(key).or_default();
        let hits = holders.get(whose.replica).map_or(0, |held| held.hits);
        let held = Held { tokens: entry.tokens, last_seen, tier: entry.tier, hits };
        holders.insert(whose.replica.into(), held);
    }

    fn remove(&mut self, whose: Whose<'_>, matches: impl Fn(&Key) -> bool) -> usize {
        let mut removed = 0;
        self.entries.retain(|key, holders| {
            if *key.0 == *whose.tenant && *key.1 == *whose.model && matches(key) {
                removed += usize::from(holders.remove(whose.replica).is_some());
            }
            !holders.is_empty()
        });
        removed
    }

    fn credit(&mut self, question: &Question<'_>, asked: crate::Asked<'_>, verdict: &Verdict) {
        let hashes = match asked {
            crate::Asked::Chain { hashes, .. } => hashes,
            crate::Asked::Exact { hash, .. } => std::slice::from_ref(hash),
            crate::Asked::Nothing => return,
        };
        for hash in hashes {
            let key = key(question, hash);
            let Some(holders) = self.entries.get_mut(&key) else { return };
            for (replica, held) in holders {
                if verdict.scores.iter().any(|score| score.replica == *replica) {
                    held.hits += 1;
                }
            }
        }
    }

    fn keep_within(&mut self, limits: &Limits, policies: &Policies) {
        for (tenant, quota) in &policies.quotas {
            let Some(max) = quota.max_entries else { continue };
            while self.entries.keys().filter(|key| *key.0 == **tenant).count() > max {
                if !self.evict_one(|key| *key.0 == **tenant, policies) {
                    break;
                }
            }
        }
        let reported = |known: &Self| {
            known.entries.values().flat_map(BTreeMap::values).filter(|held| held.last_seen.is_some()).count()
        };
        while reported(self) > limits.max_entries {
            if !self.evict_one(|_| true, policies) {
                break;
            }
        }
    }

    fn evict_one(&mut self, matches: impl Fn(&Key) -> bool, policies: &Policies) -> bool {
        let oldest = self
            .entries
            .iter()
            .filter(|(key, _)| matches(key))
            .flat_map(|(key, holders)| holders.iter().map(move |(replica, held)| (key, replica, held)))
            .filter_map(|(key, replica, held)| {
                let hits = if policies.of(&key.0).eviction == Eviction::Lfu { held.hits } else { 0 };
                Some(((hits, held.last_seen?), key.clone(), replica.clone()))
            })
            .min();
        let Some((_, key, replica)) = oldest else { return false };
        if let Some(holders) = self.entries.get_mut(&key) {
            holders.remove(&replica);
            if holders.is_empty() {
                self.entries.remove(&key);
            }
        }
        true
    }
}

fn key(question: &Question<'_>, hash: &PrefixHash) -> Key {
    let Question { tenant, model, scheme, adapter, .. } = *question;
    (tenant.into(), model.into(), scheme.into(), adapter.into(), hash.clone())
}

fn owned(whose: Whose<'_>) -> (Arc<str>, Arc<str>, Arc<str>) {
    (whose.tenant.into(), whose.model.into(), whose.replica.into())
}

struct View<'a> {
    known: &'a Known,
    question: &'a Question<'a>,
    now_us: i64,
    ttl_us: i64,
}

impl View<'_> {
    fn in_scope(&self, key: &Key) -> bool {
        let Question { tenant, model, scheme, .. } = *self.question;
        *key.0 == *tenant && *key.1 == *model && *key.2 == *scheme
    }

    /// `None` once it is too old.
    fn freshness(&self, held: &Held) -> Option<f32> {
        let Some(seen) = held.last_seen else { return Some(1.0) };
        let age = (self.now_us - seen).max(0);
        (age < self.ttl_us).then(|| 1.0 - age as f32 / self.ttl_us as f32)
    }

    fn stats(&self, replica: &Arc<str>) -> Option<&(Stats, i64)> {
        let Question { tenant, model, .. } = *self.question;
        self.known.stats.get(&(tenant.into(), model.into(), replica.clone()))
    }

    fn holders(&self, hash: &PrefixHash) -> Vec<Candidate> {
        let Some(holders) = self.known.entries.get(&key(self.question, hash)) else { return Vec::new() };
        let candidate = |(replica, held): (&Arc<str>, &Held)| {
            Some(Candidate {
                replica: replica.clone(),
                matched_tokens: held.tokens,
                freshness: self.freshness(held)?,
                tier: held.tier,
                pressure: self.stats(replica).map_or(0.0, |(stats, _)| stats.pressure),
            })
        };
        holders.iter().filter_map(candidate).collect()
    }
}

impl Knowledge for View<'_> {
    fn unknown(&self) -> Option<Unknown> {
        let Question { tenant, model, scheme, .. } = *self.question;
        let any = |matches: &dyn Fn(&Key) -> bool| self.known.entries.keys().any(matches);
        if self.known.entries.is_empty() {
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
        self.names().len()
    }

    fn names(&self) -> Vec<Arc<str>> {
        let in_scope = self.known.entries.iter().filter(|(key, _)| self.in_scope(key));
        let names: BTreeSet<Arc<str>> = in_scope.flat_map(|(_, holders)| holders.keys().cloned()).collect();
        names.into_iter().collect()
    }

    fn chain(&self, hashes: &[PrefixHash], counts: &[u32]) -> Vec<Candidate> {
        let mut runs: Vec<Candidate> = Vec::new();
        let mut going: BTreeSet<Arc<str>> = BTreeSet::new();
        for (at, (hash, count)) in hashes.iter().zip(counts).enumerate() {
            let holders = self.holders(hash);
            if at == 0 {
                going = holders.iter().map(|holder| holder.replica.clone()).collect();
                runs.extend(holders.into_iter().map(|holder| Candidate { matched_tokens: *count, ..holder }));
                continue;
            }
            going.retain(|replica| holders.iter().any(|holder| holder.replica == *replica));
            for run in runs.iter_mut().filter(|run| going.contains(&run.replica)) {
                let Some(holder) = holders.iter().find(|holder| holder.replica == run.replica) else {
                    continue;
                };
                run.matched_tokens = run.matched_tokens.saturating_add(*count);
                run.freshness = run.freshness.min(holder.freshness);
                run.tier = run.tier.max(holder.tier);
            }
        }
        runs
    }

    fn exact(&self, hash: &PrefixHash) -> Vec<Candidate> {
        self.holders(hash)
    }

    fn hot(&self) -> Vec<(Arc<str>, f32, f32)> {
        let hot = |replica: Arc<str>| {
            let (stats, at) = self.stats(&replica)?;
            let fresh = self.now_us - at <= HOT_FOR_US && stats.hit_rate >= HOT_RATE;
            fresh.then_some((replica, stats.hit_rate, stats.pressure))
        };
        self.names().into_iter().filter_map(hot).collect()
    }
}
