//! Lanes: one per stream and tier that the stream really has.

use rustc_hash::FxHashSet;

use super::{View, Writer};
use crate::LEVELS;
use crate::shared::{Lane, Lanes};

impl Writer {
    /// The stream has blocks in a tier. The first time, it gets a lane for it.
    pub(super) fn see_tier(&mut self, slot: u32, tier: usize) {
        let Some(stream) = self.streams[slot as usize].as_ref() else { return };
        if stream.views.iter().any(|view| usize::from(view.from) == tier) {
            return;
        }
        let at = stream.views.iter().filter(|view| usize::from(view.from) < tier).count();
        let to = stream.views.get(at).map_or(LEVELS as u8, |warmer| warmer.from);
        let tiers = (2_u8 << tier) - 1;
        let view = View { lane: self.new_lane(), tiers, from: tier as u8, to };
        // So far the colder levels held what the next warmer one holds.
        if at > 0
            && let Some(stream) = self.streams[slot as usize].as_ref()
        {
            let warmer = stream.views[at - 1].lane;
            let mut extents = FxHashSet::default();
            for (_, place, _) in stream.map.iter() {
                if let Some(block) = self.trie.locate(place) {
                    extents.insert(block.extent);
                }
            }
            for extent in extents {
                self.trie.copy_lane(warmer, view.lane, extent);
            }
            self.copy_doubles(slot, warmer, view.lane);
        }
        let Some(stream) = self.streams[slot as usize].as_mut() else { return };
        stream.views.insert(at, view);
        if at > 0 {
            stream.views[at - 1].to = view.from;
        }
        let owner = stream.owner;
        let marker = *stream.marker.get_or_insert(view.lane);
        // The new lane first: where both stand for a level, it holds at least as much.
        let info = |view: View| Lane { owner, slot, marker, from: view.from, to: view.to };
        let lanes = self.shared.lanes();
        lanes.set(view.lane, info(view));
        self.shared.alive().set(view.lane);
        if at > 0 {
            lanes.set(stream.views[at - 1].lane, info(stream.views[at - 1]));
        }
    }

    fn copy_doubles(&mut self, slot: u32, from: u32, to: u32) {
        let Some(stream) = self.streams[slot as usize].as_mut() else { return };
        let copies: Vec<((u32, u32), u32)> = stream
            .doubles
            .iter()
            .filter(|((lane, _), _)| *lane == from)
            .map(|((_, place), n)| ((to, *place), *n))
            .collect();
        stream.doubles.extend(copies);
    }

    pub(super) fn new_lane(&mut self) -> u32 {
        if let Some(lane) = self.trie.free_lanes.pop() {
            return lane;
        }
        let lane = self.lanes;
        self.lanes += 1;
        let lanes = self.shared.lanes();
        if lane as usize >= lanes.len() {
            let wider = Lanes::new(lanes.len() * 2);
            for lane in 0..lanes.len() as u32 {
                wider.set(lane, lanes.get(lane));
            }
            let alive = self.shared.alive().widened(wider.len() / 64);
            // A reader that sees a lane alive looks up its owner: write the owners first.
            let old = self.shared.replace_lanes(wider);
            self.trie.discard_table(old);
            let old = self.shared.replace_alive(alive);
            self.trie.discard_table(old);
        }
        lane
    }
}
