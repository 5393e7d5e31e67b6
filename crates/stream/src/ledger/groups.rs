//! The groups of an engine's cache: which there are, which of them is the main one, and what the others need.

use kvplane_core::{Need, SpecKind};

use crate::change::Layout;
use crate::persist::persist;
use crate::state::MainGroup;

/// Blocks of a side that a main block may have: a walk over them is short.
const MAX_PARTS: u32 = 64;

/// Groups that are kept apart: far more than are counted.
const MAX_GROUPS: usize = 64;

/// How often the device may say something else of a group. Everything is sent anew each time that another
/// group is the main one.
const MAX_KINDS: u8 = 4;

/// What is said to be the kind of a group of which the engine says something else all the time. No such kind
/// is known.
const CONTRADICTORY: &str = "contradictory";

/// A group of an engine's cache, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not one state in disguise")]
pub struct Group {
    /// The engine's number of it.
    pub group: Option<u32>,
    /// What its blocks are, in the engine's words.
    pub spec_kind: Option<Box<str>>,
    /// Its sliding window, tokens.
    pub sliding_window: Option<u32>,
    /// Tokens per block.
    pub block_size: Option<u32>,
    /// Blocks that are certainly full have that size. vLLM stores the last block of a prompt before it is
    /// full, alone.
    pub size_is_sure: bool,
    /// Whether prompts are described in its blocks.
    pub is_main: bool,
    /// Kind and window are the device's word.
    kind_of_device: bool,
    /// So is the size.
    size_of_device: bool,
    /// How often the device said something else.
    kinds: u8,
}

persist!(Group {
    group,
    spec_kind,
    sliding_window,
    block_size,
    size_is_sure,
    is_main,
    kind_of_device,
    size_of_device,
    kinds,
});

impl Group {
    /// A group as another plane knows it.
    pub fn reported(
        group: Option<u32>,
        spec_kind: Option<&str>,
        sliding_window: Option<u32>,
        block_size: Option<(u32, bool)>,
    ) -> Self {
        Self {
            group,
            spec_kind: spec_kind.map(Box::from),
            sliding_window,
            block_size: block_size.map(|(size, _)| size),
            size_is_sure: block_size.is_some_and(|(_, sure)| sure),
            is_main: false,
            kind_of_device: spec_kind.is_some(),
            size_of_device: block_size.is_some(),
            kinds: 0,
        }
    }

    /// Whether nothing that the engine says of its kind is believed any more.
    fn is_contradictory(&self) -> bool {
        self.spec_kind.as_deref() == Some(CONTRADICTORY)
    }

    /// What its blocks are good for.
    pub fn kind(&self) -> SpecKind {
        match (self.spec_kind.as_deref().map(SpecKind::from_wire), self.sliding_window) {
            (Some(SpecKind::Sliding), None) => SpecKind::Unknown,
            (Some(kind), _) => kind,
            // Engines that name no kind have one group, or mean the first.
            (None, _) if self.group.unwrap_or(0) == 0 => SpecKind::Full,
            (None, _) => SpecKind::Unknown,
        }
    }

    /// Takes in what an event says of its block size. True if that is new.
    fn learn_size(&mut self, spec: GroupSpec<'_>) -> bool {
        let Some(size) = spec.block_size.filter(|_| spec.on_device || !self.size_of_device) else {
            return false;
        };
        let first = spec.on_device && !self.size_of_device;
        let known = if first { None } else { self.block_size };
        let known_sure = self.size_is_sure && !first;
        let before = (self.block_size, self.size_is_sure);
        // A smaller one is of a block that is not full.
        if !known_sure && (spec.is_full || known.is_none_or(|known| known < size)) {
            (self.block_size, self.size_is_sure) = (Some(size), spec.is_full);
        }
        self.size_of_device = spec.on_device;
        before != (self.block_size, self.size_is_sure)
    }

    /// What it needs, with blocks of such a size besides main ones of another. `None` where the sizes have no
    /// common boundary.
    pub(crate) fn fit(&self, size: Option<u32>, main_size: u32) -> Option<Fit> {
        let size = size.filter(|&size| size > 0)?;
        let window = self.sliding_window.unwrap_or(0);
        let blocks = match self.kind() {
            SpecKind::Full | SpecKind::Unknown => None,
            SpecKind::Sliding => Some(window.saturating_sub(1).div_ceil(size)),
            SpecKind::State => Some(1),
        };
        if size.is_multiple_of(main_size) {
            let stride = size / main_size;
            let need =
                blocks.map_or(Need::Prefix { stride }, |blocks| Need::Run { blocks, stride, tail: false });
            return Some(Fit { need, parts: 1, tail_parts: 0 });
        }
        let parts = main_size / size;
        if !main_size.is_multiple_of(size) || parts > MAX_PARTS {
            return None;
        }
        let tail_parts = blocks.map_or(0, |blocks| blocks % parts);
        let whole = |blocks: u32| Need::Run { blocks: blocks / parts, stride: 1, tail: tail_parts > 0 };
        Some(Fit { need: blocks.map_or(Need::Prefix { stride: 1 }, whole), parts, tail_parts })
    }
}

/// How a side's blocks lie on main ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fit {
    pub(crate) need: Need,
    /// Its blocks per main block; 1 where they are as large, or larger.
    pub(crate) parts: u32,
    /// How many of these the tail of a main block has.
    pub(crate) tail_parts: u32,
}

persist!(Fit { need, parts, tail_parts });

impl Fit {
    /// Whether more than the last of a main block's parts is asked for.
    pub(crate) fn walks(self) -> bool {
        let whole = match self.need {
            Need::Prefix { .. } => true,
            Need::Run { blocks, .. } => blocks > 0,
        };
        self.parts > 1 && (whole || self.tail_parts > 1)
    }

    /// Of a group that needs nothing: it is the main one.
    pub(crate) const NOTHING: Self =
        Self { need: Need::Run { blocks: 0, stride: 1, tail: false }, parts: 1, tail_parts: 0 };
    /// Of a group of which nothing may be counted, as long as it has no mark.
    pub(crate) const NEVER: Self = Self { need: Need::Prefix { stride: 1 }, parts: 1, tail_parts: 0 };
}

/// What an event says of a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupSpec<'a> {
    pub(crate) group: Option<u32>,
    pub(crate) spec_kind: Option<&'a str>,
    pub(crate) sliding_window: Option<u32>,
    /// Where the event has whole blocks of it.
    pub(crate) block_size: Option<u32>,
    /// None of them can be one that is not full.
    pub(crate) is_full: bool,
    pub(crate) on_device: bool,
}

/// Whether the blocks of a store are full for sure: what is stored before it is full is stored alone, with
/// its own tokens.
pub(crate) fn is_full(layout: Layout, blocks: usize) -> bool {
    match layout {
        Layout::Dense => blocks > 1,
        Layout::Sparse => true,
        Layout::HashOnly => false,
    }
}

/// All groups of a stream, in the order in which they were first heard of.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    known: Vec<Group>,
    main: Option<usize>,
}

persist!(Groups { known, main });

impl Groups {
    pub(crate) fn reported(known: Vec<Group>) -> Self {
        let mut groups = Self { known, main: None };
        groups.choose_any_main();
        groups
    }

    /// Whether the main group is one that is there.
    pub(super) fn is_sound(&self) -> bool {
        self.main.is_none_or(|main| main < self.known.len())
    }

    pub(crate) fn known(&self) -> &[Group] {
        &self.known
    }

    pub(crate) fn main(&self) -> Option<&Group> {
        self.main.map(|at| &self.known[at])
    }

    /// Groups of the cache: those with a number, if any has one. An event without a number may mean any of
    /// them.
    fn numbered(&self) -> impl Iterator<Item = usize> {
        let any = self.known.iter().any(|group| group.group.is_some());
        (0..self.known.len()).filter(move |&at| !any || self.known[at].group.is_some())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.numbered().count()
    }

    /// Blocks were announced of a group without a number, and there are several that have one.
    pub(crate) fn has_stray(&self) -> bool {
        self.count() > 1 && self.known.iter().any(|group| group.group.is_none())
    }

    /// The groups beside the main one.
    pub(crate) fn sides(&self) -> impl Iterator<Item = usize> {
        self.numbered().filter(|&at| self.main != Some(at))
    }

    /// Which places are of the main group.
    pub(crate) fn main_group(&self) -> Option<MainGroup> {
        let is_only = self.count() == 1;
        self.main().map(|main| MainGroup { group: main.group, is_only })
    }

    /// Takes in what an event says. True if that is new. `one_full`: there is one full group, the last that
    /// was said to be.
    pub(crate) fn learn(&mut self, spec: GroupSpec<'_>, one_full: bool) -> bool {
        let found = self.known.iter().position(|group| group.group == spec.group);
        if found.is_none() && self.known.len() >= MAX_GROUPS {
            // More groups than are counted.
            return false;
        }
        let at = found.unwrap_or_else(|| {
            self.known.push(Group { group: spec.group, ..Group::default() });
            self.known.len() - 1
        });
        let group = &mut self.known[at];
        let mut news = found.is_none();
        let is_believed = (spec.on_device || !group.kind_of_device) && !group.is_contradictory();
        if spec.spec_kind.is_some() && is_believed {
            let was_of_device = std::mem::replace(&mut group.kind_of_device, spec.on_device);
            let same =
                group.spec_kind.as_deref() == spec.spec_kind && group.sliding_window == spec.sliding_window;
            if !same {
                group.spec_kind = spec.spec_kind.map(Box::from);
                group.sliding_window = spec.sliding_window;
                group.kinds += u8::from(was_of_device);
                if group.kinds > MAX_KINDS {
                    group.spec_kind = Some(Box::from(CONTRADICTORY));
                    group.sliding_window = None;
                }
                news = true;
                if one_full && group.kind() == SpecKind::Full {
                    self.make_only_full(at);
                }
            }
        }
        news | self.known[at].learn_size(spec)
    }

    /// What is to be said of a group's kind and window where an event says this.
    pub(crate) fn settled<'a>(
        &self,
        group: Option<u32>,
        said: (Option<&'a str>, Option<u32>),
    ) -> (Option<&'a str>, Option<u32>) {
        let known = self.known.iter().find(|known| known.group == group);
        if known.is_some_and(Group::is_contradictory) { (Some(CONTRADICTORY), None) } else { said }
    }

    fn make_only_full(&mut self, full: usize) {
        for (at, group) in self.known.iter_mut().enumerate() {
            if at != full && group.kind() == SpecKind::Full {
                group.spec_kind = Some(Box::from("sliding_window"));
            }
        }
    }

    /// The main group is the first that keeps whole prefixes. Until there is one, it stays as it is.
    pub(crate) fn choose_main(&mut self) {
        self.set_main(self.first_of(SpecKind::Full).or(self.main));
    }

    /// Where no group keeps whole prefixes, one is held against what it should: less is counted, and never
    /// too much.
    pub(crate) fn choose_any_main(&mut self) {
        let full = self.first_of(SpecKind::Full);
        let any = full.or_else(|| self.first_of(SpecKind::Sliding)).or_else(|| self.numbered().next());
        self.set_main(any);
    }

    fn first_of(&self, kind: SpecKind) -> Option<usize> {
        self.numbered().find(|&at| self.known[at].kind() == kind)
    }

    fn set_main(&mut self, main: Option<usize>) {
        self.main = main;
        for (at, group) in self.known.iter_mut().enumerate() {
            group.is_main = main == Some(at);
        }
    }
}
