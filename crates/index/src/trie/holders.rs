//! Who holds how much of an extent.

use super::islands::Islands;
use super::{Run, Spread, Trie};
use crate::crowd::Crowd;
use crate::extent::{HOLDERS, Holder};

impl Trie {
    fn islands_of(&self, id: u32, lane: u32) -> &[(u32, u32)] {
        if !self.extent(id).notes.islands.get() {
            return &[];
        }
        self.cold(id).islands.as_ref().map_or(&[], |islands| islands.of(lane))
    }

    fn change_islands(&mut self, id: u32, change: impl FnOnce(&mut Islands)) {
        let slot = &mut self.cold_mut(id).islands;
        let islands = slot.get_or_insert_default();
        change(islands);
        if islands.is_empty() {
            *slot = None;
        }
        let any = slot.is_some();
        self.extent(id).notes.islands.set(any);
    }

    /// Whether a lane holds a block.
    pub(crate) fn covers(&self, lane: u32, id: u32, offset: u32) -> bool {
        offset < self.extent(id).cutoff(lane)
            || self.islands_of(id, lane).iter().any(|(from, to)| (*from..*to).contains(&offset))
    }

    /// Whether a lane may hold some of these blocks.
    pub(crate) fn touches(&self, lane: u32, run: Run) -> bool {
        self.extent(run.extent).cutoff(lane) > run.from || !self.islands_of(run.extent, lane).is_empty()
    }

    /// What a lane holds of an extent: stretches, ascending.
    pub(super) fn stretches(&self, lane: u32, id: u32) -> Vec<(u32, u32)> {
        let cutoff = self.extent(id).cutoff(lane);
        let first = (cutoff > 0).then_some((0, cutoff));
        first.into_iter().chain(self.islands_of(id, lane).iter().copied()).collect()
    }

    /// Every lane that holds something of an extent.
    pub(super) fn lanes_of(&self, id: u32) -> Vec<u32> {
        let extent = self.extent(id);
        let mut lanes: Vec<u32> = extent.holders().map(|holder| holder.lane).collect();
        lanes.extend(extent.crowd().into_iter().flat_map(|crowd| crowd.lanes.iter()));
        lanes.extend(self.cold(id).islands.iter().flat_map(|islands| islands.lanes()));
        lanes.sort_unstable();
        lanes.dedup();
        lanes
    }

    /// One past the last block that anyone holds.
    pub(super) fn held(&self, id: u32) -> u32 {
        let extent = self.extent(id);
        let mut held = 0;
        let mut overruled = 0;
        let crowd = extent.crowd();
        for holder in extent.holders() {
            held = held.max(holder.cutoff);
            overruled += u32::from(crowd.is_some_and(|crowd| crowd.has(holder.lane)));
        }
        if let Some(crowd) = crowd
            && crowd.members() > overruled
        {
            held = held.max(crowd.upto);
        }
        if extent.notes.islands.get()
            && let Some(islands) = &self.cold(id).islands
        {
            held = held.max(islands.end());
        }
        held
    }

    /// Whether a lane has an entry in an extent or could get one.
    pub(super) fn has_entry_for(&self, id: u32, lane: u32) -> bool {
        let extent = self.extent(id);
        extent.entry(lane).is_some() || extent.free_entry().is_some()
    }

    /// A lane holds these blocks too.
    pub(crate) fn cover(&mut self, lane: u32, run: Run) {
        let Run { extent: id, from, to } = run;
        let cutoff = self.extent(id).cutoff(lane);
        if to <= cutoff {
            return;
        }
        if from > cutoff {
            self.change_islands(id, |islands| islands.add(lane, from, to));
            return;
        }
        // What lay behind the hole joins.
        let beyond =
            self.islands_of(id, lane).iter().filter(|(start, _)| *start <= to).map(|(_, end)| *end).max();
        let joined = beyond.unwrap_or(0).max(to);
        if !self.set_cutoff(lane, id, joined) {
            self.in_parts(run, |trie, part| trie.cover(lane, part));
            return;
        }
        if beyond.is_some() {
            self.change_islands(id, |islands| islands.remove(lane, 0, joined));
        }
    }

    /// A lane no longer holds these blocks.
    pub(crate) fn uncover(&mut self, lane: u32, run: Run) {
        let Run { extent: id, from, to } = run;
        let cutoff = self.extent(id).cutoff(lane);
        if from < cutoff {
            if !self.set_cutoff(lane, id, from) {
                self.in_parts(run, |trie, part| trie.uncover(lane, part));
                return;
            }
            if to < cutoff {
                self.change_islands(id, |islands| islands.add(lane, to, cutoff));
            }
        }
        if to > cutoff && self.extent(id).notes.islands.get() {
            self.change_islands(id, |islands| islands.remove(lane, from, to));
        }
        self.settle(id);
    }

    /// A lane holds nothing of an extent any more.
    pub(crate) fn drop_lane(&mut self, lane: u32, id: u32) {
        if self.extent(id).cutoff(lane) > 0 {
            self.set_cutoff(lane, id, 0);
        }
        if self.extent(id).notes.islands.get() {
            self.change_islands(id, |islands| islands.remove(lane, 0, u32::MAX));
        }
        self.settle(id);
    }

    /// Whether an extent knows a lane at all.
    pub(crate) fn knows(&self, lane: u32, id: u32) -> bool {
        self.extent(id).cutoff(lane) > 0 || !self.islands_of(id, lane).is_empty()
    }

    /// A lane holds of an extent what another holds.
    pub(crate) fn copy_lane(&mut self, from: u32, to: u32, id: u32) {
        let stretches = self.stretches(from, id);
        let spreads: Vec<Spread> = stretches
            .iter()
            .map(|(start, end)| {
                Spread::new(self, Run { extent: id, from: *start, to: *end }, stretches.len())
            })
            .collect();
        for spread in spreads {
            for run in spread.now(self) {
                self.cover(to, run);
            }
        }
    }

    /// Makes room for another holder, then does the same again for each part that the extent has become.
    fn in_parts(&mut self, run: Run, mut again: impl FnMut(&mut Self, Run)) {
        let parts = self.make_room(run.extent);
        for (at, (id, start)) in parts.iter().enumerate() {
            let end = parts.get(at + 1).map_or(u32::MAX, |(_, start)| *start);
            let (from, to) = (run.from.max(*start), run.to.min(end));
            if from < to {
                again(self, Run { extent: *id, from: from - start, to: to - start });
            }
        }
    }

    /// A lane holds this many of an extent's first blocks. Fails when it needs an entry and there is none
    /// left.
    fn set_cutoff(&mut self, lane: u32, id: u32, cutoff: u32) -> bool {
        let extent = self.extent(id);
        let entry = extent.entry(lane);
        let crowd = extent.crowd();
        let in_crowd = crowd.is_some_and(|crowd| crowd.has(lane));
        if cutoff == 0 {
            if let Some(slot) = entry {
                extent.set_entry(slot, Holder { lane, cutoff: 0 });
            }
            if let Some(crowd) = crowd
                && in_crowd
            {
                crowd.remove(lane);
            }
            if let Some(slot) = entry {
                extent.clear_entry(slot);
            }
            self.drop_empty_crowd(id);
            return true;
        }
        if crowd.is_some_and(|crowd| crowd.upto == cutoff) {
            // The entry is written first: a reader that sees the bit and not the entry must not be ahead of
            // one that sees the entry.
            if let Some(slot) = entry {
                extent.set_entry(slot, Holder { lane, cutoff });
            }
            if !in_crowd {
                self.join_crowd(id, lane);
            }
            if let Some(slot) = entry {
                self.extent(id).clear_entry(slot);
            }
            return true;
        }
        let Some(slot) = entry.or_else(|| extent.free_entry()) else { return false };
        extent.set_entry(slot, Holder { lane, cutoff });
        true
    }

    fn join_crowd(&mut self, id: u32, lane: u32) {
        if let Some(crowd) = self.extent(id).crowd()
            && !crowd.fits(lane)
        {
            let wider = crowd.widened(self.width());
            let old = self.extent(id).crowd_pointer();
            let wider = self.new_crowd(wider);
            self.extent(id).set_crowd(wider);
            self.discard_crowd(old);
        }
        if let Some(crowd) = self.extent(id).crowd() {
            crowd.add(lane);
        }
    }

    fn drop_empty_crowd(&mut self, id: u32) {
        let extent = self.extent(id);
        if extent.crowd().is_some_and(|crowd| crowd.members() == 0) {
            let old = extent.crowd_pointer();
            extent.set_crowd(std::ptr::null_mut());
            self.discard_crowd(old);
        }
    }

    /// Words of a set that has room for every lane.
    pub(super) fn width(&self) -> usize {
        self.shared.lanes().len().div_ceil(64)
    }

    /// Frees entries of an extent: by a crowd of those that hold equally much, or by splitting it. Says what
    /// it has become: its parts and where each begins.
    fn make_room(&mut self, id: u32) -> Vec<(u32, u32)> {
        const WORTH: usize = 2;
        let extent = self.extent(id);
        if extent.crowd().is_none() {
            let mut cutoffs: Vec<u32> = extent.holders().map(|holder| holder.cutoff).collect();
            cutoffs.sort_unstable();
            let commonest = cutoffs.chunk_by(|a, b| a == b).max_by_key(|group| group.len());
            if let Some(group) = commonest
                && group.len() >= WORTH
            {
                self.form_crowd(id, group[0]);
                return vec![(id, 0)];
            }
        }
        self.split(id)
    }

    fn form_crowd(&mut self, id: u32, upto: u32) {
        let crowd = Crowd::new(upto, self.width());
        let extent = self.extent(id);
        for holder in extent.holders().filter(|holder| holder.cutoff == upto) {
            crowd.add(holder.lane);
        }
        let crowd = self.new_crowd(crowd);
        let extent = self.extent(id);
        // First the crowd, then the entries go: at no moment does a lane seem to hold less.
        extent.set_crowd(crowd);
        for slot in 0..HOLDERS {
            if extent.entry_cutoff(slot) == upto {
                extent.clear_entry(slot);
            }
        }
    }
}
