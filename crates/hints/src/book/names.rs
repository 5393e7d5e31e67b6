//! Tenants, their models, and the replicas and places of each: who there is. Numbers stand for names
//! everywhere else.
//!
//! A *place* is where prefixes can be compared: a tenant's model, a scheme and an adapter; wide hashes have
//! places of their own. A replica is in *scope* of a scheme while it holds anything there, whatever the
//! adapter.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use super::census::ReplicaReport;
use super::filing::{Bucket, Filed, Rank};
use super::table::Table;

/// Things by number; numbers of things that are gone are used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    items: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn add(&mut self, item: T) -> u32 {
        if let Some(number) = self.vacant.pop() {
            self.items[number as usize] = Some(item);
            return number;
        }
        self.items.push(Some(item));
        self.items.len() as u32 - 1
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let item = self.items.get_mut(number as usize)?.take()?;
        self.vacant.push(number);
        if self.vacant.len() == self.items.len() {
            *self = Self::default();
        }
        Some(item)
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.items.get(number as usize)?.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len() - self.vacant.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items.iter().enumerate().filter_map(|(at, item)| Some((at as u32, item.as_ref()?)))
    }
}

/// Numbers are only kept as long as what they stand for: one that is gone is a mistake in this room.
impl<T> Index<u32> for Slab<T> {
    type Output = T;
    #[expect(clippy::expect_used, reason = "as with any index that is out of bounds")]
    fn index(&self, number: u32) -> &T {
        self.get(number).expect("a number outlived what it stands for")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[expect(clippy::expect_used, reason = "as with any index that is out of bounds")]
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.items[number as usize].as_mut().expect("a number outlived what it stands for")
    }
}

#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) name: Arc<str>,
    pub(super) models: BTreeMap<Arc<str>, u32>,
    /// Its buckets, the next to be dropped first.
    pub(super) order: BTreeSet<Filed>,
    /// Distinct prefixes that somebody reported.
    pub(super) reported_keys: usize,
    /// Pairs of a scheme and a replica in its scope.
    pub(super) scoped: usize,
    /// Entries may be filed by hits.
    pub(super) by_hits: bool,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) name: Arc<str>,
    pub(super) replicas: BTreeMap<Arc<str>, u32>,
    pub(super) schemes: BTreeMap<Arc<str>, Scheme>,
    /// Distinct prefixes.
    pub(super) keys: usize,
    /// (replica, prefix) pairs.
    pub(super) entries: usize,
    /// Pairs of a scheme and a replica in its scope.
    pub(super) scoped: usize,
    /// Replicas that are being forgotten and still have cells.
    pub(super) ghosts: usize,
}

#[derive(Debug, Default)]
pub(super) struct Scheme {
    /// Replicas that hold anything here, and in how many places.
    pub(super) scope: BTreeMap<Arc<str>, (u32, u32)>,
    pub(super) adapters: BTreeMap<Arc<str>, Places>,
}

/// The places of one adapter.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Places {
    pub(super) narrow: Option<u32>,
    pub(super) wide: Option<u32>,
}

impl Places {
    pub(super) fn of(&mut self, wide: bool) -> &mut Option<u32> {
        if wide { &mut self.wide } else { &mut self.narrow }
    }
}

#[derive(Debug)]
pub(super) struct Place {
    pub(super) model: u32,
    pub(super) scheme: Arc<str>,
    pub(super) adapter: Arc<str>,
    /// Keys are numbers of wide hashes.
    pub(super) wide: bool,
    pub(super) table: Table,
}

#[derive(Debug)]
pub(super) struct Replica {
    pub(super) tenant: u32,
    pub(super) model: u32,
    pub(super) name: Arc<str>,
    pub(super) report: Option<ReplicaReport>,
    pub(super) last_event_us: i64,
    pub(super) heard: bool,
    /// It is forgotten: nobody finds it by name, its cells are not matched, and they are about to go. No two
    /// ghosts have the same number here.
    pub(super) ghost: Option<u64>,
    /// Where it holds how many.
    pub(super) places: BTreeMap<u32, usize>,
    /// What it holds, by when it is dropped.
    pub(super) filing: BTreeMap<(Rank, u32), Bucket>,
}

/// A replica that is being forgotten. Its number may be somebody else's by now: others take its cells too,
/// while nobody holds the lock for it.
#[derive(Debug)]
pub(super) struct Ghost {
    pub(super) replica: u32,
    /// As in [`Replica::ghost`].
    pub(super) nth: u64,
    /// What it held.
    pub(super) entries: usize,
}

impl Replica {
    pub(super) fn entries(&self) -> usize {
        self.places.values().sum()
    }

    /// Nothing is left to remember.
    pub(super) fn is_idle(&self) -> bool {
        self.places.is_empty() && (self.ghost.is_some() || (self.report.is_none() && !self.heard))
    }
}
