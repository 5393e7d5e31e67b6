//! What becomes of computed blocks: which are cached, and what is published of them.

use std::ops::Range;

use super::group::GroupKind;
use super::{Habits, Pool, Table, announce};

impl Pool {
    /// Makes blocks findable that are full within this many tokens, and tells them, group by group.
    pub(super) fn commit(&mut self, table: &mut Table, tokens: usize) {
        for number in 0..self.groups.all.len() {
            let group = self.groups.all[number];
            let span = table.held[number].announced..tokens / group.size;
            table.held[number].announced = span.end;
            let kept: Vec<usize> = span.clone().filter(|block| self.is_kept(table, number, *block)).collect();
            for block in &kept {
                self.store(table, number, *block);
            }
            match self.config.habits {
                Habits::Vllm if span.is_empty() => {}
                Habits::Vllm => self.tell(table, number, span, &kept),
                // What another request had stored meanwhile is left out.
                Habits::Trtllm => {
                    for run in kept.chunk_by(|block, next| block + 1 == *next) {
                        self.tell(table, number, run[0]..run[0] + run.len(), run);
                    }
                }
            }
        }
    }

    /// Whether a full block is cached.
    fn is_kept(&self, table: &Table, number: usize, block: usize) -> bool {
        let group = &self.groups.all[number];
        let is_before = |anchor: usize| group.needed(anchor / group.size, self.config.eagle).contains(&block);
        let is_useful = match group.kind {
            GroupKind::Sliding { .. } if self.config.keeps_tails_only => {
                table.anchors.iter().any(|anchor| is_before(*anchor))
            }
            _ if self.config.habits == Habits::Trtllm => self.find(number, block, &table.digests).is_none(),
            _ => true,
        };
        is_useful && table.held[number].blocks[block].is_some()
    }

    /// Makes a full block findable. If its beginning was, that is over.
    fn store(&mut self, table: &Table, number: usize, block: usize) {
        let Some(place) = table.held[number].blocks[block] else { return };
        let partial = self.blocks.forget(place);
        self.events.extend(partial.map(|name| announce::removed(&self.config, name)));
        self.blocks.name(place, (number, table.digests[self.groups.all[number].hash_of(block)]));
    }

    fn tell(&mut self, table: &Table, number: usize, span: Range<usize>, kept: &[usize]) {
        let group = (number, &self.groups.all[number]);
        self.events.push(announce::stored(&self.config, group, table, span, kept));
    }

    /// Tells again what was found on the device.
    pub(super) fn repeat(&mut self, table: &Table, tokens: usize) {
        for number in 0..self.groups.all.len() {
            let span = 0..tokens / self.groups.all[number].size;
            let all: Vec<usize> = span.clone().collect();
            if !all.is_empty() {
                self.tell(table, number, span, &all);
            }
        }
    }

    /// Makes the beginning of a prompt's last block findable, where hashes are finer than blocks.
    pub(super) fn keep_partial(&mut self, table: &Table) {
        let length = table.tokens.len();
        for number in 0..self.groups.all.len() {
            let group = self.groups.all[number];
            let has_beginning = length % group.size >= self.groups.fine;
            if !self.config.keeps_partial || group.kind != GroupKind::Full || !has_beginning {
                continue;
            }
            let Some(Some(block)) = table.held[number].blocks.last() else { continue };
            self.blocks.name(*block, (number, table.digests[length / self.groups.fine - 1]));
            let group = (number, &self.groups.all[number]);
            self.events.push(announce::partly_stored(&self.config, group, table, self.groups.fine));
        }
    }
}
