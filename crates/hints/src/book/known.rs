//! Everything that is known, behind the book's lock: names, places, cells, and the order in which cells go.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use smallvec::SmallVec;

use super::cells::{Cell, Cells};
use super::census::Whose;
use super::filing::{Bucket, Filed, Rank};
use super::names::{Model, Place, Replica, Scheme, Slab, Tenant};
use super::sweep::Drops;
use super::wide::Wide;
use crate::observer::{Happened, Observer};
use crate::prefix::PrefixHash;

/// What a name costs beside its letters: its record, and its entries in maps.
const NAME_BYTES: usize = 256;
/// What a bucket costs beside its keys: its entry in its replica's map, and in two orders.
const BUCKET_BYTES: usize = 112;

/// Somebody who listens right now.
pub(super) type Listener<'a> = Option<&'a dyn Observer>;

#[derive(Debug)]
pub(super) struct Known {
    /// Nobody outside knows it, so that nobody can choose keys that collide.
    pub(super) seed: u64,
    pub(super) by_name: BTreeMap<Arc<str>, u32>,
    pub(super) tenants: Slab<Tenant>,
    pub(super) models: Slab<Model>,
    pub(super) replicas: Slab<Replica>,
    pub(super) places: Slab<Place>,
    pub(super) cells: Cells,
    pub(super) wide: Wide,
    /// Every bucket of reported cells, the next to be dropped first.
    pub(super) order: BTreeSet<Filed>,
    /// Reported (replica, prefix) pairs.
    pub(super) reported: usize,
    /// Pairs of a scheme and a replica in its scope.
    pub(super) scoped: usize,
    /// Replicas that were ever forgotten.
    pub(super) ghosts: u64,
    pub(super) drops: Drops,
    pub(super) buckets: usize,
    /// Keys that all buckets have room for.
    pub(super) filed_room: usize,
    pub(super) schemes: usize,
    /// Of all names.
    pub(super) letters: usize,
    pub(super) table_bytes: usize,
}

impl Known {
    pub(super) fn new() -> Self {
        Self {
            seed: RandomState::new().hash_one(0),
            by_name: BTreeMap::new(),
            tenants: Slab::default(),
            models: Slab::default(),
            replicas: Slab::default(),
            places: Slab::default(),
            cells: Cells::default(),
            wide: Wide::default(),
            order: BTreeSet::new(),
            reported: 0,
            scoped: 0,
            ghosts: 0,
            drops: Drops::default(),
            buckets: 0,
            filed_room: 0,
            schemes: 0,
            letters: 0,
            table_bytes: 0,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.cells.bytes()
            + self.table_bytes
            + self.wide.bytes()
            + self.filed_room * size_of::<u64>()
            + self.buckets * (size_of::<Bucket>() + BUCKET_BYTES)
            + self.names() * NAME_BYTES
            + self.letters
    }

    pub(super) fn names(&self) -> usize {
        self.tenants.len() + self.models.len() + self.replicas.len() + self.places.len() + self.schemes
    }

    pub(super) fn model(&self, tenant: &str, model: &str) -> Option<u32> {
        self.tenants[*self.by_name.get(tenant)?].models.get(model).copied()
    }

    pub(super) fn find(&self, whose: Whose<'_>) -> Option<u32> {
        self.models[self.model(whose.tenant, whose.model)?].replicas.get(whose.replica).copied()
    }

    pub(super) fn whose(&self, replica: u32) -> Whose<'_> {
        let Replica { tenant, model, ref name, .. } = self.replicas[replica];
        Whose { tenant: &self.tenants[tenant].name, model: &self.models[model].name, replica: name }
    }

    /// The key of a hash; of a wide one also if it is new.
    pub(super) fn key(&mut self, hash: &PrefixHash) -> u64 {
        match hash {
            PrefixHash::Fingerprint(fingerprint) => *fingerprint,
            PrefixHash::Wide(bytes) => self.wide.number(bytes),
        }
    }

    /// The key of a hash; `None` for a wide one that nobody holds.
    pub(super) fn find_key(&self, hash: &PrefixHash) -> Option<u64> {
        match hash {
            PrefixHash::Fingerprint(fingerprint) => Some(*fingerprint),
            PrefixHash::Wide(bytes) => self.wide.find(bytes),
        }
    }

    /// A replica holds a prefix now. Returns whether it did not before.
    pub(super) fn put(&mut self, replica: u32, place: u32, key: u64, cell: Cell) -> bool {
        let row = self.places[place].table.get(key);
        let holders = self.cells.holders(row);
        if let Some(at) = holders.position(replica) {
            let old = Rank::filed(&holders, at);
            let hits = holders.filed(at);
            let new = Rank::of(cell.seen, hits);
            self.cells.rewrite(row, at, cell);
            if new != old {
                let mark = self.file((new, replica, place), key);
                self.cells.set_filed(row, at, hits, mark);
                self.unfile((old, replica, place));
                self.tidy((old, replica, place));
            }
            return false;
        }
        let heard = cell.seen.is_heard();
        let first_report = !heard && !holders.any_reported();
        let mark = self.file((Rank::of(cell.seen, 0), replica, place), key);
        let longer = self.cells.insert(row, replica, cell, mark);
        self.set(place, key, longer);
        if row.is_nowhere() && self.places[place].wide {
            self.wide.hold(key);
        }
        self.reported += usize::from(!heard);
        let Replica { tenant, model, .. } = self.replicas[replica];
        self.tenants[tenant].reported_keys += usize::from(first_report);
        self.models[model].keys += usize::from(row.is_nowhere());
        self.models[model].entries += 1;
        let held = self.replicas[replica].places.entry(place).or_default();
        *held += 1;
        if *held == 1 {
            self.enter_scope(replica, place);
        }
        true
    }

    /// A replica does not hold a prefix any more. Returns where it was filed, if it was: its key may still be
    /// listed there. The replica itself stays, see [`Self::settle`].
    pub(super) fn take(&mut self, replica: u32, place: u32, key: u64) -> Option<Filed> {
        let row = self.places[place].table.get(key);
        let holders = self.cells.holders(row);
        let at = holders.position(replica)?;
        let rank = Rank::filed(&holders, at);
        let heard = holders.seen(at).is_heard();
        let shorter = self.cells.remove(row, at);
        let last_report = !heard && !self.cells.holders(shorter).any_reported();
        self.set(place, key, shorter);
        if shorter.is_nowhere() && self.places[place].wide {
            self.wide.release(key);
        }
        self.reported -= usize::from(!heard);
        let Replica { tenant, model, .. } = self.replicas[replica];
        self.tenants[tenant].reported_keys -= usize::from(last_report);
        self.models[model].keys -= usize::from(shorter.is_nowhere());
        self.models[model].entries -= 1;
        self.unfile((rank, replica, place));
        let owner = &mut self.replicas[replica];
        if let Some(held) = owner.places.get_mut(&place) {
            *held -= 1;
            if *held == 0 {
                owner.places.remove(&place);
                if owner.ghost.is_none() {
                    self.leave_scope(replica, place);
                }
            }
        }
        if self.places[place].table.len() == 0 {
            self.close_place(place);
        }
        Some((rank, replica, place))
    }

    fn set(&mut self, place: u32, key: u64, row: super::cells::Row) {
        let table = &mut self.places[place].table;
        let before = table.bytes();
        table.set(key, row);
        self.table_bytes = self.table_bytes - before + table.bytes();
    }

    fn scheme_of(&mut self, place: u32) -> Option<&mut Scheme> {
        let Place { model, ref scheme, .. } = self.places[place];
        self.models[model].schemes.get_mut(scheme)
    }

    fn enter_scope(&mut self, replica: u32, place: u32) {
        let name = self.replicas[replica].name.clone();
        let Some(scheme) = self.scheme_of(place) else { return };
        let (_, places) = scheme.scope.entry(name).or_insert((replica, 0));
        *places += 1;
        if *places == 1 {
            let Replica { tenant, model, .. } = self.replicas[replica];
            self.scoped += 1;
            self.tenants[tenant].scoped += 1;
            self.models[model].scoped += 1;
        }
    }

    pub(super) fn leave_scope(&mut self, replica: u32, place: u32) {
        let name = self.replicas[replica].name.clone();
        let Some(scheme) = self.scheme_of(place) else { return };
        let Some((_, places)) = scheme.scope.get_mut(&name) else { return };
        *places -= 1;
        if *places == 0 {
            scheme.scope.remove(&name);
            let Replica { tenant, model, .. } = self.replicas[replica];
            self.scoped -= 1;
            self.tenants[tenant].scoped -= 1;
            self.models[model].scoped -= 1;
        }
    }

    /// Every place where a replica may hold a hash, whatever the scheme; with an empty adapter whatever the
    /// adapter.
    pub(super) fn places_of(&self, replica: u32, hash: &PrefixHash, adapter: &str) -> SmallVec<[u32; 4]> {
        let wide = matches!(hash, PrefixHash::Wide(_));
        let holds = |place: &u32| {
            let place = &self.places[*place];
            place.wide == wide && (adapter.is_empty() || *place.adapter == *adapter)
        };
        self.replicas[replica].places.keys().copied().filter(holds).collect()
    }

    /// Tells of a prefix that comes or goes.
    pub(super) fn tell(&self, listener: Listener<'_>, replica: u32, place: u32, key: u64, added: bool) {
        let Some(listener) = listener else { return };
        let place = &self.places[place];
        let hash = if place.wide {
            let Some(hash) = self.wide.hash(key) else { return };
            PrefixHash::Wide(hash.into())
        } else {
            PrefixHash::Fingerprint(key)
        };
        let (hash, adapter) = (&hash, &*place.adapter);
        let what =
            if added { Happened::Added { hash, adapter } } else { Happened::Evicted { hash, adapter } };
        listener.happened(self.whose(replica), what);
    }
}
