//! A naive vLLM with a host behind its device: sets of blocks, and the rule by which a prompt is served from
//! both. The oracle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

/// Tokens of a block.
pub const BLOCK: u32 = 2;

/// A prompt: which way it takes at every block. Prompts that begin alike share blocks.
pub type Prompt = Vec<u8>;

/// The hash of a prompt's block, which stands for all that comes before it.
pub fn hash(prompt: &[u8], at: usize) -> u64 {
    prompt[..=at].iter().fold(1, |hash, &turn| hash << 2 | u64::from(turn))
}

/// The tokens of a prompt's block.
pub fn tokens(prompt: &[u8], at: usize) -> [u32; BLOCK as usize] {
    [u32::from(prompt[at]), at as u32]
}

/// How the host's chunks are announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announcing {
    /// By the hash of their last block.
    Placeholder,
    /// The same, with their size, and without a group.
    OldPlaceholder,
    /// Block by block.
    SelfDescribing,
}

pub struct Engine {
    telling: Announcing,
    /// Blocks of a chunk.
    chunk: usize,
    device_room: usize,
    host_room: usize,
    /// Device blocks with their copies, and when each prompt of them was last used: the end of the oldest
    /// goes first.
    pub device: BTreeMap<u64, u32>,
    used: VecDeque<Prompt>,
    /// Chunks by the hash of their last block, with the prompt that they are of.
    pub host: BTreeMap<u64, Prompt>,
    host_order: VecDeque<u64>,
    pending: Vec<OwnedEvent>,
    /// What the host did is announced after what the device did.
    pending_host: Vec<OwnedEvent>,
}

impl Engine {
    pub fn new(telling: Announcing, chunk: usize, device_room: usize, host_room: usize) -> Self {
        Self {
            telling,
            chunk,
            device_room,
            host_room,
            device: BTreeMap::new(),
            used: VecDeque::new(),
            host: BTreeMap::new(),
            host_order: VecDeque::new(),
            pending: Vec::new(),
            pending_host: Vec::new(),
        }
    }

    /// How many blocks of a prompt are served: those that the device has from its start on, then whole chunks
    /// of the host, beginning with the one in which the device's end; less than a chunk is not fetched.
    pub fn served(&self, prompt: &[u8]) -> usize {
        let on_device =
            (0..prompt.len()).take_while(|&at| self.device.contains_key(&hash(prompt, at))).count();
        let mut end = on_device / self.chunk * self.chunk;
        while end + self.chunk <= prompt.len() && self.host.contains_key(&hash(prompt, end + self.chunk - 1))
        {
            end += self.chunk;
        }
        if end >= on_device + self.chunk { end } else { on_device }
    }

    /// Serves a prompt: what is not served from either is computed, and all of it is on the device then. What
    /// is reused is announced once more where a `report` is asked for.
    pub fn request(&mut self, prompt: &Prompt, report: bool) {
        self.used.retain(|old| old != prompt);
        self.used.push_back(prompt.clone());
        let on_device =
            (0..prompt.len()).take_while(|&at| self.device.contains_key(&hash(prompt, at))).count();
        // A prompt of whole blocks computes its last one again.
        let first = on_device.min(prompt.len() - 1);
        if report && first > 0 {
            self.store("GPU", prompt, 0..first, true);
        }
        for at in first..prompt.len() {
            *self.device.entry(hash(prompt, at)).or_default() += 1;
        }
        self.store("GPU", prompt, first..prompt.len(), true);
        while self.device.values().sum::<u32>() as usize > self.device_room && self.evict() {}
    }

    /// Two requests for a prompt at once, neither of which the device has anything for. Both fetch the same
    /// whole chunks from the host, or compute as many blocks; then both go on from there in the same step.
    /// Each has blocks of its own: second copies of all. Nothing on the wire tells the first stretch of the
    /// second from a report.
    pub fn request_twice(&mut self, prompt: &Prompt, fetched: usize) {
        let on_device = self.device.contains_key(&hash(prompt, 0));
        let fetched = fetched.clamp(1, prompt.len());
        if on_device || fetched == prompt.len() {
            return;
        }
        self.used.retain(|old| old != prompt);
        self.used.push_back(prompt.clone());
        for _ in 0..2 {
            for at in 0..prompt.len() {
                *self.device.entry(hash(prompt, at)).or_default() += 1;
            }
            self.store("GPU", prompt, 0..fetched, true);
            self.store("GPU", prompt, fetched..prompt.len(), true);
        }
        while self.device.values().sum::<u32>() as usize > self.device_room && self.evict() {}
    }

    /// Lets go of the last block of the prompt that was not used for the longest time.
    fn evict(&mut self) -> bool {
        let latest = self.used.back().cloned();
        let Some(oldest) = self.used.front().cloned().filter(|oldest| Some(oldest) != latest.as_ref()) else {
            return false;
        };
        let mut needed = BTreeSet::new();
        for prompt in self.used.iter().skip(1) {
            needed.extend((0..prompt.len()).map(|at| hash(prompt, at)));
        }
        let gone = (0..oldest.len()).rev().map(|at| hash(&oldest, at));
        let gone = gone.filter(|hash| !needed.contains(hash)).find(|hash| self.device.contains_key(hash));
        let Some(gone) = gone else {
            self.used.pop_front();
            return true;
        };
        let copies = self.device.get_mut(&gone).unwrap();
        *copies -= 1;
        if *copies == 0 {
            self.device.remove(&gone);
        }
        self.pending.push(removal("GPU", &[gone], Some(0)));
        true
    }

    /// Lets go of one copy of a prompt's block.
    pub fn drop_one_copy(&mut self, prompt: &Prompt, at: usize) {
        let gone = hash(prompt, at);
        *self.device.get_mut(&gone).unwrap() -= 1;
        self.pending.push(removal("GPU", &[gone], Some(0)));
    }

    /// Copies a prompt's whole chunks to the host, the last one first where `backwards`.
    pub fn offload(&mut self, prompt: &Prompt, backwards: bool) {
        let mut ends: Vec<usize> = (1..=prompt.len() / self.chunk).map(|chunk| chunk * self.chunk).collect();
        if backwards {
            ends.reverse();
        }
        for end in ends {
            let last = hash(prompt, end - 1);
            let on_device = (0..end).all(|at| self.device.contains_key(&hash(prompt, at)));
            if !on_device || self.host.contains_key(&last) {
                continue;
            }
            self.host.insert(last, prompt[..end].to_vec());
            self.host_order.push_back(last);
            match self.telling {
                Announcing::SelfDescribing => self.store("CPU", prompt, end - self.chunk..end, false),
                Announcing::Placeholder => self.pending_host.push(placeholder(last, 0, Some(0))),
                Announcing::OldPlaceholder => {
                    self.pending_host.push(placeholder(last, self.chunk as u32 * BLOCK, None));
                }
            }
        }
        while self.host.len() > self.host_room {
            let gone = self.host_order.pop_front().unwrap();
            let chunk = self.host.remove(&gone).unwrap();
            let named: Vec<u64> = match self.telling {
                Announcing::SelfDescribing => {
                    (chunk.len() - self.chunk..chunk.len()).map(|at| hash(&chunk, at)).collect()
                }
                Announcing::Placeholder | Announcing::OldPlaceholder => vec![gone],
            };
            let group = (self.telling != Announcing::OldPlaceholder).then_some(0);
            self.pending_host.push(removal("CPU", &named, group));
        }
    }

    /// Clears the device, and the host with it where `external`. The event is the same.
    pub fn clear(&mut self, external: bool) {
        self.device.clear();
        self.used.clear();
        if external {
            self.host.clear();
            self.host_order.clear();
        }
        self.pending.push(OwnedEvent::Cleared);
    }

    /// What happened since the last batch.
    pub fn take_events(&mut self) -> Vec<OwnedEvent> {
        let mut events = std::mem::take(&mut self.pending);
        events.append(&mut self.pending_host);
        events
    }

    fn store(&mut self, medium: &str, prompt: &[u8], range: std::ops::Range<usize>, with_keys: bool) {
        let event = OwnedEvent::Stored(OwnedStored {
            block_hashes: range.clone().map(|at| OwnedHash::Unsigned(hash(prompt, at))).collect(),
            parent: range.start.checked_sub(1).map(|at| OwnedHash::Unsigned(hash(prompt, at))),
            token_ids: range.clone().flat_map(|at| tokens(prompt, at)).collect(),
            block_size: BLOCK,
            medium: Some(medium.to_owned()),
            group: Some(0),
            spec_kind: Some("full_attention".into()),
            extra_keys: with_keys.then(|| vec![None; range.len()]),
            ..OwnedStored::default()
        });
        if medium == "GPU" { self.pending.push(event) } else { self.pending_host.push(event) }
    }
}

fn placeholder(hash: u64, block_size: u32, group: Option<u32>) -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored {
        block_hashes: vec![OwnedHash::Unsigned(hash)],
        block_size,
        medium: Some("CPU".into()),
        group,
        ..OwnedStored::default()
    })
}

fn removal(medium: &str, hashes: &[u64], group: Option<u32>) -> OwnedEvent {
    OwnedEvent::Removed(OwnedRemoved {
        block_hashes: hashes.iter().map(|&hash| OwnedHash::Unsigned(hash)).collect(),
        medium: Some(medium.to_owned()),
        group,
        ..OwnedRemoved::default()
    })
}

/// Whether an event is of the host.
pub fn is_of_host(event: &OwnedEvent) -> bool {
    let medium = match event {
        OwnedEvent::Stored(stored) => stored.medium.as_deref(),
        OwnedEvent::Removed(removed) => removed.medium.as_deref(),
        OwnedEvent::Cleared => None,
    };
    medium == Some("CPU")
}
