//! Visiting all blocks of a map in steps, while blocks come and go.

use super::{Map, Table, mix};

/// How far a visit of all blocks has come, while blocks come and go in between. Blocks are visited in the order of their mixed hashes, table by
/// table: that order stays when a table grows or becomes two.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    /// What has a lower mixed hash was passed.
    from: u64,
    /// The next bucket of the table that begins there.
    bucket: usize,
    /// That table's buckets and depth when its first bucket was visited.
    shape: (usize, u32),
    done: bool,
}

/// Whether a visit has passed a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    No,
    /// Yes, unless its table is rebuilt before the visit is through with it.
    ForNow,
    ForGood,
}

/// What a step of a visit came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visit {
    /// A bucket.
    Bucket,
    /// The last bucket of a table.
    Table,
    /// The table was rebuilt since its last visited bucket: all its blocks will be visited again.
    Rebuilt,
    /// There are no more.
    End,
}

impl Table {
    fn shape(&self) -> (usize, u32) {
        (self.buckets.len(), self.depth)
    }
}

impl Map {
    /// Visits the next bucket: (hash, place, tiers).
    pub(crate) fn visit(&self, cursor: &mut Cursor, each: impl FnMut((u64, u32, u8))) -> Visit {
        if cursor.done {
            return Visit::End;
        }
        let table = &self.tables[self.table_of(cursor.from)];
        if cursor.bucket == 0 {
            cursor.shape = table.shape();
        } else if cursor.shape != table.shape() {
            cursor.bucket = 0;
            return Visit::Rebuilt;
        }
        table.buckets[cursor.bucket].iter().for_each(each);
        cursor.bucket += 1;
        if cursor.bucket < table.buckets.len() {
            return Visit::Bucket;
        }
        // A table of depth 0 has everything; a shift by 64 is not allowed.
        let next = 1_u64.checked_shl(64 - table.depth).and_then(|width| cursor.from.checked_add(width));
        *cursor = Cursor { from: next.unwrap_or_default(), done: next.is_none(), ..Cursor::default() };
        Visit::Table
    }

    /// Whether a visit has passed a block, or would have if it were there.
    pub(crate) fn passed(&self, cursor: &Cursor, hash: u64) -> Passed {
        let mixed = mix(hash, self.seed);
        if cursor.done || mixed < cursor.from {
            return Passed::ForGood;
        }
        let id = self.table_of(mixed);
        let table = &self.tables[id];
        let is_here = cursor.bucket > 0 && cursor.shape == table.shape() && id == self.table_of(cursor.from);
        if is_here && table.find(hash, mixed).is_some_and(|(at, _)| at < cursor.bucket) {
            Passed::ForNow
        } else {
            Passed::No
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    /// Enough for several tables, so that some are rebuilt or divided during the visit.
    const BLOCKS: u32 = if cfg!(miri) { 600 } else { 20_000 };

    #[test]
    fn a_visit_meets_every_block_once_while_others_come() {
        let mut arena = Arena::new();
        let mut map = Map::new(&mut arena);
        let hash = |at: u64| at.wrapping_mul(0xdead_beef_1234_5677);
        for at in 0..u64::from(BLOCKS) {
            map.add(hash(at), at as u32, 1, &mut arena);
        }
        let mut cursor = Cursor::default();
        let (mut met, mut of_table) = (Vec::new(), Vec::new());
        let mut rebuilt = 0;
        for more in u64::from(BLOCKS).. {
            map.add(hash(more), more as u32, 1, &mut arena);
            match map.visit(&mut cursor, |(hash, place, _)| of_table.push((hash, place))) {
                Visit::Bucket => {}
                Visit::Table => met.append(&mut of_table),
                Visit::Rebuilt => {
                    rebuilt += 1;
                    of_table.clear();
                }
                Visit::End => break,
            }
            let same = |met: &[(u64, u32)], passed| {
                met.last().is_none_or(|(hash, _)| map.passed(&cursor, *hash) == passed)
            };
            assert!(same(&of_table, Passed::ForNow) && same(&met, Passed::ForGood));
        }
        assert!(rebuilt > 0);
        let mut places: Vec<u32> =
            met.iter().map(|(_, place)| *place).filter(|place| *place < BLOCKS).collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..BLOCKS));
        assert!(met.iter().all(|(hash, _)| map.passed(&cursor, *hash) == Passed::ForGood));
    }
}
