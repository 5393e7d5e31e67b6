//! Places: 32-bit names of blocks in the trie, which stay valid when an extent moves or is split.
//!
//! Places come in pages of 64. A page belongs to one extent, and says where in it its first place lies. After
//! a split the page at the border belongs to several; those few are looked up aside.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

const BITS: u32 = 6;
/// Places of a page.
pub(crate) const PAGE: u32 = 1 << BITS;

/// No extent.
pub(crate) const NOBODY: u32 = 0;
/// Several extents: look aside.
const SHARED: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Page {
    extent: u32,
    /// The offset in the extent of the page's first place; below zero where the page began before the extent.
    first: i32,
}

/// A stretch of a shared page: from this place of the page on, an extent and the offset of the page's first
/// place in it.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    from: u32,
    page: Page,
}

/// The pages of one extent, first to last.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    numbers: SmallVec<[u32; 2]>,
    /// Places of the first page that lie before the extent's first block.
    skipped: u32,
}

/// Every page.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    pages: Vec<Page>,
    free: Vec<u32>,
    shared: FxHashMap<u32, SmallVec<[Stretch; 4]>>,
}

/// How many pages this many blocks need, if this many places of the first are skipped.
#[inline]
pub(crate) fn pages_for(blocks: u32, skipped: u32) -> u32 {
    if blocks == 0 { 0 } else { ((blocks + skipped - 1) >> BITS) + 1 }
}

impl Pages {
    pub(crate) fn skipped(&self) -> u32 {
        self.skipped
    }

    /// The place of a block.
    #[inline]
    pub(crate) fn place(&self, offset: u32) -> u32 {
        let at = offset + self.skipped;
        self.numbers[(at >> BITS) as usize] << BITS | at & (PAGE - 1)
    }

    fn covers(&self, blocks: u32) -> bool {
        (self.numbers.len() as u32) << BITS >= blocks + self.skipped
    }
}

impl Directory {
    /// Gives an extent pages for this many blocks.
    pub(crate) fn extend(&mut self, extent: u32, pages: &mut Pages, blocks: u32) {
        while !pages.covers(blocks) {
            let first = (pages.numbers.len() as i32) * PAGE as i32 - pages.skipped as i32;
            let page = Page { extent, first };
            let number = if let Some(number) = self.free.pop() {
                self.pages[number as usize] = page;
                number
            } else {
                self.pages.push(page);
                self.pages.len() as u32 - 1
            };
            pages.numbers.push(number);
        }
    }

    /// The extent and the offset of a place; `None` if nobody has it any more.
    #[inline]
    pub(crate) fn locate(&self, place: u32) -> Option<(u32, u32)> {
        let number = place >> BITS;
        let within = place & (PAGE - 1);
        let mut page = *self.pages.get(number as usize)?;
        if page.extent == SHARED {
            page = self.shared.get(&number)?.iter().rev().find(|stretch| stretch.from <= within)?.page;
        }
        (page.extent != NOBODY).then(|| (page.extent, (page.first + within as i32) as u32))
    }

    /// Takes back the pages that an extent no longer needs.
    pub(crate) fn shrink(&mut self, extent: u32, pages: &mut Pages, blocks: u32) {
        let keep = pages_for(blocks, pages.skipped);
        while pages.numbers.len() as u32 > keep {
            let Some(number) = pages.numbers.pop() else { return };
            self.give_back(number, extent);
        }
    }

    fn give_back(&mut self, number: u32, extent: u32) {
        let page = &mut self.pages[number as usize];
        if page.extent == SHARED {
            let Some(stretches) = self.shared.get_mut(&number) else { return };
            for stretch in stretches.iter_mut().filter(|stretch| stretch.page.extent == extent) {
                stretch.page.extent = NOBODY;
            }
            if stretches.iter().any(|stretch| stretch.page.extent != NOBODY) {
                return;
            }
            self.shared.remove(&number);
        }
        page.extent = NOBODY;
        self.free.push(number);
    }

    /// The blocks of an extent from `at` on become those of a new extent. Places stay.
    pub(crate) fn split(&mut self, old: u32, pages: &mut Pages, at: u32, new: u32) -> Pages {
        let border = at + pages.skipped;
        let (border_page, within) = ((border >> BITS) as usize, border & (PAGE - 1));
        let moved: SmallVec<[u32; 2]> =
            pages.numbers[border_page.min(pages.numbers.len())..].iter().copied().collect();
        for (index, number) in moved.iter().enumerate() {
            let first = index as i32 * PAGE as i32 - within as i32;
            let page = Page { extent: new, first };
            if index == 0 && within > 0 {
                self.share(*number, old, within, page);
            } else {
                self.reassign(*number, old, page);
            }
        }
        pages.numbers.truncate(border_page + usize::from(within > 0));
        Pages { numbers: moved, skipped: within }
    }

    /// A page that belongs to one extent, or of which one extent has a stretch, is another's from a place on.
    fn share(&mut self, number: u32, old: u32, from: u32, new: Page) {
        let page = &mut self.pages[number as usize];
        if page.extent != SHARED {
            let before = Stretch { from: 0, page: *page };
            page.extent = SHARED;
            self.shared.insert(number, SmallVec::from_slice(&[before, Stretch { from, page: new }]));
            return;
        }
        let Some(stretches) = self.shared.get_mut(&number) else { return };
        let after = stretches.iter().position(|s| s.page.extent == old).map_or(stretches.len(), |at| at + 1);
        stretches.insert(after, Stretch { from, page: new });
    }

    fn reassign(&mut self, number: u32, old: u32, new: Page) {
        let page = &mut self.pages[number as usize];
        if page.extent != SHARED {
            *page = new;
            return;
        }
        let Some(stretches) = self.shared.get_mut(&number) else { return };
        for stretch in stretches.iter_mut().filter(|stretch| stretch.page.extent == old) {
            stretch.page = new;
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>()
            + self.free.capacity() * size_of::<u32>()
            + self.shared.len() * size_of::<(u32, SmallVec<[Stretch; 4]>)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive_splits_at_any_offset() {
        for cuts in [vec![64, 128], vec![10, 20, 30, 63, 65, 130], vec![1], vec![191], vec![100, 100 + 64]] {
            let mut directory = Directory::default();
            let mut all = vec![(1_u32, 0_u32, Pages::default())];
            directory.extend(1, &mut all[0].2, 192);
            let places: Vec<u32> = (0..192).map(|offset| all[0].2.place(offset)).collect();
            // Last cut first, so that each divides the first extent again.
            for (index, cut) in cuts.iter().rev().enumerate() {
                let id = index as u32 + 2;
                let pages = directory.split(1, &mut all[0].2, *cut, id);
                all.push((id, *cut, pages));
            }
            all.sort_by_key(|(_, start, _)| *start);
            for offset in 0..192 {
                let (id, start, pages) = all.iter().rfind(|(_, start, _)| *start <= offset).unwrap();
                assert_eq!(
                    directory.locate(places[offset as usize]),
                    Some((*id, offset - start)),
                    "{cuts:?} {offset}"
                );
                assert_eq!(pages.place(offset - start), places[offset as usize]);
            }
            for (id, start, pages) in &mut all {
                directory.shrink(*id, pages, 0);
                assert!(directory.locate(places[*start as usize]).is_none());
            }
            assert_eq!(directory.free.len(), directory.pages.len());
            assert!(directory.shared.is_empty());
        }
    }

    #[test]
    fn a_later_part_can_be_split_again() {
        let mut directory = Directory::default();
        let mut first = Pages::default();
        directory.extend(1, &mut first, 100);
        let place = |pages: &Pages, offset| pages.place(offset);
        let at_50 = place(&first, 50);
        let mut second = directory.split(1, &mut first, 30, 2);
        let third = directory.split(2, &mut second, 10, 3);
        assert_eq!(directory.locate(at_50), Some((3, 10)));
        assert_eq!(third.place(10), at_50);
        assert_eq!(directory.locate(place(&second, 9)), Some((2, 9)));
        assert_eq!(directory.locate(place(&first, 29)), Some((1, 29)));
    }
}
