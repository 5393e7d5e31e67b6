//! Places: where copies of blocks lie.

use std::hash::BuildHasher;
use std::sync::Arc;

use kvplane_core::{Locality, PlaceSeed, SpecKind, StateDigest, Tier};
use kvplane_wire::MAX_NAME;
use smallvec::SmallVec;

use super::memory::{allocation, table};
use super::slot::Holding;
use crate::persist::{Damaged, Persist, Source, persist};
use crate::seeded::{Seeded, SeededMap};

/// A place's number within its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlaceId(pub(super) u16);

persist!(PlaceId(_));

/// Where copies of blocks lie, in the engine's own words and in ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Our word.
    pub tier: Tier,
    /// The engine's word for the medium.
    pub medium: Option<Box<str>>,
    /// The engine's word for the locality.
    pub locality: Option<Box<str>>,
    /// The secondary tier that owns the copies.
    pub ownership: Option<Box<str>>,
    /// The cache group.
    pub group: Option<u32>,
    /// What the group's blocks are, in the engine's words.
    pub spec_kind: Option<Box<str>>,
    /// The group's sliding window.
    pub sliding_window: Option<u32>,
    /// Worked out once: asked for every block.
    is_ours: bool,
    is_main: bool,
    proves_ancestors: bool,
    seed: PlaceSeed,
}

impl Place {
    /// The place that a store names, with what it says of the group.
    fn new(name: PlaceName<'_>, spec_kind: Option<&str>, sliding_window: Option<u32>) -> Self {
        Self::in_tier(Tier::of(name.medium, name.locality), name, spec_kind, sliding_window)
    }

    fn in_tier(
        tier: Tier,
        name: PlaceName<'_>,
        spec_kind: Option<&str>,
        sliding_window: Option<u32>,
    ) -> Self {
        let is_full_attention = match spec_kind {
            Some(kind) => SpecKind::from_wire(kind) == SpecKind::Full,
            // Engines that name no kind have one group, or mean the first.
            None => name.group.unwrap_or(0) == 0,
        };
        let is_where_it_says = name.locality.is_none_or(|word| match Locality::from_wire(word) {
            Locality::Local => true,
            Locality::Remote => tier == Tier::Remote,
            Locality::Unknown => false,
        });
        let unowned = name.ownership.is_none();
        let is_ours = tier != Tier::Unknown && is_where_it_says && unowned;
        Self {
            tier,
            medium: name.medium.map(Box::from),
            locality: name.locality.map(Box::from),
            ownership: name.ownership.map(Box::from),
            group: name.group,
            spec_kind: spec_kind.map(Box::from),
            sliding_window,
            is_ours,
            is_main: is_ours && is_full_attention,
            proves_ancestors: tier == Tier::Device && unowned && is_full_attention,
            seed: PlaceSeed::new(name.medium, name.locality, name.ownership, name.group),
        }
    }

    /// The place that another plane names. Which tier a medium is, it may know better.
    pub fn reported(
        tier: Tier,
        [medium, locality, ownership]: [Option<&str>; 3],
        group: Option<u32>,
        spec_kind: Option<&str>,
        sliding_window: Option<u32>,
    ) -> Self {
        Self::in_tier(tier, PlaceName { medium, locality, ownership, group }, spec_kind, sliding_window)
    }

    /// Whether another place is of the same tier of the engine, whatever its group.
    pub(crate) fn is_beside(&self, other: &Place) -> bool {
        PlaceName { group: other.group, ..self.name() }.names(other)
    }

    /// What distinguishes it from other places.
    pub(crate) fn name(&self) -> PlaceName<'_> {
        PlaceName {
            medium: self.medium.as_deref(),
            locality: self.locality.as_deref(),
            ownership: self.ownership.as_deref(),
            group: self.group,
        }
    }

    /// Whether a peer's protocol that knows neither groups nor owners may hear of it: a tier that we know, of
    /// the group whose blocks are whole prefixes.
    pub fn is_main(&self) -> bool {
        self.is_main
    }

    /// Whether it is the engine's own on its device, which every clear reaches.
    pub(crate) fn is_own_device(&self) -> bool {
        self.tier == Tier::Device && self.ownership.is_none()
    }

    /// Bytes of its names.
    pub(crate) fn text_len(&self) -> usize {
        let names = [&self.medium, &self.locality, &self.ownership, &self.spec_kind];
        names.into_iter().flatten().map(|name| name.len()).sum()
    }

    /// Estimated bytes that it keeps.
    fn cost(&self) -> usize {
        let names = [&self.medium, &self.locality, &self.ownership, &self.spec_kind];
        let texts = names.into_iter().flatten().map(|name| allocation(name.len()));
        allocation(std::mem::size_of::<Self>() + 16) + texts.sum::<usize>()
    }

    /// Whether what lies here can be reused: a tier that we know, on the engine's own machine, of no other
    /// owner.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Whether a store here proves that the blocks before it are held: the request that computed it holds
    /// them.
    pub fn proves_ancestors(&self) -> bool {
        self.proves_ancestors
    }
}

/// How an event names a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PlaceName<'a> {
    pub(crate) medium: Option<&'a str>,
    pub(crate) locality: Option<&'a str>,
    pub(crate) ownership: Option<&'a str>,
    pub(crate) group: Option<u32>,
}

impl PlaceName<'_> {
    pub(crate) fn names(&self, place: &Place) -> bool {
        place.group == self.group
            && place.medium.as_deref() == self.medium
            && place.locality.as_deref() == self.locality
            && place.ownership.as_deref() == self.ownership
    }
}

/// The group whose blocks are whole prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MainGroup {
    pub(crate) group: Option<u32>,
    /// There is no other: events that name no group mean it too.
    pub(crate) is_only: bool,
}

persist!(MainGroup { group, is_only });

impl MainGroup {
    fn includes(self, group: Option<u32>) -> bool {
        group == self.group || (self.is_only && group.is_none())
    }
}

#[derive(Debug)]
struct Known {
    place: Arc<Place>,
    generation: u32,
    blocks: u64,
    copies: u64,
    /// Blocks of which nothing but the hash is known.
    unjoined: u64,
    digest: StateDigest,
}

persist!(Known { place, generation, blocks, copies, unjoined, digest });

/// What a place is good for follows from its name and kind, but for which group is the main one.
impl Persist for Place {
    fn save(&self, out: &mut Vec<u8>) {
        let Self { tier, medium, locality, ownership, group, spec_kind, sliding_window, is_main, .. } = self;
        tier.save(out);
        for name in [medium, locality, ownership, spec_kind] {
            name.save(out);
        }
        group.save(out);
        sliding_window.save(out);
        is_main.save(out);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let tier = Persist::load(from)?;
        let mut name = || <Option<Box<str>>>::load(from);
        let (medium, locality) = (name()?, name()?);
        let (ownership, spec_kind) = (name()?, name()?);
        let (group, sliding_window) = (Persist::load(from)?, Persist::load(from)?);
        let name = PlaceName {
            medium: medium.as_deref(),
            locality: locality.as_deref(),
            ownership: ownership.as_deref(),
            group,
        };
        let place = Self::in_tier(tier, name, spec_kind.as_deref(), sliding_window);
        Ok(Self { is_main: Persist::load(from)?, ..place })
    }
}

/// All places of a stream.
#[derive(Debug, Default)]
pub(crate) struct Places {
    known: Vec<Known>,
    /// By the hash of the name.
    by_name: SeededMap<u64, SmallVec<[u16; 4]>>,
    /// Blocks of which nothing but the hash is known, in all of them.
    unjoined: u64,
    /// Blocks in places other than the engine's own on its device.
    elsewhere: u64,
    /// Estimated bytes of what the places are called.
    names: usize,
    /// Until it is known, no place is a main one.
    main: Option<MainGroup>,
}

persist!(Places { known, unjoined, elsewhere, names, main; by_name: SeededMap::default() });

impl Places {
    /// More places than any engine has; what is beyond is an attack or a defect.
    const MAX: usize = 256;

    pub(crate) fn find(&self, name: PlaceName<'_>) -> Option<PlaceId> {
        let same_hash = self.by_name.get(&Seeded::default().hash_one(name))?;
        same_hash.iter().map(|&at| PlaceId(at)).find(|&id| name.names(self.get(id)))
    }

    /// Estimated bytes in use.
    pub(super) fn bytes(&self) -> usize {
        let known = self.known.capacity() * std::mem::size_of::<Known>();
        known + self.names + table::<u64, SmallVec<[u16; 4]>>(self.by_name.capacity())
    }

    /// Blocks in places other than the engine's own on its device.
    pub(super) fn blocks_elsewhere(&self) -> u64 {
        self.elsewhere
    }

    fn replace(&mut self, id: PlaceId, place: Arc<Place>) {
        let known = &mut self.known[usize::from(id.0)].place;
        self.names = self.names - known.cost() + place.cost();
        *known = place;
    }

    pub(crate) fn main(&self) -> Option<MainGroup> {
        self.main
    }

    /// Another group is the main one.
    pub(crate) fn set_main(&mut self, main: Option<MainGroup>) {
        self.main = main;
        for at in 0..self.known.len() {
            let place = self.known[at].place.clone();
            self.known[at].place = self.fitted(place);
        }
    }

    /// A place, with what is known of its group.
    fn fitted(&self, mut place: Arc<Place>) -> Arc<Place> {
        let is_main = place.is_ours && self.main.is_some_and(|main| main.includes(place.group));
        if place.is_main != is_main {
            Arc::make_mut(&mut place).is_main = is_main;
        }
        place
    }

    /// The place that a store names, made if need be, with what the store says of its group. `None` when
    /// there are absurdly many.
    pub(crate) fn place_for(
        &mut self,
        name: PlaceName<'_>,
        spec_kind: Option<&str>,
        sliding_window: Option<u32>,
    ) -> Option<PlaceId> {
        let Some(id) = self.find(name) else {
            return self.make(Arc::new(Place::new(name, spec_kind, sliding_window)));
        };
        let place = self.get(id);
        if spec_kind.is_some()
            && (place.spec_kind.as_deref() != spec_kind || place.sliding_window != sliding_window)
        {
            let place = self.fitted(Arc::new(Place::new(name, spec_kind, sliding_window)));
            self.replace(id, place);
        }
        Some(id)
    }

    /// The place that another plane names, as it describes it.
    pub(crate) fn mirrored_place(&mut self, mirrored: &Arc<Place>) -> Option<PlaceId> {
        let Some(id) = self.find(mirrored.name()) else { return self.make(mirrored.clone()) };
        let mirrored = self.fitted(mirrored.clone());
        if *self.get(id) != mirrored {
            self.replace(id, mirrored);
        }
        Some(id)
    }

    fn make(&mut self, place: Arc<Place>) -> Option<PlaceId> {
        let names = [&place.medium, &place.locality, &place.ownership, &place.spec_kind];
        let is_too_long = names.into_iter().flatten().any(|name| name.len() > MAX_NAME);
        if self.known.len() >= Self::MAX || is_too_long {
            return None;
        }
        let place = self.fitted(place);
        let at = self.known.len() as u16;
        self.names += place.cost();
        self.by_name.entry(Seeded::default().hash_one(place.name())).or_default().push(at);
        self.known.push(Known {
            place,
            generation: 0,
            blocks: 0,
            copies: 0,
            unjoined: 0,
            digest: StateDigest::default(),
        });
        Some(PlaceId(at))
    }

    pub(crate) fn get(&self, id: PlaceId) -> &Arc<Place> {
        &self.known[usize::from(id.0)].place
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PlaceId, &Arc<Place>)> {
        self.known.iter().enumerate().map(|(at, known)| (PlaceId(at as u16), &known.place))
    }

    /// Makes loaded places findable again.
    pub(super) fn revive(&mut self) -> Result<(), Damaged> {
        if self.known.len() > Self::MAX {
            return Err(Damaged("too many places"));
        }
        for at in 0..self.known.len() {
            let hash = Seeded::default().hash_one(self.known[at].place.name());
            self.by_name.entry(hash).or_default().push(at as u16);
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// A place's number, and what it adds to a digest; `None` if there is no such place.
    pub(super) fn numbered(&self, id: PlaceId) -> Option<(usize, PlaceSeed)> {
        let number = usize::from(id.0);
        self.known.get(number).map(|known| (number, known.place.seed))
    }

    /// Whether each place holds what its digest and its number of copies say.
    pub(super) fn agree(&self, found: &[(StateDigest, u64)]) -> bool {
        self.known.iter().zip(found).all(|(known, found)| (known.digest, known.copies) == *found)
    }

    pub(super) fn generation(&self, id: PlaceId) -> u32 {
        self.known[usize::from(id.0)].generation
    }

    pub(super) fn is_current(&self, holding: &Holding) -> bool {
        self.generation(holding.place) == holding.generation
    }

    pub(super) fn count(&mut self, id: PlaceId, hash: u64, old: u32, new: u32, unjoined: bool) {
        let known = &mut self.known[usize::from(id.0)];
        let (was_held, is_held) = (u64::from(old > 0), u64::from(new > 0));
        if unjoined {
            known.unjoined = known.unjoined - was_held + is_held;
            self.unjoined = self.unjoined - was_held + is_held;
        }
        if !known.place.is_own_device() {
            self.elsewhere = self.elsewhere - was_held + is_held;
        }
        known.digest.change(known.place.seed, hash, old, new);
        known.copies = known.copies - u64::from(old) + u64::from(new);
        known.blocks = known.blocks - was_held + is_held;
    }

    /// A block of which only the hash was known has been announced.
    pub(super) fn join(&mut self, id: PlaceId) {
        self.known[usize::from(id.0)].unjoined -= 1;
        self.unjoined -= 1;
    }

    /// Blocks of which nothing but the hash is known, in every place that holds them.
    pub(super) fn unjoined(&self) -> u64 {
        self.unjoined
    }

    pub(super) fn drop_where(&mut self, gone: impl Fn(&Place) -> bool) {
        for known in self.known.iter_mut().filter(|known| gone(&known.place)) {
            self.unjoined -= known.unjoined;
            if !known.place.is_own_device() {
                self.elsewhere -= known.blocks;
            }
            known.generation = known.generation.wrapping_add(1);
            known.blocks = 0;
            known.copies = 0;
            known.unjoined = 0;
            known.digest = StateDigest::default();
        }
    }

    /// Blocks in a place of which nothing but the hash is known.
    pub(super) fn unjoined_in(&self, id: PlaceId) -> u64 {
        self.known[usize::from(id.0)].unjoined
    }

    /// Blocks in a place.
    pub(crate) fn blocks(&self, id: PlaceId) -> u64 {
        self.known[usize::from(id.0)].blocks
    }

    pub(super) fn digest(&self) -> StateDigest {
        self.known.iter().fold(StateDigest::default(), |sum, known| sum.combine(known.digest))
    }

    pub(super) fn blocks_by_tier(&self) -> [u64; Tier::ALL.len()] {
        let mut blocks = [0; Tier::ALL.len()];
        for known in &self.known {
            blocks[known.place.tier.index()] += known.blocks;
        }
        blocks
    }

    pub(super) fn copies_in(&self, tier: Tier) -> u64 {
        self.known.iter().filter(|known| known.place.tier == tier).map(|known| known.copies).sum()
    }
}
