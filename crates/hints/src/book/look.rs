//! What a lookup knows: one tenant's model, one scheme, one adapter, at one moment.

use std::sync::Arc;

use super::cells::{Holders, Row, Run, Seen};
use super::census::{ReplicaReport, Stats};
use super::known::Known;
use super::names::{Model, Scheme};
use super::table::{Spot, Table};
use crate::decide::{Candidate, Knowledge, Unknown, Warm};
use crate::prefix::{CacheTier, PrefixHash};
use crate::question::Question;

/// Statistics older than this do not make a replica hot.
pub(super) const HOT_FOR_US: i64 = 5 * 60 * 1_000_000;
/// A replica that hits less often is not hot.
pub(super) const HOT_RATE: f32 = 0.1;
/// Rows of a chain that are looked for together: their loads do not wait for each other.
const TOGETHER: usize = 32;

pub(super) struct View<'a> {
    known: &'a Known,
    tenant: Option<u32>,
    model: Option<&'a Model>,
    scheme: Option<&'a Scheme>,
    narrow: Option<&'a Table>,
    wide: Option<&'a Table>,
    now_us: i64,
    ttl_us: i64,
    /// What was seen before this is too old.
    valid_from: Seen,
}

impl<'a> View<'a> {
    pub(super) fn new(known: &'a Known, question: &Question<'_>, now_us: i64, ttl_us: i64) -> Self {
        let tenant = known.by_name.get(question.tenant).copied();
        let model = known.model(question.tenant, question.model).map(|model| &known.models[model]);
        let scheme = model.and_then(|model| model.schemes.get(question.scheme));
        let places =
            scheme.and_then(|scheme| scheme.adapters.get(question.adapter)).copied().unwrap_or_default();
        let table = |place: Option<u32>| place.map(|place| &known.places[place].table);
        let (narrow, wide) = (table(places.narrow), table(places.wide));
        let valid_from = Seen::after(now_us.saturating_sub(ttl_us));
        Self { known, tenant, model, scheme, narrow, wide, now_us, ttl_us, valid_from }
    }

    fn row(&self, hash: &PrefixHash) -> Row {
        let table = match hash {
            PrefixHash::Fingerprint(_) => self.narrow,
            PrefixHash::Wide(_) => self.wide,
        };
        table.zip(self.known.find_key(hash)).map_or(Row::NOWHERE, |(table, key)| table.get(key))
    }

    /// Rows of several hashes, no more than [`TOGETHER`]. What has to come from memory is asked for first,
    /// all of it: a comparison that has to wait for it would hold up the next.
    fn rows(&self, hashes: &[PrefixHash]) -> [Row; TOGETHER] {
        let mut spots = [Spot::default(); TOGETHER];
        let mut touched = 0;
        for (spot, hash) in spots.iter_mut().zip(hashes) {
            if let (PrefixHash::Fingerprint(fingerprint), Some(table)) = (hash, self.narrow) {
                *spot = table.spot(*fingerprint);
                touched ^= table.touch(*spot);
            }
        }
        let mut rows = [Row::NOWHERE; TOGETHER];
        for ((row, spot), hash) in rows.iter_mut().zip(spots).zip(hashes) {
            *row = match (hash, self.narrow) {
                (PrefixHash::Fingerprint(fingerprint), Some(table)) => table.get_at(spot, *fingerprint),
                _ => self.row(hash),
            };
            touched ^= self.known.cells.run(*row).touch();
        }
        std::hint::black_box(touched);
        rows
    }

    /// Everybody who holds the first block.
    fn start<'b>(&self, first: Run<'b>) -> Going<'b> {
        let mut going = Going::default();
        for (who, seen) in first.who.iter().zip(first.seen()) {
            if self.counts(*who, seen) {
                going.who.push(*who);
                going.oldest.push(seen);
                going.coldest.push(seen.tier());
            }
        }
        going
    }

    fn counts(&self, who: u32, seen: Seen) -> bool {
        seen >= self.valid_from && self.known.replicas[who].ghost.is_none()
    }

    fn holders(&self, hash: &PrefixHash) -> Holders<'a> {
        self.known.cells.holders(self.row(hash))
    }

    fn freshness(&self, seen: Seen) -> f32 {
        let Some(at_us) = seen.at_us() else { return 1.0 };
        1.0 - self.age(at_us) as f32 / self.ttl_us as f32
    }

    fn age(&self, at_us: i64) -> i64 {
        self.now_us.saturating_sub(at_us).max(0)
    }

    fn candidate(
        &self,
        who: u32,
        matched_tokens: u32,
        depth: usize,
        oldest: Seen,
        tier: CacheTier,
    ) -> Candidate<u32> {
        // A word that is older than entries last says nothing of how busy somebody is now.
        let report = self.known.replicas[who].report.filter(|report| self.age(report.at_us) < self.ttl_us);
        let pressure = report.map_or(0.0, |report| report.stats.pressure);
        Candidate { who, matched_tokens, depth, freshness: self.freshness(oldest), tier, pressure }
    }

    /// Counts what was delivered for those that are kept longer the more they answer.
    pub(super) fn credit(&self, hashes: &[PrefixHash], delivered: &[(u32, usize)]) {
        let deepest = delivered.iter().map(|(_, depth)| *depth).max().unwrap_or(0);
        for (nth, hashes) in hashes[..deepest.min(hashes.len())].chunks(TOGETHER).enumerate() {
            for ((row, _), at) in self.rows(hashes).into_iter().zip(hashes).zip(nth * TOGETHER..) {
                let holders = self.known.cells.holders(row);
                for (who, _) in delivered.iter().filter(|(_, depth)| at < *depth) {
                    if let Some(position) = holders.position(*who) {
                        holders.hit(position);
                    }
                }
            }
        }
    }
}

/// Replicas that hold everything so far, sorted, and the oldest and the coldest of what each holds.
#[derive(Default)]
struct Going<'a> {
    who: Vec<u32>,
    oldest: Vec<Seen>,
    coldest: Vec<CacheTier>,
    /// The last block, if these and nobody else hold it.
    last: Option<Run<'a>>,
}

impl<'a> Going<'a> {
    /// Nearly always the next block has the same holders, and mostly it was reported together with the last
    /// one. Returns whether all hold it; otherwise nothing was done.
    fn all_go_on(&mut self, next: Run<'a>, valid_from: Seen) -> bool {
        if self.last == Some(next) {
            return true;
        }
        if next.who != self.who || next.seen().any(|seen| seen < valid_from) {
            return false;
        }
        let mine = self.oldest.iter_mut().zip(&mut self.coldest);
        for ((oldest, coldest), seen) in mine.zip(next.seen()) {
            *oldest = (*oldest).min(seen);
            *coldest = (*coldest).max(seen.tier());
        }
        self.last = Some(next);
        true
    }

    /// Goes on with those that hold the next block too; `ended` gets the others.
    fn go_on(&mut self, next: Run<'a>, valid_from: Seen, mut ended: impl FnMut(u32, Seen, CacheTier)) {
        self.last = None;
        let mut kept = 0;
        let mut holders = next.who.iter().zip(next.seen()).peekable();
        for at in 0..self.who.len() {
            let who = self.who[at];
            while holders.next_if(|(other, _)| **other < who).is_some() {}
            let held = holders.next_if(|(other, _)| **other == who);
            let Some((_, seen)) = held.filter(|(_, seen)| *seen >= valid_from) else {
                ended(who, self.oldest[at], self.coldest[at]);
                continue;
            };
            self.who[kept] = who;
            self.oldest[kept] = self.oldest[at].min(seen);
            self.coldest[kept] = self.coldest[at].max(seen.tier());
            kept += 1;
        }
        self.who.truncate(kept);
        self.oldest.truncate(kept);
        self.coldest.truncate(kept);
    }
}

impl Knowledge for View<'_> {
    type Who = u32;

    fn name(&self, who: u32) -> &Arc<str> {
        &self.known.replicas[who].name
    }

    fn unknown(&self) -> Option<Unknown> {
        if self.known.scoped == 0 {
            return Some(Unknown::Everything);
        }
        if self.tenant.is_none_or(|tenant| self.known.tenants[tenant].scoped == 0) {
            return Some(Unknown::Tenant);
        }
        if self.model.is_none_or(|model| model.scoped == 0) {
            return Some(Unknown::Model);
        }
        self.scheme.is_none_or(|scheme| scheme.scope.is_empty()).then_some(Unknown::Scheme)
    }

    fn replicas(&self) -> usize {
        self.scheme.map_or(0, |scheme| scheme.scope.len())
    }

    fn nth(&self, at: usize) -> Option<Arc<str>> {
        self.scheme?.scope.keys().nth(at).cloned()
    }

    fn chain(&self, hashes: &[PrefixHash], counts: &[u32]) -> Vec<Candidate<u32>> {
        let mut runs = Vec::new();
        let (mut going, mut depth, mut tokens) = (Going::default(), 0, 0_u32);
        for (hashes, counts) in hashes.chunks(TOGETHER).zip(counts.chunks(TOGETHER)) {
            for (row, count) in self.rows(hashes).iter().zip(counts) {
                let next = self.known.cells.run(*row);
                if depth == 0 {
                    going = self.start(next);
                } else if !going.all_go_on(next, self.valid_from) {
                    going.go_on(next, self.valid_from, |who, oldest, coldest| {
                        runs.push(self.candidate(who, tokens, depth, oldest, coldest));
                    });
                }
                if going.who.is_empty() {
                    return runs;
                }
                depth += 1;
                tokens = tokens.saturating_add(*count);
            }
        }
        for ((who, oldest), coldest) in going.who.iter().zip(going.oldest).zip(going.coldest) {
            runs.push(self.candidate(*who, tokens, depth, oldest, coldest));
        }
        runs
    }

    fn exact(&self, hash: &PrefixHash) -> Vec<Candidate<u32>> {
        let holders = self.holders(hash);
        let candidate = |(at, who): (usize, &u32)| {
            let seen = holders.seen(at);
            self.counts(*who, seen).then(|| self.candidate(*who, holders.tokens[at], 1, seen, seen.tier()))
        };
        holders.who.iter().enumerate().filter_map(candidate).collect()
    }

    fn hot(&self) -> Vec<Warm> {
        let scope = self.scheme.map(|scheme| scheme.scope.iter()).into_iter().flatten();
        let hot = |(name, (number, _)): (&Arc<str>, &(u32, u32))| {
            let ReplicaReport { stats: Stats { hit_rate, pressure, .. }, at_us, .. } =
                self.known.replicas[*number].report?;
            let age = self.age(at_us);
            let freshness = 1.0 - age as f32 / HOT_FOR_US as f32;
            let hot = age < HOT_FOR_US && hit_rate >= HOT_RATE;
            hot.then(|| Warm { replica: name.clone(), hit_rate, pressure, freshness })
        };
        scope.filter_map(hot).collect()
    }
}
