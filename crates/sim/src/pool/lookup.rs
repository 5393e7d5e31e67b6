//! How far a prompt is cached.

use super::group::{Group, GroupKind};
use super::{Held, Pool};
use crate::digest::Digest;

/// How far a prompt is cached, in tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    /// What every group on the device can go on from.
    pub(super) on_device: usize,
    /// The same with what colder tiers give back.
    pub(super) cached: usize,
    /// What the groups that keep everything have.
    pub(super) full: usize,
}

impl Pool {
    /// The last boundary of a prompt that may be gone on from: its last token is always computed.
    pub(super) fn last_boundary(&self, length: usize) -> usize {
        length.saturating_sub(1) / self.groups.unit * self.groups.unit
    }

    pub(super) fn found(&self, digests: &[Digest], length: usize) -> Found {
        let limit = self.last_boundary(length);
        // A group that keeps everything has no holes worth looking behind.
        let whole = self.groups.all.iter().enumerate().filter(|(_, group)| group.kind == GroupKind::Full);
        let full = whole.map(|(number, group)| {
            let blocks = 0..limit / group.size;
            blocks.take_while(|block| self.find(number, *block, digests).is_some()).count() * group.size
        });
        let unit = self.groups.unit;
        let full = full.min().unwrap_or(limit) / unit * unit;
        let mut cached = full;
        while !self.groups.all.iter().enumerate().all(|group| self.goes_on(group, cached, digests)) {
            cached -= unit;
        }
        if self.config.eagle {
            cached = cached.saturating_sub(unit);
        }
        let on_device = cached;
        if let Some(host) = &self.host {
            // The connector counts the last token too, unless a window, a state or EAGLE needs it to be computed.
            let limit = if self.serves_whole_prompts() { length } else { length.saturating_sub(1) };
            cached = host.goes_on_to(digests, on_device, limit);
        }
        Found { on_device, cached, full }
    }

    /// Whether the tiers behind the device are asked for whole prompts.
    fn serves_whole_prompts(&self) -> bool {
        !self.config.eagle && self.groups.all.iter().all(|group| group.kind == GroupKind::Full)
    }

    /// Whether a group has all that it needs before a boundary. At the start it needs nothing.
    fn goes_on(&self, (number, group): (usize, &Group), boundary: usize, digests: &[Digest]) -> bool {
        let mut needed = group.needed(boundary / group.size, self.config.eagle);
        needed.all(|block| self.find(number, block, digests).is_some())
    }

    pub(super) fn find(&self, group: usize, block: usize, digests: &[Digest]) -> Option<usize> {
        self.blocks.find(&(group, digests[self.groups.all[group].hash_of(block)]))
    }

    /// What a request takes over of a group, of which this many tokens were found.
    pub(super) fn hits(&self, (number, group): (usize, &Group), tokens: usize, digests: &[Digest]) -> Held {
        let end = tokens / group.size;
        let needed = group.needed(end, false);
        let block = |index: usize| {
            if needed.contains(&index) { self.find(number, index, digests) } else { None }
        };
        Held { blocks: (0..end).map(block).collect(), announced: end, passed: 0 }
    }
}
