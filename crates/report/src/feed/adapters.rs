//! The adapters of a ledger's blocks, by number, as long as a block has them.

use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Names of adapters, counted: a name is freed with its last block. Engines may name adapters at will, and
/// many over time.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    names: Vec<(Arc<str>, u32)>,
    numbers: FxHashMap<Arc<str>, u32>,
    free: Vec<u32>,
}

impl Adapters {
    /// The name of a number that is in use.
    pub(super) fn name(&self, number: u32) -> &Arc<str> {
        &self.names[number as usize].0
    }

    /// The number of a name, if a block has it.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// One more block has this name.
    pub(super) fn take(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            self.names[number as usize].1 += 1;
            return number;
        }
        let name = Arc::<str>::from(name);
        let number = if let Some(number) = self.free.pop() {
            self.names[number as usize] = (name.clone(), 1);
            number
        } else {
            self.names.push((name.clone(), 1));
            self.names.len() as u32 - 1
        };
        self.numbers.insert(name, number);
        number
    }

    /// One block less has it.
    pub(super) fn release(&mut self, number: u32) {
        let (name, blocks) = &mut self.names[number as usize];
        *blocks -= 1;
        if *blocks == 0 {
            self.numbers.remove(name);
            *name = Arc::default();
            self.free.push(number);
        }
    }

    /// How many names are kept.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_freed_with_its_last_block() {
        let mut adapters = Adapters::default();
        let first = adapters.take("first");
        assert_eq!((adapters.take("first"), adapters.number("first")), (first, Some(first)));
        adapters.release(first);
        assert_eq!(&**adapters.name(first), "first");
        adapters.release(first);
        assert_eq!((adapters.number("first"), adapters.len()), (None, 0));
        // Its number is used again, whatever comes.
        for at in 0..1_000 {
            let number = adapters.take(&format!("adapter-{at}"));
            assert_eq!(number, first);
            adapters.release(number);
        }
        assert_eq!((adapters.names.len(), adapters.len()), (1, 0));
    }
}
