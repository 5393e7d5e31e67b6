//! Sets of streams by their position in a table.

/// A set of positions.
#[derive(Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// Adds a position. Says whether it was not there yet.
    pub(crate) fn insert(&mut self, position: u32) -> bool {
        let (at, bit) = place(position);
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        let fresh = self.0[at] & bit == 0;
        self.0[at] |= bit;
        fresh
    }

    /// Takes a position out. Says whether it was there.
    pub(crate) fn remove(&mut self, position: u32) -> bool {
        let (at, bit) = place(position);
        let Some(word) = self.0.get_mut(at) else { return false };
        let known = *word & bit != 0;
        *word &= !bit;
        known
    }

    /// Takes all out.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn contains(&self, position: u32) -> bool {
        let (at, bit) = place(position);
        self.word(at) & bit != 0
    }

    /// 64 positions from `64 * at` on; none behind the end.
    pub(crate) fn word(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// The positions, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().enumerate().flat_map(|(at, word)| ones(at, *word))
    }
}

fn place(position: u32) -> (usize, u64) {
    (position as usize / 64, 1 << (position % 64))
}

/// The positions in the word of that number.
pub(crate) fn ones(at: usize, mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(at as u32 * 64 + bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_come_and_go_in_order() {
        let mut bits = Bits::default();
        assert!(bits.insert(64) && bits.insert(3) && bits.insert(200) && !bits.insert(3));
        assert_eq!(bits.iter().collect::<Vec<_>>(), [3, 64, 200]);
        assert!(bits.remove(64) && !bits.remove(64) && !bits.remove(9_999));
        assert!(bits.contains(200) && !bits.contains(64) && !bits.contains(9_999));
        assert_eq!((bits.word(0), bits.word(1), bits.word(77)), (8, 0, 0));
    }
}
