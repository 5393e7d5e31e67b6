//! Any sequence of operations, against a naive model: what is held, what consumers see, and a copy that is
//! told the entries.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kvplane_core::StateDigest;
use proptest::prelude::*;

use super::*;
use crate::change::{Change, Layout, StoreCause, StoredBlock, StoredChange, StoredParts, Transition};
use crate::interpreter::Interpreter;
use crate::mirror::MirrorEntry;
use crate::state::{Chain, Parent, PlaceId, PlaceName};
use kvplane_core::Tier;

const NOW: Now = Now { mono: Duration::ZERO, unix_ms: 1_700_000_000_000 };
const BLOCK_SIZE: u32 = 2;

/// Where blocks lie: two tiers that consumers see, and an owner's place, which they do not.
const PLACES: [(&str, Option<&str>, Option<Tier>); 3] =
    [("GPU", None, Some(Tier::Device)), ("CPU", None, Some(Tier::Host)), ("GPU", Some("other"), None)];

#[derive(Debug, Clone)]
enum Operation {
    /// A place holds a block; what it is, is said or not.
    Store { hash: u64, parent: Option<Parent>, place: usize, copies: u32 },
    /// A place has fewer copies.
    Remove { hash: u64, place: usize, left: u32 },
    /// Some places are empty.
    Clear { places: BTreeSet<usize>, keep_dictionary: bool },
    /// Events were lost.
    Drop,
}

fn operations() -> impl Strategy<Value = Vec<Vec<Operation>>> {
    let hash = 1..12_u64;
    let parent = prop_oneof![
        2 => Just(None),
        2 => Just(Some(Parent::Root)),
        6 => (1..12_u64).prop_map(|parent| Some(Parent::Block(parent))),
    ];
    let store = (hash.clone(), parent, 0..PLACES.len(), 1..4_u32)
        .prop_map(|(hash, parent, place, copies)| Operation::Store { hash, parent, place, copies });
    let remove = (hash, 0..PLACES.len(), 0..2_u32).prop_map(|(hash, place, left)| Operation::Remove {
        hash,
        place,
        left,
    });
    let places = prop::collection::btree_set(0..PLACES.len(), 0..=PLACES.len());
    let clear = (places, any::<bool>())
        .prop_map(|(places, keep_dictionary)| Operation::Clear { places, keep_dictionary });
    let operation = prop_oneof![12 => store, 8 => remove, 1 => clear, 1 => Just(Operation::Drop)];
    prop::collection::vec(prop::collection::vec(operation, 1..5), 1..40)
}

/// What is held and what blocks are, in the most obvious way.
#[derive(Debug, Default)]
struct Model {
    held: BTreeMap<(usize, u64), u32>,
    parents: BTreeMap<u64, Option<u64>>,
}

impl Model {
    fn is_held(&self, hash: u64) -> bool {
        self.held.keys().any(|&(_, held)| held == hash)
    }

    /// Whether all blocks before a block are known, up to the start of its prompt.
    fn is_attached(&self, hash: u64) -> bool {
        let (mut at, mut steps) = (hash, self.parents.len());
        loop {
            match self.parents.get(&at) {
                Some(None) => return true,
                Some(Some(parent)) if steps > 0 => (at, steps) = (*parent, steps - 1),
                _ => return false,
            }
        }
    }

    fn forget_unneeded(&mut self, hash: u64) {
        let is_parent = |(child, parent): (&u64, &Option<u64>)| {
            *parent == Some(hash) && *child != hash && self.is_attached(*child)
        };
        if self.is_held(hash) || self.parents.iter().any(is_parent) {
            return;
        }
        let was_attached = self.is_attached(hash);
        if let Some(Some(parent)) = self.parents.remove(&hash)
            && was_attached
        {
            self.forget_unneeded(parent);
        }
    }

    fn forget_waiting(&mut self) {
        let waiting: Vec<u64> =
            self.parents.keys().copied().filter(|&hash| !self.is_attached(hash)).collect();
        self.parents.retain(|hash, _| !waiting.contains(hash));
    }

    fn visible(&self) -> BTreeSet<(Tier, u64)> {
        let seen = |&(place, hash): &(usize, u64)| PLACES[place].2.map(|tier| (tier, hash));
        self.held.keys().filter(|(_, hash)| self.is_attached(*hash)).filter_map(seen).collect()
    }
}

/// A ledger, the model of it, a consumer of transitions and a copy.
struct World {
    ledger: Ledger,
    model: Model,
    seen: BTreeSet<(Tier, u64)>,
    copy: Ledger,
}

fn place_name(place: usize) -> PlaceName<'static> {
    let (medium, ownership, _) = PLACES[place];
    PlaceName { medium: Some(medium), locality: None, ownership, group: Some(0) }
}

fn place(ledger: &mut Ledger, place: usize) -> PlaceId {
    ledger.place(place_name(place), Some("full_attention"), None).unwrap()
}

impl World {
    fn new() -> Self {
        let ledger = || Interpreter::with_ledger(JournalOptions::default(), 0, NOW).1;
        let (mut ledger, mut copy) = (ledger(), ledger());
        ledger.keep_fresh();
        copy.epoch = ledger.epoch;
        copy.window.restart(ledger.epoch);
        let mut world = Self { ledger, model: Model::default(), seen: BTreeSet::new(), copy };
        // The group is known before anything is held.
        world.commit(vec![Operation::Store { hash: 100, parent: Some(Parent::Root), place: 0, copies: 1 }]);
        world
    }

    fn commit(&mut self, operations: Vec<Operation>) {
        let mut draft = Draft::default();
        for operation in operations {
            match operation {
                Operation::Store { hash, parent, place, copies } => {
                    self.store(hash, parent, place, copies, &mut draft);
                }
                Operation::Remove { hash, place, left } => self.remove(hash, place, left, &mut draft),
                Operation::Clear { places, keep_dictionary } => {
                    self.clear(&places, keep_dictionary, &mut draft);
                }
                Operation::Drop => self.drop_residency(&mut draft),
            }
        }
        let left = draft.left.clone();
        self.ledger.settle_groups(&mut draft);
        self.ledger.release_left(&mut draft);
        for hash in left {
            self.model.forget_unneeded(hash);
        }
        self.ledger.commit(draft);
        self.check();
    }

    fn store(&mut self, hash: u64, parent: Option<Parent>, at: usize, copies: u32, draft: &mut Draft) {
        let ledger = &mut self.ledger;
        let parent = parent.filter(|parent| *parent != Parent::Block(hash));
        ledger.learn_group(
            GroupSpec {
                group: Some(0),
                spec_kind: Some("full_attention"),
                sliding_window: None,
                block_size: parent.is_some().then_some(BLOCK_SIZE),
                is_full: false,
                on_device: PLACES[at].0 == "GPU",
            },
            draft,
        );
        let place = place(ledger, at);
        let slot = ledger.slot(hash).unwrap();
        let before = ledger.before(slot);
        if let Some(parent) = parent {
            if ledger.state().chain(slot, BLOCK_SIZE).is_none() {
                let tokens = [hash as u32; BLOCK_SIZE as usize];
                let chain = Chain::new((BLOCK_SIZE, parent), tokens, ledger.last_attributes.clone(), None);
                ledger.define(slot, chain, draft).unwrap();
            }
            self.model.parents.entry(hash).or_insert_with(|| hash_of(parent));
        }
        let was_held = ledger.hold(slot, place, copies, before, draft);
        if !before.known && was_held {
            ledger.tell_attached((slot, BLOCK_SIZE), draft);
        } else if parent.is_none() && !was_held {
            for size in ledger.state().attached_sizes(slot) {
                ledger.tell_attached((slot, size), draft);
            }
        }
        ledger.tell_waiting(draft);
        let chain = ledger.state().chain(slot, BLOCK_SIZE);
        let block = StoredBlock::from(StoredParts {
            hash,
            wide: None,
            copies,
            parent: chain.map(Chain::parent),
            tokens: chain.map(|chain| chain.tokens.clone()),
            first_position: parent.is_some().then_some(0),
            content: chain.filter(|chain| chain.attached).map(|chain| chain.content),
            extra_keys: None,
        });
        draft.changes.push(Change::Stored(StoredChange {
            cause: StoreCause::Announced,
            place: ledger.state().places.get(place).clone(),
            blocks: vec![block],
            layout: if parent.is_some() { Layout::Dense } else { Layout::HashOnly },
            block_size: BLOCK_SIZE,
            parent: parent.and_then(hash_of),
            span: None,
            attributes: ledger.last_attributes.clone(),
            session_id: None,
        }));
        self.model.held.insert((at, hash), copies);
    }

    fn remove(&mut self, hash: u64, at: usize, left: u32, draft: &mut Draft) {
        let Some(held) = self.model.held.get_mut(&(at, hash)) else { return };
        let left = left.min(*held - 1);
        *held = left;
        if left == 0 {
            self.model.held.remove(&(at, hash));
        }
        let place = place(&mut self.ledger, at);
        let slot = self.ledger.state().find(hash).unwrap();
        let removed = self.ledger.release(slot, hash, place, left, draft);
        draft.tell_removed(self.ledger.state().places.get(place).clone(), vec![removed]);
    }

    fn clear(&mut self, cleared: &BTreeSet<usize>, keep_dictionary: bool, draft: &mut Draft) {
        let places = self.ledger.state().places.iter();
        let places: Vec<_> = places
            .filter(|(_, place)| cleared.iter().any(|&at| place_name(at).names(place)))
            .map(|(_, place)| place.clone())
            .collect();
        if places.is_empty() {
            return;
        }
        self.model.held.retain(|(place, _), _| !cleared.contains(place));
        match self.ledger.clear(places, keep_dictionary, draft) {
            Cleared::Partly => {}
            Cleared::Residency => self.model.forget_waiting(),
            Cleared::Everything => {
                self.model.parents.clear();
                draft.left.clear();
            }
        }
    }

    fn drop_residency(&mut self, draft: &mut Draft) {
        self.model.held.clear();
        let dropped = self.ledger.drop_residency(Reason::Gap, NOW);
        draft.changes.extend(dropped.changes);
        draft.transitions.extend(dropped.transitions);
    }

    fn check(&mut self) {
        let number =
            |place: &crate::state::Place| (0..PLACES.len()).find(|&at| place_name(at).names(place)).unwrap();
        let residencies = self.ledger.state().residencies();
        let held: BTreeMap<_, _> =
            residencies.map(|(place, hash, copies)| ((number(place), hash), copies)).collect();
        assert_eq!(held, self.model.held);
        assert_eq!(self.ledger.state().digest(), digest_of(&self.model.held));
        for entry in self.ledger.take_fresh() {
            for transition in &entry.transitions {
                see(&mut self.seen, transition);
            }
            self.tell_copy(&entry);
        }
        assert_eq!(self.seen, self.model.visible());
    }

    fn tell_copy(&mut self, entry: &Entry) {
        let reported = MirrorEntry {
            cursor: Cursor { epoch: entry.epoch, sequence: entry.sequence },
            engine_sequence: entry.engine_sequence,
            engine_digest: None,
            timestamp: entry.timestamp,
            changes: entry.changes.clone(),
            trust: entry.trust.clone(),
            known_from: entry.known_from,
            continuity: entry.continuity,
            digest: entry.digest,
            age: entry.age,
            last_event_id: entry.next_event_id() - 1,
            units: entry.resumption.as_ref().map(|resumption| resumption.units),
            whole_prompt: false,
        };
        self.copy.apply_mirrored(reported).expect("the copy has the same digest and the same transitions");
    }
}

fn hash_of(parent: Parent) -> Option<u64> {
    match parent {
        Parent::Root => None,
        Parent::Block(hash) => Some(hash),
    }
}

/// The digest of a state that never held anything else.
fn digest_of(held: &BTreeMap<(usize, u64), u32>) -> StateDigest {
    let (_, mut ledger) = Interpreter::with_ledger(JournalOptions::default(), 0, NOW);
    for (&(at, hash), &copies) in held {
        let place = place(&mut ledger, at);
        let slot = ledger.slot(hash).unwrap();
        ledger.hold_known(slot, place, copies, &mut Draft::default());
    }
    ledger.state().digest()
}

/// What a consumer that knows blocks and tiers alone makes of a transition.
fn see(seen: &mut BTreeSet<(Tier, u64)>, transition: &Transition) {
    match transition {
        Transition::Stored { tier, blocks, .. } => {
            for block in blocks {
                assert!(seen.insert((*tier, block.hash)), "told twice");
            }
        }
        Transition::Removed { tier, hashes } => {
            for hash in hashes {
                assert!(seen.remove(&(*tier, *hash)), "removed and never told");
            }
        }
        Transition::Cleared => seen.clear(),
    }
}

proptest! {
    #[test]
    fn any_operations(batches in operations()) {
        let mut world = World::new();
        for operations in batches {
            world.commit(operations);
        }
    }
}
