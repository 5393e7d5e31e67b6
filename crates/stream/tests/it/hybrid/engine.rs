//! A naive engine with several groups: for each a multiset of blocks, and the rule for what it serves,
//! spelled out.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

/// Tokens of the longest prompt.
pub const PROMPT: usize = 40;
/// Tokens that all prompts have in common at their start.
const SHARED: usize = 8;

/// What a group's blocks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Full,
    Sliding(u32),
    State,
    /// A kind that nobody has heard of. It needs as much as a window.
    Strange(u32),
}

/// A group.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    pub kind: Kind,
    pub size: usize,
}

/// Where copies lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pool {
    Device,
    Host,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    pub groups: Vec<Group>,
    eagle: bool,
    held: BTreeMap<(Pool, usize, u64), u32>,
    pub next_sequence: u64,
    clock: u64,
    pending: Vec<OwnedEvent>,
}

/// The tokens of a prompt.
pub fn prompt(conversation: u8, length: usize) -> Vec<u32> {
    (0..length)
        .map(|at| if at < SHARED { at as u32 } else { u32::from(conversation) * 1000 + at as u32 })
        .collect()
}

/// The hash of everything up to here, whichever group has a block that ends here.
fn hash(conversation: u8, end: usize) -> u64 {
    let conversation = if end <= SHARED { 0 } else { conversation };
    (u64::from(conversation) + 1) << 32 | end as u64
}

impl Engine {
    pub fn new(groups: Vec<Group>, eagle: bool) -> Self {
        Self { groups, eagle, held: BTreeMap::new(), next_sequence: 0, clock: 0, pending: Vec::new() }
    }

    /// Dies and comes back with nothing.
    pub fn restart(&mut self) {
        self.held.clear();
        self.pending.clear();
        self.next_sequence = 0;
    }

    /// Lengths at which every group has a boundary are multiples of this.
    fn unit(&self) -> usize {
        let all = |unit: usize| self.groups.iter().all(|group| unit.is_multiple_of(group.size));
        (1..1_000).find(|&unit| all(unit)).unwrap()
    }

    fn holds(&self, coldest: Pool, group: usize, conversation: u8, end: usize) -> bool {
        let hash = hash(conversation, end);
        [Pool::Device, Pool::Host]
            .iter()
            .any(|pool| *pool <= coldest && self.held.contains_key(&(*pool, group, hash)))
    }

    fn goes_on(&self, coldest: Pool, group: usize, conversation: u8, length: usize) -> bool {
        let Group { kind, size } = self.groups[group];
        let blocks = length / size;
        let needed = match kind {
            Kind::Full => blocks,
            Kind::State => 1 + usize::from(self.eagle),
            Kind::Sliding(window) | Kind::Strange(window) => {
                (window as usize - 1).div_ceil(size) + usize::from(self.eagle)
            }
        };
        (0..needed.min(blocks)).all(|back| self.holds(coldest, group, conversation, length - back * size))
    }

    /// How many tokens of a prompt it takes from its cache.
    pub fn served(&self, coldest: Pool, conversation: u8, length: usize) -> usize {
        let unit = self.unit();
        let longest = length.saturating_sub(1) / unit * unit;
        let resumable = |length: &usize| {
            (0..self.groups.len()).all(|group| self.goes_on(coldest, group, conversation, *length))
        };
        let found = (1..=longest / unit).rev().map(|units| units * unit).find(resumable).unwrap_or(0);
        if self.eagle { found.saturating_sub(unit) } else { found }
    }

    /// A request. What is not served is computed: full groups keep all of it, of the others the blocks that
    /// `kept` says.
    pub fn request(&mut self, conversation: u8, length: usize, kept: u64, partial: bool) {
        let cached = self.served(Pool::Device, conversation, length);
        // What a full group does not hold of what is served is not there: it holds all.
        for at in 0..self.groups.len() {
            let Group { kind, size } = self.groups[at];
            let ends: Vec<usize> = (cached / size + 1..=length / size).map(|block| block * size).collect();
            let Some(&last) = ends.last() else { continue };
            let keeps = |end: &usize| kind == Kind::Full || kept >> (end / size) & 1 == 1;
            let ends: Vec<usize> = ends.into_iter().filter(keeps).collect();
            self.store(at, conversation, &ends, cached..last);
        }
        if partial {
            self.store_partial(conversation, length);
        }
    }

    fn store(&mut self, group: usize, conversation: u8, ends: &[usize], range: std::ops::Range<usize>) {
        for &end in ends {
            *self.held.entry((Pool::Device, group, hash(conversation, end))).or_default() += 1;
        }
        let stored = OwnedStored {
            block_hashes: ends.iter().map(|&end| OwnedHash::Unsigned(hash(conversation, end))).collect(),
            parent: (range.start > 0).then(|| OwnedHash::Unsigned(hash(conversation, range.start))),
            token_ids: prompt(conversation, range.end)[range].to_vec(),
            block_size: self.groups[group].size as u32,
            ..self.frame(group)
        };
        self.pending.push(OwnedEvent::Stored(stored));
    }

    /// The end of a prompt that fills no block, in the first group whose blocks are not the smallest.
    fn store_partial(&mut self, conversation: u8, length: usize) {
        let fine = self.groups.iter().map(|group| group.size).min().unwrap();
        let end = length / fine * fine;
        let coarse = (0..self.groups.len()).find(|&at| !end.is_multiple_of(self.groups[at].size));
        let Some(group) = coarse.filter(|_| end > 0) else { return };
        if self.held.contains_key(&(Pool::Device, group, hash(conversation, end))) {
            return;
        }
        *self.held.entry((Pool::Device, group, hash(conversation, end))).or_default() += 1;
        let stored = OwnedStored {
            block_hashes: vec![OwnedHash::Unsigned(hash(conversation, end))],
            parent: (end > fine).then(|| OwnedHash::Unsigned(hash(conversation, end - fine))),
            token_ids: prompt(conversation, end)[end - fine..].to_vec(),
            block_size: fine as u32,
            ..self.frame(group)
        };
        self.pending.push(OwnedEvent::Stored(stored));
    }

    fn frame(&self, group: usize) -> OwnedStored {
        let (kind, window) = match self.groups[group].kind {
            Kind::Full => ("full_attention", None),
            Kind::Sliding(window) => ("sliding_window", Some(window)),
            Kind::State => ("mamba", None),
            Kind::Strange(_) => ("chunked_local_attention", None),
        };
        OwnedStored {
            medium: Some("GPU".into()),
            group: Some(group as u32),
            spec_kind: Some(kind.into()),
            sliding_window: window,
            ..OwnedStored::default()
        }
    }

    /// A copy on the host, announced by its hash alone.
    pub fn offload(&mut self, which: usize) {
        let on_device: Vec<(usize, u64)> = self
            .held
            .keys()
            .filter(|(pool, ..)| *pool == Pool::Device)
            .map(|&(_, group, hash)| (group, hash))
            .collect();
        let Some(&(group, hash)) = on_device.get(which % on_device.len().max(1)) else { return };
        if self.held.insert((Pool::Host, group, hash), 1).is_some() {
            return;
        }
        self.pending.push(OwnedEvent::Stored(OwnedStored {
            block_hashes: vec![OwnedHash::Unsigned(hash)],
            medium: Some("CPU".into()),
            group: Some(group as u32),
            ..OwnedStored::default()
        }));
    }

    /// A copy goes, wherever it is.
    pub fn evict(&mut self, which: usize) {
        let Some(&(pool, group, hash)) = self.held.keys().nth(which % self.held.len().max(1)) else { return };
        let copies = self.held.get_mut(&(pool, group, hash)).unwrap();
        *copies -= 1;
        if *copies == 0 {
            self.held.remove(&(pool, group, hash));
        }
        let medium = match pool {
            Pool::Device => "GPU",
            Pool::Host => "CPU",
        };
        self.pending.push(OwnedEvent::Removed(OwnedRemoved {
            block_hashes: vec![OwnedHash::Unsigned(hash)],
            medium: Some(medium.into()),
            group: Some(group as u32),
            ..OwnedRemoved::default()
        }));
    }

    /// The device is emptied.
    pub fn clear(&mut self) {
        self.held.retain(|(pool, ..), _| *pool != Pool::Device);
        self.pending.push(OwnedEvent::Cleared);
    }

    /// Publishes what happened since the last batch.
    pub fn publish(&mut self) -> (u64, Bytes) {
        self.clock += 1;
        let events = std::mem::take(&mut self.pending);
        let payload = encode_batch(Profile::Vllm0_32, self.clock as f64, Some(0), &events);
        self.next_sequence += 1;
        (self.next_sequence - 1, payload.into())
    }
}
