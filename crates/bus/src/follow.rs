//! A follower of one shard of the bus: exact, or says how it is not.
//!
//! The bus is a total order that may lose, repeat, delay or reorder anything, and forget all of it. What is
//! believed follows from four things that it cannot forge: an entry's place (cursor + 1), the digest of the
//! state after it, the generation of its owner's claim, and the owner's word on where it is ([`Kind::Head`]).
//! The rules:
//!
//! 1. An item of a lower generation is dropped. A claim of a higher one makes its plane the owner; whoever is at the
//!    claim's base goes on, whoever is behind it fetches, and whoever is ahead waits for the owner's head:
//!    the owner reads up to its own claim before it goes on, so that entries between are its own. Two planes
//!    with one generation: void, `split`.
//! 2. An entry is the next, and its digest is right; a lower one is a repetition, a higher one a gap, which is fetched.
//! 3. A frame that is missing makes all streams of its plane unproven until a head agrees. If claims were in
//!    it (frames count them), every stream is: any of them may have another owner by now. The plane is asked
//!    what it owns.
//! 4. An owner that is not heard for [`SILENT_AFTER`] has no live stream.
//! 5. A bus that was made anew, or a number of its own that is missing, makes everything unproven, until each
//!    plane's next frame says whether it was one of its own, and heads agree.
//! 6. A head that differs at the same place is a divergence: void, and fetched.
//! 7. What is missing is fetched from who holds it; what comes meanwhile waits, within bounds.
//! 8. Live is what the owner calls live *and* all of this holds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use kvplane_core::{EngineId, StreamId};

use crate::frame::{Claim, Frame, Item, Kind, NoFrame, Position};
use crate::own::{Fence, Fenced};

/// An owner that is silent for longer has no live stream: four empty frames.
pub const SILENT_AFTER: Duration = Duration::from_secs(2);

/// What may wait for answers, in bytes.
pub const MAX_TAIL: usize = 64 << 20;

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It was next, and the state after it is what it says.
    Next,
    /// It is here already, or of an epoch that is over. Epochs rise.
    Before,
    /// Something before it is missing, or a new epoch begins with it.
    Gap,
    /// It was next, and the state after it is another one.
    Misfit,
}

/// The copy of one stream.
pub trait Replica: Default {
    /// Where it is; `None` while nothing is known.
    fn position(&self) -> Option<Position>;
    /// Applies an entry as it was received.
    fn apply(&mut self, entry: &Bytes) -> Applied;
    /// Whether the owner called the stream live, as of the last entry.
    fn says_live(&self) -> bool;
}

/// Where a stream stands here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// As the owner has it.
    Live,
    /// It may be another one by now.
    Recovering,
    /// Its owner is out of reach.
    Down,
}

/// What the driver has to ask others for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// What follows a position, or the whole state: of the owner, else of anybody who holds it.
    Fetch {
        /// To be handed back.
        id: u64,
        /// The stream.
        stream: StreamId,
        /// Where to go on; `None`: with the whole state.
        resume: Option<Position>,
        /// Who is to be asked first.
        owner: Option<String>,
    },
    /// What a plane owns, and by which claims. Its record elsewhere will do where it does not answer.
    Owned {
        /// The plane.
        plane: String,
        /// Which run of it.
        run: u64,
    },
}

/// What a fetch brought.
#[derive(Debug)]
pub enum Fetched<R> {
    /// What follows.
    Entries(Vec<Bytes>),
    /// The whole state.
    State(R),
    /// Nobody answered.
    Nothing,
}

/// A claim that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// Of this stream.
    pub stream: StreamId,
    /// By this plane.
    pub plane: String,
    /// This run of it.
    pub run: u64,
    /// Its generation.
    pub generation: u64,
    /// Where the stream was when the claim was read, if everything before the claim was read and agreed: the
    /// claimant goes on behind this, in the same epoch.
    pub base: Option<Position>,
}

/// What was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that were no frames.
    pub malformed: u64,
    /// Frames that came again, or too late.
    pub repeated: u64,
    /// Frames that are missing, times.
    pub missed: u64,
    /// Items of an owner that is no more.
    pub stale: u64,
    /// Items of streams that were not declared.
    pub undeclared: u64,
    /// Heads that differed at the same place.
    pub divergences: u64,
    /// Two planes with one generation.
    pub splits: u64,
    /// Entries whose state was another one.
    pub misfits: u64,
    /// Fetches begun.
    pub fetches: u64,
    /// Tails that did not fit.
    pub overflows: u64,
    /// Times that the bus was made anew.
    pub rebirths: u64,
    /// Numbers of the bus that are missing, times.
    pub holes: u64,
}

/// A run of a plane, as its frames show it.
#[derive(Debug)]
struct Publisher {
    run: u64,
    /// The last frame.
    number: u64,
    /// Claims up to it.
    claims: u64,
    /// Claims that were missed: of which streams is not known.
    unknown: bool,
    /// Something is missing, and its next frame says whether it was of this run.
    unsure: bool,
    heard: Duration,
    ordinals: BTreeMap<u32, StreamId>,
}

#[derive(Debug, Default)]
struct Followed<R> {
    replica: R,
    fence: Fence,
    /// Whose generation it is.
    owner: Option<(String, u64)>,
    /// The owner's word and this copy agreed, and nothing was missed since.
    agreed: bool,
    /// A question under way.
    asked: Option<u64>,
    /// The copy is of a moment after the owner's frame of this number: heads of earlier frames may be behind it.
    ahead: u64,
    /// What came meanwhile, with the numbers of its frames.
    tail: VecDeque<(u64, Kind)>,
    tail_bytes: usize,
}

/// A follower of one shard.
#[derive(Debug)]
pub struct Follower<R> {
    down_after: Duration,
    publishers: BTreeMap<String, Publisher>,
    streams: BTreeMap<StreamId, Followed<R>>,
    created: u64,
    last: u64,
    next_id: u64,
    tail_bytes: usize,
    asks: Vec<Ask>,
    claimed: Vec<Claimed>,
    counters: Counters,
}

impl<R: Replica> Follower<R> {
    /// A follower that knows nothing.
    pub fn new(down_after: Duration) -> Self {
        Self {
            down_after,
            publishers: BTreeMap::new(),
            streams: BTreeMap::new(),
            created: 0,
            last: 0,
            next_id: 0,
            tail_bytes: 0,
            asks: Vec::new(),
            claimed: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// What to ask others for.
    pub fn take_asks(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.asks)
    }

    /// Claims that were read.
    pub fn take_claimed(&mut self) -> Vec<Claimed> {
        std::mem::take(&mut self.claimed)
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The streams.
    pub fn streams(&self) -> impl Iterator<Item = &StreamId> {
        self.streams.keys()
    }

    /// The copy of a stream.
    pub fn replica(&self, stream: &StreamId) -> Option<&R> {
        self.streams.get(stream).map(|followed| &followed.replica)
    }

    /// The highest generation of a stream, and whose it is.
    pub fn owner(&self, stream: &StreamId) -> Option<(u64, &str, u64)> {
        let followed = self.streams.get(stream)?;
        let (plane, run) = followed.owner.as_ref()?;
        Some((followed.fence.generation(), plane, *run))
    }

    /// Where a stream stands.
    pub fn standing(&self, stream: &StreamId, now: Duration) -> Standing {
        let Some(followed) = self.streams.get(stream) else { return Standing::Recovering };
        let owner = followed.owner.as_ref();
        let heard = owner
            .and_then(|(plane, run)| self.publishers.get(plane).filter(|publisher| publisher.run == *run));
        let Some(publisher) = heard else { return Standing::Recovering };
        let silence = now.saturating_sub(publisher.heard);
        if silence > self.down_after {
            return Standing::Down;
        }
        let is_live = followed.agreed
            && followed.asked.is_none()
            && silence <= SILENT_AFTER
            && followed.replica.says_live()
            && !self.is_in_doubt(now);
        if is_live { Standing::Live } else { Standing::Recovering }
    }

    /// Whether any stream may have been claimed by a frame that was missed. A plane that is gone answers no
    /// more; whoever takes its streams over claims them anew.
    fn is_in_doubt(&self, now: Duration) -> bool {
        let is_there = |publisher: &&Publisher| now.saturating_sub(publisher.heard) <= self.down_after;
        self.publishers.values().filter(is_there).any(|publisher| publisher.unknown || publisher.unsure)
    }

    /// The last frame of a stream's owner that was read: what is told of the copy here is of that moment.
    pub fn read_of(&self, stream: &StreamId) -> Option<(&str, u64, u64)> {
        let (_, plane, run) = self.owner(stream)?;
        let publisher = self.publishers.get(plane).filter(|publisher| publisher.run == run)?;
        Some((plane, run, publisher.number))
    }

    /// A message of the bus, which was made at `created` and has given it this number.
    pub fn message(&mut self, now: Duration, (created, sequence): (u64, u64), bytes: Bytes) {
        if self.created != 0 && (created != self.created || sequence <= self.last) {
            self.counters.rebirths += 1;
            self.miss();
        } else if self.created != 0 && sequence != self.last + 1 {
            self.counters.holes += 1;
            self.miss();
        }
        (self.created, self.last) = (created, sequence);
        match Frame::read(bytes) {
            Ok(frame) => {
                if frame.stream_created > self.created {
                    self.created = frame.stream_created;
                    self.counters.rebirths += 1;
                    self.miss();
                }
                self.frame(now, frame);
            }
            Err(NoFrame::TooLarge | NoFrame::Malformed) => self.counters.malformed += 1,
        }
    }

    /// What a plane says that it owns, by all claims that it has published up to `claims`; or its record says.
    pub fn owned(&mut self, plane: &str, run: u64, claims: u64, owned: &[(StreamId, u64)]) {
        let Some(publisher) = self.publishers.get_mut(plane).filter(|publisher| publisher.run == run) else {
            return;
        };
        if claims < publisher.claims {
            return;
        }
        publisher.unknown = false;
        for (stream, generation) in owned {
            let followed = self.streams.entry(stream.clone()).or_default();
            if followed.fence.raise(*generation) {
                followed.owner = Some((plane.to_owned(), run));
                followed.agreed = false;
            }
        }
    }

    /// What a fetch brought. It is of a moment when the owner's last frame, as far as the one who answered
    /// had it, was `of`: plane, run and number.
    pub fn fetched(&mut self, id: u64, stream: &StreamId, of: Option<(&str, u64, u64)>, fetched: Fetched<R>) {
        let Some(followed) = self.streams.get_mut(stream).filter(|followed| followed.asked == Some(id))
        else {
            return;
        };
        followed.asked = None;
        let owner = followed.owner.as_ref();
        let same = of.filter(|(plane, run, _)| owner.is_some_and(|(of, at)| of == plane && at == run));
        followed.ahead = same.map_or(0, |(_, _, number)| number);
        let mut whole = true;
        match fetched {
            Fetched::State(replica) => followed.replica = replica,
            Fetched::Entries(entries) => {
                for entry in &entries {
                    match followed.replica.apply(entry) {
                        Applied::Next | Applied::Before => {}
                        Applied::Gap => whole = false,
                        Applied::Misfit => {
                            self.counters.misfits += 1;
                            followed.replica = R::default();
                            whole = false;
                        }
                    }
                    if !whole {
                        break;
                    }
                }
            }
            Fetched::Nothing => whole = false,
        }
        self.tail_bytes -= std::mem::take(&mut followed.tail_bytes);
        let tail = std::mem::take(&mut followed.tail);
        if !whole {
            self.fetch(stream);
            return;
        }
        for (number, kind) in tail {
            self.current(stream, number, kind);
        }
        let lacks_all =
            self.streams.get(stream).is_some_and(|followed| followed.replica.position().is_none());
        if lacks_all {
            self.fetch(stream);
        }
    }

    /// Messages are missing: whose is not known.
    fn miss(&mut self) {
        self.streams.values_mut().for_each(|followed| followed.agreed = false);
        self.publishers.values_mut().for_each(|publisher| publisher.unsure = true);
    }

    fn frame(&mut self, now: Duration, frame: Frame) {
        let Frame { plane, run, number, items, claims, .. } = frame;
        let claimed = items.iter().filter(|item| matches!(item.kind, Some(Kind::Claim(_)))).count() as u64;
        let known = self.publishers.get(&plane).map(|publisher| (publisher.run, publisher.number));
        if known.is_some_and(|(known_run, last)| run < known_run || (run == known_run && number <= last)) {
            self.counters.repeated += 1;
            return;
        }
        let begins = known.is_none_or(|(known_run, _)| known_run != run);
        if begins {
            let publisher = Publisher {
                run,
                number: 0,
                claims: 0,
                unknown: false,
                unsure: false,
                heard: now,
                ordinals: BTreeMap::new(),
            };
            self.publishers.insert(plane.clone(), publisher);
        }
        let Some(publisher) = self.publishers.get_mut(&plane) else { return };
        let missed = number != publisher.number + 1;
        let missed_claims = claims.saturating_sub(claimed) != publisher.claims;
        (publisher.number, publisher.claims, publisher.heard) = (number, claims, now);
        publisher.unsure = false;
        if missed || missed_claims {
            self.counters.missed += 1;
            publisher.unknown |= missed_claims;
            if missed_claims {
                self.asks.push(Ask::Owned { plane: plane.clone(), run });
            }
            let owner = (plane.clone(), run);
            for followed in self.streams.values_mut() {
                followed.agreed &= !missed_claims && followed.owner.as_ref() != Some(&owner);
            }
        }
        for item in items {
            self.item(&plane, (run, number), item);
        }
    }

    fn item(&mut self, plane: &str, (run, number): (u64, u64), item: Item) {
        let Item { stream: ordinal, generation, kind } = item;
        let Some(publisher) = self.publishers.get_mut(plane) else { return };
        if let Some(Kind::Declare(declare)) = &kind {
            let id = StreamId::new(EngineId::new(&declare.engine), declare.rank);
            publisher.ordinals.insert(ordinal, id);
            return;
        }
        let (Some(stream), Some(kind)) = (publisher.ordinals.get(&ordinal).cloned(), kind) else {
            self.counters.undeclared += 1;
            return;
        };
        let in_doubt = self.publishers.values().any(|publisher| publisher.unknown || publisher.unsure);
        let followed = self.streams.entry(stream.clone()).or_default();
        let owner = (plane.to_owned(), run);
        match followed.fence.judge(generation) {
            Fenced::Stale => {
                self.counters.stale += 1;
                return;
            }
            Fenced::Current if followed.owner.as_ref() != Some(&owner) => {
                self.counters.splits += 1;
                followed.replica = R::default();
                followed.agreed = false;
                return;
            }
            Fenced::Current => {}
            Fenced::Newer => {
                if matches!(kind, Kind::Claim(_)) {
                    let knows_all = followed.agreed && followed.asked.is_none() && !in_doubt;
                    let base = followed.replica.position().filter(|_| knows_all);
                    let (stream, plane) = (stream.clone(), plane.to_owned());
                    self.claimed.push(Claimed { stream, plane, run, generation, base });
                }
                followed.fence.raise(generation);
                followed.owner = Some(owner);
                followed.agreed = false;
                // What was asked for and what waits is of the owner before.
                followed.ahead = 0;
                let asked = followed.asked.take().is_some();
                self.tail_bytes -= std::mem::take(&mut followed.tail_bytes);
                followed.tail.clear();
                if asked {
                    self.fetch(&stream);
                }
            }
        }
        self.current(&stream, number, kind);
    }

    /// An item of the owner, in its frame of this number.
    fn current(&mut self, stream: &StreamId, number: u64, kind: Kind) {
        let Some(followed) = self.streams.get_mut(stream) else { return };
        if followed.asked.is_some() {
            self.wait(stream, number, kind);
            return;
        }
        match kind {
            Kind::Declare(_) => {}
            Kind::Entry(entry) => match followed.replica.apply(&entry) {
                Applied::Next | Applied::Before => {}
                Applied::Gap => {
                    self.fetch(stream);
                    self.wait(stream, number, Kind::Entry(entry));
                }
                Applied::Misfit => {
                    self.counters.misfits += 1;
                    followed.replica = R::default();
                    self.fetch(stream);
                }
            },
            Kind::Claim(Claim { base, .. }) => {
                let ours = followed.replica.position();
                followed.agreed = ours.is_some() && ours == base;
                // Who is ahead waits for the head: the owner may know these entries too.
                let is_ahead = matches!((ours, base), (Some(ours), Some(base))
                    if ours.epoch == base.epoch && ours.sequence > base.sequence);
                if base.is_some() && !followed.agreed && !is_ahead {
                    self.fetch(stream);
                }
            }
            Kind::Head(head) => {
                let ours = followed.replica.position();
                followed.agreed = ours == Some(head);
                let was_later = number <= followed.ahead
                    && ours.is_some_and(|ours| (head.epoch, head.sequence) < (ours.epoch, ours.sequence));
                if followed.agreed || was_later {
                    return;
                }
                let is_behind =
                    ours.is_some_and(|ours| ours.epoch == head.epoch && ours.sequence < head.sequence);
                if ours.is_some_and(|ours| ours.cursor() == head.cursor()) {
                    self.counters.divergences += 1;
                }
                if !is_behind {
                    followed.replica = R::default();
                }
                self.fetch(stream);
                self.wait(stream, number, Kind::Head(head));
            }
        }
    }

    /// Keeps an item until an answer is there.
    fn wait(&mut self, stream: &StreamId, number: u64, kind: Kind) {
        let Some(followed) = self.streams.get_mut(stream) else { return };
        let bytes = 64 + if let Kind::Entry(entry) = &kind { entry.len() } else { 0 };
        if self.tail_bytes + bytes > MAX_TAIL {
            // The next entry is a gap then, and is fetched.
            self.counters.overflows += 1;
            followed.agreed = false;
            return;
        }
        followed.tail.push_back((number, kind));
        followed.tail_bytes += bytes;
        self.tail_bytes += bytes;
    }

    fn fetch(&mut self, stream: &StreamId) {
        let Some(followed) = self.streams.get_mut(stream) else { return };
        self.next_id += 1;
        self.counters.fetches += 1;
        followed.agreed = false;
        followed.asked = Some(self.next_id);
        self.asks.push(Ask::Fetch {
            id: self.next_id,
            stream: stream.clone(),
            resume: followed.replica.position(),
            owner: followed.owner.as_ref().map(|(plane, _)| plane.clone()),
        });
    }
}
