//! Lists that nearly always have one item: that takes no allocation, and no length beside it.

use smallvec::{SmallVec, smallvec};

use super::memory::allocation;
use crate::persist::{Damaged, Persist, Source};

/// Room for what a list has that has more than one item.
type Several<T> = SmallVec<[T; 3]>;

/// A list of few items, nearly always one.
#[derive(Debug, Default)]
pub(super) enum Few<T> {
    #[default]
    None,
    One(T),
    /// Two and more.
    More(Box<Several<T>>),
}

impl<T> Few<T> {
    pub(super) fn push(&mut self, item: T) {
        match self {
            Self::More(items) => items.push(item),
            _ => {
                *self = match std::mem::take(self) {
                    Self::One(first) => Self::More(Box::new(smallvec![first, item])),
                    _ => Self::One(item),
                }
            }
        }
    }

    /// Takes an item out; the last one takes its place.
    pub(super) fn swap_remove(&mut self, at: usize) {
        match self {
            Self::One(_) if at == 0 => *self = Self::None,
            Self::More(items) if at < items.len() => {
                items.swap_remove(at);
                self.settle();
            }
            _ => {}
        }
    }

    pub(super) fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        match self {
            Self::One(item) if !wanted(item) => *self = Self::None,
            Self::More(items) => {
                items.retain(|item| wanted(item));
                self.settle();
            }
            _ => {}
        }
    }

    /// Fewer than two need no allocation.
    fn settle(&mut self) {
        if let Self::More(items) = self
            && items.len() < 2
        {
            *self = items.pop().map_or(Self::None, Self::One);
        }
    }

    /// Estimated bytes of its own allocations.
    pub(super) fn cost(&self) -> usize {
        let Self::More(items) = self else { return 0 };
        let spilled = if items.spilled() { allocation(items.capacity() * size_of::<T>()) } else { 0 };
        allocation(size_of::<Several<T>>()) + spilled
    }
}

impl<T> std::ops::Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::None => &[],
            Self::One(item) => std::slice::from_ref(item),
            Self::More(items) => items,
        }
    }
}

impl<T> std::ops::DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::None => &mut [],
            Self::One(item) => std::slice::from_mut(item),
            Self::More(items) => items,
        }
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut Few<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T: Persist> Persist for Few<T> {
    fn save(&self, out: &mut Vec<u8>) {
        u32::try_from(self.len()).unwrap_or(u32::MAX).save(out);
        self.iter().for_each(|item| item.save(out));
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let mut list = Self::default();
        for _ in 0..from.length()? {
            list.push(T::load(from)?);
        }
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list() {
        let (mut few, mut list) = (Few::default(), Vec::new());
        for round in 0..200_u64 {
            match round % 7 {
                0..4 => {
                    few.push(round);
                    list.push(round);
                }
                4 if !list.is_empty() => {
                    let at = round as usize % list.len();
                    few.swap_remove(at);
                    list.swap_remove(at);
                }
                5 => {
                    few.retain(|item| item % 5 < 2);
                    list.retain(|item| item % 5 < 2);
                }
                _ => few.iter_mut().zip(&mut list).for_each(|(a, b)| (*a, *b) = (*a + 1, *b + 1)),
            }
            assert_eq!(few[..], list[..]);
            assert_eq!(few.cost() > 0, list.len() > 1);
        }
    }
}
