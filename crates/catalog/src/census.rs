//! Where all streams of a table stand, kept from question to question.
//!
//! Streams that stand alike are one *class*: a view without its epoch, a block size, and the set of streams.
//! There are few classes, however many streams there are, so whatever an answer says of streams that hold
//! nothing is said of classes. What changes a stream's class is its view (see `changes`), and that time
//! passes without a proof: a stream that would be silent for too long is looked at when that moment has come,
//! and not before.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Instant;

use kvplane_core::{Continuity, Trust};

use crate::bits::Bits;
use crate::changes::Changes;
use crate::needs::Known;
use crate::roster::Table;
use crate::view::{Seen, View};

/// Streams that stand alike.
#[derive(Debug)]
pub(crate) struct Class {
    /// Where they stand; the epoch is that of the first stream.
    pub(crate) view: View,
    /// Tokens per block; `None` while they have not said.
    pub(crate) block_size: Option<u32>,
    pub(crate) members: Bits,
    pub(crate) count: usize,
}

/// What streams of a class have in common.
fn key(view: View, block_size: Option<u32>) -> u64 {
    view.standing() | u64::from(block_size.unwrap_or(0)) << 32
}

impl Class {
    fn key(&self) -> u64 {
        key(self.view, self.block_size)
    }

    /// Whether its streams could answer a question about blocks of that size.
    pub(crate) fn could_answer(&self, block_size: Option<u32>) -> bool {
        block_size.zip(self.block_size).is_none_or(|(asked, size)| asked == size)
    }

    /// What an answer that depends on its streams is worth at most. Of those that are not credited, blocks
    /// may be missing at the least.
    pub(crate) fn worth(&self, credit: &[Trust]) -> Trust {
        self.view.trust.max(if self.view.is_credited(credit) { Trust::Exact } else { Trust::Lower })
    }
}

/// Every stream of one table, as one who asks knows it.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Changes of views that are part of it; `None` before the first look.
    upto: Option<u64>,
    /// Views as they were read, by position.
    seen: Vec<Seen>,
    /// What streams need, by position.
    needs: Vec<Known>,
    /// The class of each stream, by position.
    class_of: Vec<u32>,
    classes: Vec<Class>,
    by_standing: HashMap<u64, u32>,
    /// Classes that have no streams any more; the next new one takes their place.
    vacant: Vec<u32>,
    /// Streams between two views, or overtaken during a look-up.
    unsettled: Bits,
    /// Streams that are live by their view and were proven too long ago: looked at with every question.
    silent: Bits,
    /// When streams that are live would be silent for too long, by the proof that was last seen. One entry a
    /// stream.
    expiries: BinaryHeap<Reverse<(Instant, u32)>>,
    expiring: Bits,
    /// Streams whose view is to be read again.
    again: Vec<u32>,
    /// Room for seats that changed.
    changed: Vec<u32>,
}

/// No class yet.
const NOWHERE: u32 = u32::MAX;

impl Census {
    /// Takes in every change so far.
    pub(crate) fn catch_up(&mut self, table: &Table, changes: &Changes) {
        let again = std::mem::take(&mut self.again);
        for position in &again {
            self.read(table, *position);
        }
        self.again = again;
        self.again.clear();
        if let Some(upto) = self.upto {
            if changes.count() == upto {
                return;
            }
            self.changed.clear();
            if let Some(upto) = changes.since(upto, &mut self.changed) {
                self.upto = Some(upto);
                let changed = std::mem::take(&mut self.changed);
                for position in changed.iter().filter_map(|seat| table.position(*seat)) {
                    self.read(table, position);
                }
                self.changed = changed;
                return;
            }
        }
        self.read_all(table, changes);
    }

    /// Every view; changes during that are taken in later.
    fn read_all(&mut self, table: &Table, changes: &Changes) {
        self.upto = Some(changes.count());
        let streams = table.members.len();
        self.needs.resize_with(streams, Known::default);
        self.class_of.resize(streams, NOWHERE);
        if self.seen.is_empty() {
            self.seen.extend(table.members.iter().map(|member| member.cell.read()));
        }
        for position in 0..streams as u32 {
            self.read(table, position);
        }
    }

    /// Takes in the changes during a look-up. Every stream that changed is unsettled until the next question.
    /// Says whether another look-up may do better: a stream moved on that was settled before, and is not
    /// asked once more anyway.
    pub(crate) fn confirm(&mut self, table: &Table, changes: &Changes) -> bool {
        let upto = self.upto.unwrap_or(0);
        let count = changes.count();
        if count == upto {
            return true;
        }
        let mut changed = std::mem::take(&mut self.changed);
        changed.clear();
        if changes.since(upto, &mut changed).is_none() {
            // More than are kept: any of them may have moved on.
            changed.extend(table.members.iter().map(|member| member.seat));
            self.upto = Some(count);
        } else {
            self.upto = Some(upto + changed.len() as u64);
        }
        let mut unchanged = true;
        for position in changed.iter().filter_map(|seat| table.position(*seat)) {
            let settled = self.seen(position).is_settled();
            self.overtake(table, position);
            unchanged &= !settled || self.needs[position as usize].has_sides();
        }
        self.changed = changed;
        unchanged
    }

    /// What is known of a stream may be of either of two views: it is not credited in this answer.
    pub(crate) fn overtake(&mut self, table: &Table, position: u32) {
        self.again.push(position);
        let seen = self.seen(position).overtaken();
        self.set(table, position, seen);
    }

    /// Reads the view of a stream, and what it needs.
    pub(crate) fn read(&mut self, table: &Table, position: u32) {
        let seen = table.members[position as usize].cell.read();
        self.needs[position as usize].refresh(&table.members[position as usize].needs);
        self.set(table, position, seen);
    }

    fn set(&mut self, table: &Table, position: u32, seen: Seen) {
        self.seen[position as usize] = seen;
        if seen.is_settled() {
            self.unsettled.remove(position);
        } else {
            self.unsettled.insert(position);
        }
        if seen.view.continuity == Continuity::Live && !self.silent.contains(position) {
            let freshness = &table.members[position as usize].freshness;
            if freshness.is_unproven() {
                self.silent.insert(position);
            } else if let Some(expiry) = freshness.expiry()
                && self.expiring.insert(position)
            {
                self.expiries.push(Reverse((expiry, position)));
            }
        }
        self.classify(table, position);
    }

    /// Looks at streams that may have been silent for too long, and at those that were.
    pub(crate) fn age(&mut self, table: &Table, now: Instant) {
        let mut silent = std::mem::take(&mut self.silent);
        let heard = silent.iter().filter(|position| !self.is_silent(table, *position, now));
        let heard: Vec<u32> = heard.collect();
        for position in &heard {
            silent.remove(*position);
        }
        self.silent = silent;
        for position in heard {
            self.set(table, position, self.seen(position));
        }
        while let Some(&Reverse((expiry, position))) = self.expiries.peek()
            && expiry < now
        {
            self.expiries.pop();
            self.expiring.remove(position);
            if self.is_silent(table, position, now) {
                self.silent.insert(position);
            }
            // One that is live is looked at again when its next proof would be too old.
            self.set(table, position, self.seen(position));
        }
    }

    /// Whether a stream is live by its view, and was proven too long ago.
    fn is_silent(&self, table: &Table, position: u32, now: Instant) -> bool {
        let freshness = &table.members[position as usize].freshness;
        self.seen(position).view.continuity == Continuity::Live && freshness.is_too_old(freshness.age_at(now))
    }

    /// Puts a stream where it belongs.
    fn classify(&mut self, table: &Table, position: u32) {
        let (view, block_size) = (self.view(position), table.members[position as usize].block_size());
        let key = key(view, block_size);
        let old = self.class_of[position as usize];
        if let Some(class) = self.classes.get_mut(old as usize) {
            if class.key() == key {
                return;
            }
            class.members.remove(position);
            class.count -= 1;
            if class.count == 0 {
                self.by_standing.remove(&class.key());
                self.vacant.push(old);
            }
        }
        let class = self.class(key, view, block_size);
        self.class_of[position as usize] = class;
        let class = &mut self.classes[class as usize];
        class.members.insert(position);
        class.count += 1;
    }

    fn class(&mut self, key: u64, view: View, block_size: Option<u32>) -> u32 {
        if let Some(known) = self.by_standing.get(&key) {
            return *known;
        }
        let at = if let Some(vacant) = self.vacant.pop() {
            let class = &mut self.classes[vacant as usize];
            (class.view, class.block_size) = (view, block_size);
            vacant
        } else {
            self.classes.push(Class { view, block_size, members: Bits::default(), count: 0 });
            self.classes.len() as u32 - 1
        };
        self.by_standing.insert(key, at);
        at
    }

    pub(crate) fn seen(&self, position: u32) -> Seen {
        self.seen[position as usize]
    }

    /// Where a stream stands, the age of its last proof included.
    pub(crate) fn view(&self, position: u32) -> View {
        let view = self.seen(position).view;
        if self.silent.contains(position) && view.continuity == Continuity::Live {
            View { continuity: Continuity::Recovering, ..view }
        } else {
            view
        }
    }

    pub(crate) fn needs(&self, position: u32) -> &Known {
        &self.needs[position as usize]
    }

    /// Those that there are.
    pub(crate) fn classes(&self) -> impl Iterator<Item = &Class> + Clone {
        self.classes.iter().filter(|class| class.count > 0)
    }

    pub(crate) fn class_of(&self, position: u32) -> &Class {
        &self.classes[self.class_of[position as usize] as usize]
    }

    /// Streams between two views that have sides: they are asked once more.
    pub(crate) fn unsettled_with_sides(&self) -> Vec<u32> {
        self.unsettled.iter().filter(|position| self.needs(*position).has_sides()).collect()
    }
}

#[cfg(test)]
mod tests;
