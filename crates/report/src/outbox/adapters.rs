//! The adapters of what is held, by number.

use std::sync::Arc;

use rustc_hash::FxHashMap;

/// The number of the empty adapter, which an eviction takes for all of them.
pub(super) const NO_ADAPTER: u32 = 0;

/// Names of adapters, as long as something is held under them.
#[derive(Debug)]
pub(super) struct Adapters {
    named: Vec<Named>,
    numbers: FxHashMap<Arc<str>, u32>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Named {
    name: Arc<str>,
    uses: usize,
}

impl Default for Adapters {
    fn default() -> Self {
        let mut none = Self { named: Vec::new(), numbers: FxHashMap::default(), free: Vec::new() };
        // Its use is never given back: the number stays.
        none.take(&Arc::from(""));
        none
    }
}

impl Adapters {
    /// Numbers, free ones included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.named.len()
    }

    pub(super) fn name(&self, number: u32) -> &Arc<str> {
        &self.named[number as usize].name
    }

    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// The number of a name that is used once more.
    pub(super) fn take(&mut self, name: &Arc<str>) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            self.named[number as usize].uses += 1;
            return number;
        }
        let named = Named { name: name.clone(), uses: 1 };
        let number = if let Some(number) = self.free.pop() {
            self.named[number as usize] = named;
            number
        } else {
            self.named.push(named);
            (self.named.len() - 1) as u32
        };
        self.numbers.insert(name.clone(), number);
        number
    }

    /// A name is used once less.
    pub(super) fn give_back(&mut self, number: u32) {
        let named = &mut self.named[number as usize];
        named.uses -= 1;
        if named.uses == 0 {
            self.numbers.remove(&named.name);
            self.free.push(number);
        }
    }
}
