//! The streams of one model, and the indexes that cover them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use kvplane_core::StreamId;
use kvplane_index::{Index, Options, Refused};
use parking_lot::{Mutex, RwLock};

use crate::ask::Scratch;
use crate::changes::Changes;
use crate::freshness::Freshness;
use crate::needs::NeedCell;
use crate::view::{View, ViewCell};

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);

/// Who a stream is in answers.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The model that its engine serves.
    pub model: String,
    /// The engine's number in peers' JSON.
    pub worker_id: u64,
    /// The engine's group in peers' JSON.
    pub routing_group: String,
}

/// One stream, as questions see it.
#[derive(Debug)]
pub struct Member {
    /// Which stream.
    pub id: StreamId,
    /// Who it is in answers.
    pub identity: Identity,
    /// Its number in this process, never used twice: a key for data that others keep per stream.
    pub serial: u64,
    pub(crate) seat: u32,
    pub(crate) cell: ViewCell,
    /// Where changes of its view are noted.
    changes: Arc<Changes>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) needs: NeedCell,
    /// Held by the stream's feed while it changes what a stream with sides holds.
    pub(crate) gate: RwLock<()>,
    /// 0 while it is not known.
    block_size: AtomicU32,
}

impl Member {
    /// Tokens per block: what its last store said, or its configuration; `None` while neither has.
    pub fn block_size(&self) -> Option<u32> {
        Some(self.block_size.load(Ordering::Relaxed)).filter(|&size| size != 0)
    }

    pub(crate) fn set_block_size(&self, size: u32) {
        if self.block_size.swap(size, Ordering::Relaxed) != size {
            self.changes.push(self.seat);
        }
    }

    /// From here on nobody credits the stream, until [`Self::settle`]. Comes before any change of what it
    /// holds that belongs to another view.
    pub(crate) fn unsettle(&self) {
        if self.cell.unsettle() {
            // Behind the view: a reader of the change finds the stream unsettled. Before the index is
            // changed: a reader that finds that has been notified of the change.
            self.changes.push(self.seat);
            fence(Ordering::Release);
        }
    }

    /// The index is as this view says.
    pub(crate) fn settle(&self, view: View) {
        self.unsettle();
        self.cell.settle(view);
        self.changes.push(self.seat);
    }

    /// What an answer would say about it now.
    pub fn view(&self) -> View {
        self.cell.read().view.at_age(&self.freshness, self.freshness.age())
    }
}

/// What blocks must have in common to be comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    /// Positions per block.
    pub(crate) size: u32,
    /// A position is a token and the one that follows it, as engines with EAGLE key their caches.
    pub(crate) bigrams: bool,
}

impl Shape {
    /// Token ids that are hashed per block.
    pub(crate) fn ids(self) -> u32 {
        if self.bigrams { self.size.saturating_mul(2) } else { self.size }
    }
}

/// All blocks of one shape.
#[derive(Debug)]
pub(crate) struct Keyspace {
    pub(crate) shape: Shape,
    pub(crate) index: Arc<Index>,
}

/// Who is there and what covers them. Replaced as a whole when a stream comes or goes, or a block size does;
/// a view changes in place.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// By engine and rank.
    pub(crate) members: Vec<Arc<Member>>,
    /// Where the member of a seat is among the members. The seat is its name in the indexes; seats are
    /// reused.
    pub(crate) positions: Vec<Option<u32>>,
    pub(crate) keyspaces: Vec<Arc<Keyspace>>,
    /// Room for questions, reused. It goes with the table, so it never keeps an index that is gone.
    pub(crate) scratch: Mutex<Vec<Scratch>>,
}

impl Table {
    /// Of members in their order.
    fn with(members: Vec<Arc<Member>>, keyspaces: Vec<Arc<Keyspace>>) -> Self {
        let seats = members.iter().map(|member| member.seat as usize + 1).max().unwrap_or(0);
        let mut positions = vec![None; seats];
        for (position, member) in members.iter().enumerate() {
            positions[member.seat as usize] = Some(position as u32);
        }
        Self { members, positions, keyspaces, scratch: Mutex::default() }
    }

    /// Where the member of a seat is.
    pub(crate) fn position(&self, seat: u32) -> Option<u32> {
        self.positions.get(seat as usize).copied().flatten()
    }
}

/// How often an index did not take a store.
#[derive(Debug, Default)]
pub(crate) struct RefusedCounts {
    budget: AtomicU64,
    waiting: AtomicU64,
}

impl RefusedCounts {
    pub(crate) fn add(&self, refused: Refused) {
        let count = match refused {
            Refused::Budget => &self.budget,
            Refused::Waiting => &self.waiting,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, refused: Refused) -> u64 {
        match refused {
            Refused::Budget => self.budget.load(Ordering::Relaxed),
            Refused::Waiting => self.waiting.load(Ordering::Relaxed),
        }
    }
}

/// The streams of one model, and the indexes that cover them.
#[derive(Debug)]
pub struct Roster {
    pub(crate) model: String,
    options: Options,
    table: RwLock<Arc<Table>>,
    /// How many streams are in each index. Also serialises changes of the table.
    users: Mutex<BTreeMap<Shape, usize>>,
    /// Changes of its streams' views.
    pub(crate) changes: Arc<Changes>,
    pub(crate) refused: RefusedCounts,
}

impl Roster {
    pub(crate) fn new(model: &str, options: Options) -> Self {
        Self {
            model: model.to_owned(),
            options,
            table: RwLock::default(),
            users: Mutex::default(),
            changes: Arc::default(),
            refused: RefusedCounts::default(),
        }
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }

    /// Everybody, in the order of engines and ranks.
    pub fn members(&self) -> Vec<Arc<Member>> {
        self.table().members.clone()
    }

    /// Whether any stream is like that.
    pub fn has_member(&self, is_it: impl Fn(&Member) -> bool) -> bool {
        self.table().members.iter().any(|member| is_it(member))
    }

    pub(crate) fn join(
        &self,
        id: StreamId,
        identity: Identity,
        block_size: Option<u32>,
        view: View,
        freshness: Arc<Freshness>,
    ) -> Arc<Member> {
        let _changing = self.users.lock();
        let old = self.table();
        let seat = old.positions.iter().position(Option::is_none).unwrap_or(old.positions.len());
        let member = Arc::new(Member {
            id,
            identity,
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            seat: seat as u32,
            cell: ViewCell::new(view),
            changes: self.changes.clone(),
            freshness,
            needs: NeedCell::default(),
            gate: RwLock::default(),
            block_size: AtomicU32::new(block_size.unwrap_or(0)),
        });
        let mut members = Vec::with_capacity(old.members.len() + 1);
        members.extend_from_slice(&old.members);
        members.insert(members.partition_point(|known| known.id <= member.id), member.clone());
        self.replace(Table::with(members, old.keyspaces.clone()));
        member
    }

    /// A stream goes. Says whether it was the last.
    pub(crate) fn leave(&self, member: &Member) -> bool {
        let _changing = self.users.lock();
        let old = self.table();
        let others = old.members.iter().filter(|other| other.seat != member.seat).cloned();
        let others: Vec<Arc<Member>> = others.collect();
        let last = others.is_empty();
        self.replace(Table::with(others, old.keyspaces.clone()));
        last
    }

    /// The index of a shape of blocks, for one more stream.
    pub(crate) fn enter(&self, shape: Shape) -> Arc<Keyspace> {
        let mut users = self.users.lock();
        *users.entry(shape).or_default() += 1;
        let old = self.table();
        if let Some(known) = old.keyspaces.iter().find(|keyspace| keyspace.shape == shape) {
            return known.clone();
        }
        let fresh = Arc::new(Keyspace { shape, index: Index::new(&self.options) });
        let mut keyspaces = old.keyspaces.clone();
        keyspaces.push(fresh.clone());
        self.replace(Table::with(old.members.clone(), keyspaces));
        fresh
    }

    /// One stream less uses the index of a shape. The last one takes it along.
    pub(crate) fn exit(&self, shape: Shape) {
        let mut users = self.users.lock();
        let Some(count) = users.get_mut(&shape) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        users.remove(&shape);
        let old = self.table();
        let mut keyspaces = old.keyspaces.clone();
        keyspaces.retain(|keyspace| keyspace.shape != shape);
        self.replace(Table::with(old.members.clone(), keyspaces));
    }

    fn replace(&self, table: Table) {
        let old = std::mem::replace(&mut *self.table.write(), Arc::new(table));
        drop(old); // after the lock: it may be the last that holds an index
    }
}
