//! Groups beside the main one: what each needs to go on from a boundary, and what they keep answers from.

use std::sync::Arc;

use kvplane_core::{LEVELS, MARK_CHANNELS, Reason, Resumption, Side, SpecKind};
use kvplane_wire::Layout;
use smallvec::SmallVec;

use super::groups::{Fit, Group, GroupSpec, Groups};
use super::marks::Parts;
use super::{Draft, Ledger};
use crate::persist::persist;
use crate::state::{MainGroup, VisibleSize};

/// Sides that marks have room for.
const MAX_SIDES: usize = MARK_CHANNELS / 2;

/// What is known of the other groups.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not one state in disguise")]
pub(crate) struct Sides {
    pub(crate) groups: Groups,
    /// By the number of the side: which group it is, and how its blocks lie on main ones. Numbers stay for a
    /// life.
    pub(crate) numbered: Vec<(usize, Fit)>,
    /// Nothing may be counted: some group's need cannot be expressed in main blocks.
    pub(crate) blocked: bool,
    /// It is not known what some group needs.
    unknown: bool,
    /// Blocks may not be full, and the size of main blocks is not known.
    unsized_blocks: bool,
    /// Groups of which blocks came without their positions.
    sparse: SmallVec<[Option<u32>; 4]>,
    /// Blocks have several sizes, or main blocks are stored before they are full.
    pub(crate) has_partial: bool,
    /// The size of main blocks was contradicted, but only by a block that may not be full.
    pub(crate) suspects_size: bool,
    resumption: Arc<Resumption>,
    /// Since the last entry.
    changed: bool,
    /// What `resumption` was made of: the size of main blocks, unless a group has changed since.
    made_for: Option<u32>,
    stale: bool,
    /// Blocks have other marks than were sent.
    pub(crate) all_anew: bool,
    pub(crate) parts: Parts,
}

persist!(Sides {
    groups,
    numbered,
    blocked,
    unknown,
    unsized_blocks,
    sparse,
    has_partial,
    suspects_size,
    resumption,
    changed,
    made_for,
    stale,
    all_anew,
    parts,
});

impl Sides {
    /// Of a life that nothing is known of yet.
    pub(crate) fn new(drops_last: bool) -> Self {
        Self::of(Resumption { drops_last, ..Resumption::default() })
    }

    fn of(resumption: Resumption) -> Self {
        Self { changed: !resumption.is_plain(), resumption: Arc::new(resumption), ..Self::default() }
    }

    /// Of a state that another plane sends.
    fn reported(groups: Vec<Group>, reported: &Resumption) -> Self {
        let resumption = Resumption { sides: Vec::new(), ..*reported };
        let groups = Groups::reported(groups);
        Self { groups, stale: true, ..Self::of(resumption) }
    }

    /// The number of main blocks that each tier gives back at once.
    pub(crate) fn set_units(&mut self, units: [u32; LEVELS]) {
        if self.resumption.units != units {
            Arc::make_mut(&mut self.resumption).units = units;
            self.changed = true;
        }
    }

    /// Whether the device may hold more than is known, which matters where tiers behind it give back several
    /// blocks at once.
    pub(crate) fn set_device_in_doubt(&mut self, in_doubt: bool) {
        let in_doubt = in_doubt && self.resumption.units.iter().any(|&unit| unit > 1);
        if self.resumption.device_in_doubt != in_doubt {
            Arc::make_mut(&mut self.resumption).device_in_doubt = in_doubt;
            self.changed = true;
        }
    }

    /// Tiers behind the device are asked for the whole prompt, so what they hold is marked from now on.
    pub(crate) fn set_whole_prompt(&mut self, whole_prompt: bool) {
        if self.resumption.whole_prompt != whole_prompt {
            Arc::make_mut(&mut self.resumption).whole_prompt = whole_prompt;
            self.changed = true;
            self.all_anew = true;
        }
    }

    /// Whether main blocks have marks.
    pub(crate) fn wants_marks(&self) -> bool {
        !self.numbered.is_empty() || self.resumption.whole_prompt
    }

    /// What is needed, where that changed since the last entry.
    pub(crate) fn take_news(&mut self) -> Option<Arc<Resumption>> {
        std::mem::take(&mut self.changed).then(|| self.resumption.clone())
    }

    /// Which places are of the main group.
    pub(crate) fn main_group(&self) -> Option<MainGroup> {
        self.groups.main_group()
    }

    /// The size of the main group's blocks, sure or not.
    pub(crate) fn announced_main_size(&self) -> Option<u32> {
        self.groups.main()?.block_size
    }

    /// Whether the engine says what the main group is: releases before that store whole blocks alone.
    pub(crate) fn main_has_kind(&self) -> bool {
        self.groups.main().is_some_and(|main| main.spec_kind.is_some())
    }

    /// Whether it is known what each group needs.
    pub(crate) fn are_known(&self) -> bool {
        self.groups.sides().all(|at| self.numbered.iter().any(|&(known, _)| known == at))
    }

    /// Other blocks are main ones: what was sent of their marks is void.
    pub(crate) fn mark_all_anew(&mut self) {
        self.all_anew = true;
    }

    /// Whether the groups keep answers from being exact, for this reason.
    pub(crate) fn stands(&self, reason: Reason) -> bool {
        match reason {
            Reason::NoFullGroup => {
                !self.groups.known().is_empty() && self.groups.main().map(Group::kind) != Some(SpecKind::Full)
            }
            Reason::UnknownGroup => self.unknown,
            Reason::GroupLayout => self.blocked || self.unsized_blocks || self.is_unplaced(),
            _ => false,
        }
    }

    /// The size of main blocks, as far as the main group shows it; where blocks may not be full, only what is
    /// sure.
    fn main_size(&self) -> Option<u32> {
        let main = self.groups.main()?;
        main.block_size.filter(|_| main.size_is_sure || !self.has_partial)
    }

    /// Whether small blocks may be held of which it is not known where in their main block they lie.
    fn is_unplaced(&self) -> bool {
        let sparse = |at: usize| self.sparse.contains(&self.groups.known()[at].group);
        self.numbered.iter().any(|&(at, fit)| fit.walks() && sparse(at))
    }

    /// Whether what some group needs is not known. The rule of engines that tell groups by windows is not
    /// proven, nor what is given up of blocks of several sizes.
    fn has_unknown(&self, windows: bool) -> bool {
        let groups = &self.groups;
        let main_size = groups.main().and_then(|main| main.block_size);
        let mut sides = groups.sides().map(|at| &groups.known()[at]);
        let unsure = |side: &Group| {
            let unknown = windows || side.kind() == SpecKind::Unknown;
            unknown || (self.resumption.drops_last && side.block_size != main_size)
        };
        let main_unknown = groups.main().is_some_and(|main| main.kind() == SpecKind::Unknown);
        main_unknown || groups.has_stray() || sides.any(unsure)
    }

    /// Works out what every side needs besides main blocks of this many tokens. `one_size`: all groups have
    /// blocks of that size.
    fn make_resumption(&mut self, main_size: u32, one_size: bool) {
        let before = self.numbered.clone();
        for at in self.groups.sides() {
            if before.iter().all(|&(known, _)| known != at) {
                self.numbered.push((at, Fit::NEVER));
            }
        }
        self.blocked = self.numbered.len() > MAX_SIDES;
        let sizes = self.groups.known().iter().filter_map(|group| group.block_size);
        let finest = sizes.min().unwrap_or(u32::MAX);
        for (at, fit) in &mut self.numbered {
            let group = &self.groups.known()[*at];
            // A block that is not full has the size of the finest steps that there are.
            let sure = group.block_size.filter(|&size| group.size_is_sure || size > finest);
            let size = if one_size { Some(main_size) } else { sure };
            let found = if group.is_main { Some(Fit::NOTHING) } else { group.fit(size, main_size) };
            self.blocked |= found.is_none();
            *fit = found.unwrap_or(Fit::NEVER);
        }
        let never = self.blocked.then_some(Fit::NEVER.need);
        let side = |&(at, fit): &(usize, Fit)| {
            let group = &self.groups.known()[at];
            Side { group: group.group, kind: group.kind(), need: never.unwrap_or(fit.need) }
        };
        let sides = self.numbered.iter().take(MAX_SIDES).map(side).collect();
        let made = Resumption { sides, ..(*self.resumption).clone() };
        if *self.resumption != made {
            self.resumption = Arc::new(made);
            self.changed = true;
        }
        self.all_anew |= self.numbered != before;
    }

    /// Whether there are groups beside the main one.
    pub(crate) fn are_there(&self) -> bool {
        !self.numbered.is_empty()
    }

    /// Whether what was loaded names groups that are there.
    pub(super) fn is_sound(&self) -> bool {
        self.groups.is_sound() && self.numbered.iter().all(|&(at, _)| at < self.groups.known().len())
    }

    /// Whether some side's blocks are smaller than main ones.
    pub(crate) fn has_parts(&self) -> bool {
        self.numbered.iter().any(|(_, fit)| fit.parts > 1)
    }
}

impl Ledger {
    /// What the stream needs besides its main blocks.
    pub fn resumption(&self) -> &Arc<Resumption> {
        &self.sides.resumption
    }

    /// The groups of the engine's cache, in the order in which they were first heard of.
    pub fn groups(&self) -> &[Group] {
        self.sides.groups.known()
    }

    /// Which blocks are sent to consumers that know one block size.
    pub(crate) fn visible_size(&self) -> VisibleSize {
        if self.sides.has_partial || self.options.semantics.partial_blocks {
            VisibleSize::Only(self.block_size())
        } else {
            VisibleSize::Any
        }
    }

    /// An event names a group. That none of them keeps whole prefixes shows at the end of the batch: one that
    /// does may be announced after the others.
    pub(crate) fn learn_group(&mut self, reported: GroupSpec<'_>, draft: &mut Draft) {
        if self.sides.groups.learn(reported, self.options.semantics.windows) {
            self.sides.stale = true;
            self.retell(draft, |ledger| {
                ledger.sides.groups.choose_main();
                // Blocks of several sizes, and such as are not full yet, are known of caches with several
                // groups alone.
                ledger.sides.has_partial |= ledger.sides.groups.count() > 1;
                ledger.fit_main_size();
            });
            if self.sides.groups.main().is_some() {
                self.work_out_needs();
            }
        }
    }

    /// Another group may be the main one, or its blocks not be what they were taken for.
    pub(crate) fn fit_main_size(&mut self) {
        let semantics = self.options.semantics;
        if self.sides.has_partial && !semantics.partial_blocks {
            self.learned_block_size = self.sides.main_size();
        }
    }

    /// Blocks may come without their positions. Where those are needed, less is counted than may be there.
    pub(crate) fn note_layout(&mut self, group: Option<u32>, layout: Layout, blocks: usize) {
        let is_known = || self.sides.groups.known().iter().any(|known| known.group == group);
        if layout == Layout::Sparse && blocks > 0 && is_known() && !self.sides.sparse.contains(&group) {
            self.sides.sparse.push(group);
        }
    }

    /// Works out what all groups together need, where that may be something else than before.
    pub(crate) fn settle_groups(&mut self, draft: &mut Draft) {
        let size = self.block_size();
        if !self.sides.stale && self.sides.made_for == size {
            return;
        }
        self.sides.stale = false;
        self.retell(draft, |ledger| {
            ledger.sides.groups.choose_any_main();
            ledger.fit_main_size();
        });
        self.work_out_needs();
    }

    fn work_out_needs(&mut self) {
        let size = self.block_size();
        let windows = self.options.semantics.windows;
        self.sides.made_for = size;
        self.sides.unsized_blocks = self.sides.has_partial && size.is_none();
        if let Some(size) = size.filter(|&size| size > 0) {
            self.sides.make_resumption(size, windows);
        }
        self.sides.unknown = self.sides.has_unknown(windows);
        self.state.changed.wanted = self.sides.wants_marks();
    }

    /// Says in how many main blocks each tier gives blocks back.
    pub(crate) fn set_units(&mut self, units: [u32; LEVELS]) {
        self.sides.set_units(units);
    }

    /// The connector is asked for whole prompts, or is not.
    pub(crate) fn serve_whole_prompts(&mut self, whole_prompt: bool) {
        self.sides.set_whole_prompt(whole_prompt);
        self.state.changed.wanted = self.sides.wants_marks();
    }

    /// Says whether blocks may be on the device that are not known.
    pub(super) fn note_doubt_of_device(&mut self) {
        let in_doubt = self.is_device_in_doubt();
        self.sides.set_device_in_doubt(in_doubt);
    }

    /// Everything about the state is as the groups want it. After it was replaced.
    pub(crate) fn fit_state(&mut self) {
        self.state.places.set_main(self.sides.main_group());
        self.state.changed.wanted = self.sides.wants_marks();
        self.sides.parts = Parts::default();
        self.sides.sparse.clear();
    }

    /// Takes over the groups of a state that another plane sends.
    pub(crate) fn load_groups(&mut self, groups: Vec<Group>, reported: &Resumption, partial_blocks: bool) {
        self.sides = Sides { has_partial: partial_blocks, ..Sides::reported(groups, reported) };
        self.fit_state();
        self.settle_groups(&mut Draft::default());
        self.sides.all_anew = false;
        self.find_parts();
    }
}
