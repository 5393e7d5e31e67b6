//! What a recorder remembers over a restart of kvplane, and how it goes on from there.
//!
//! A recorder is a deterministic machine: the same [steps](step::Step) lead to the same entries, numbers, digests and
//! trust. So what is kept of a stream is a [`Memory`] as of some moment ([`Memory::save`]) and the [`Record`]s of
//! all steps since ([`Recorder::take_records`]). [`Memory::follow`] takes them again, and compares after
//! every one of them where it led. [`Recorder::adopt`] goes on from a memory in the same epoch, as after a
//! disconnect: the replay socket is asked for the last batch that was placed, *inclusive*, and its digest
//! decides.
//!
//! Every field of a recorder and its fate (those of each part are listed beside its definition, by
//! [`persist!`](crate::persist::persist), and none can be left out of that list):
//!
//! | what | fate |
//! |---|---|
//! | blocks, their chains, tokens and keys; ghosts; blocks that wait, in their order; copies, chunks that they stand for | remembered |
//! | places, groups, layout, sizes, which group is the main one, marks that are due | remembered |
//! | trust with every reason and since when; `known_from`; the engine's last number, digest and stamp | remembered |
//! | blocks that left the device (`Departed`), copies in doubt, reports, over-counts, capacity | remembered |
//! | chunks, page hashes, windows, tiers whose past is unknown, ranks that were named | remembered |
//! | evidence, and the contents that were stored; removals that a dump waits for | remembered |
//! | fences of flushes, with the clears that are owed | remembered; their watchers are gone: [`Recorder::end_lost_flushes`] |
//! | numbers of entries and transitions | remembered |
//! | the window | made again from the records; what is older than the saved memory is not in it |
//! | the last batch placed or given up with its digest, the digests of the last 1,024, the engine's start time, a hole that was asked for once, contradictions, a foreign or deaf replay socket, two publishers | remembered |
//! | batches that wait for their turn, questions under way, frames that were late, doubts about the connection | void, as with every connection that ends |
//! | counters of the order, logs that were passed over | begin again; nothing depends on them |
//!
//! Nothing that matters is forgotten, so trust is not lowered: `lower` afterwards is only what was `lower`
//! before, or what the engine's ring cannot prove any more. What cannot be read, or leads elsewhere, is
//! [`Damaged`]: the stream begins anew, as without a memory.

mod step;

use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Continuity, Cursor};
use kvplane_wire::{Decoder, Dialect};

use crate::clock::Now;
use crate::interpreter::Interpreter;
use crate::ledger::Ledger;
use crate::options::JournalOptions;
pub use crate::persist::Damaged;
use crate::persist::{Persist, Source};
use crate::sequencer::{Order, Recent, Seen};
pub use step::{Mark, Record};
pub(crate) use step::{Step, perform};

/// What a saved memory begins with: another format is another number. Raise it whenever what is saved of
/// anything changes its meaning or its shape.
const FORMAT: u32 = 2;

/// What a recorder of a publishing engine remembers.
#[derive(Debug)]
pub struct Memory {
    pub(crate) interpreter: Interpreter,
    pub(crate) ledger: Ledger,
    pub(crate) order: Order,
    pub(crate) recent: Recent,
    decoder: Decoder,
    /// It may lack what subscribers have been sent.
    may_lack_entries: bool,
}

impl Memory {
    /// That of a recorder that began at a moment, as its first record says.
    pub fn begin(first: &Record) -> Result<Self, Damaged> {
        let Step::Begin { keep, rank } = &first.step else {
            return Err(Damaged("the first step is not a beginning"));
        };
        let now = Now { mono: Duration::ZERO, unix_ms: first.unix_ms };
        let (interpreter, ledger) = Interpreter::with_ledger(JournalOptions::clone(keep), *rank, now);
        let mut memory = Self::of(interpreter, ledger, Order::NEW, Recent::default());
        memory.follow(first)?;
        Ok(memory)
    }

    fn of(interpreter: Interpreter, ledger: Ledger, order: Order, recent: Recent) -> Self {
        Self { interpreter, ledger, order, recent, decoder: Decoder::default(), may_lack_entries: false }
    }

    /// Takes a step again. After an error the memory is of no use.
    pub fn follow(&mut self, record: &Record) -> Result<(), Damaged> {
        let Record { step, unix_ms, age, mark } = record;
        let now = Now { mono: Duration::ZERO, unix_ms: *unix_ms };
        self.ledger.set_age(*age);
        let core = (&mut self.interpreter, &mut self.ledger);
        perform(core, (&mut self.decoder, Dialect::Msgpack), step, now)?;
        note(&mut self.order, step);
        match step {
            Step::Batch { sequence, digest, .. } | Step::GivenUp { sequence, digest } => {
                self.recent.remember(*sequence, *digest);
            }
            Step::NewEpoch(_) => self.recent.clear(),
            Step::Order(order) if order.last.is_none() => self.recent.clear(),
            _ => {}
        }
        if Mark::of(&self.ledger) == *mark { Ok(()) } else { Err(Damaged("a step led elsewhere")) }
    }

    /// As it is kept.
    pub fn save(&self) -> Vec<u8> {
        let mut out = Vec::new();
        FORMAT.save(&mut out);
        self.interpreter.options().save(&mut out);
        Mark::of(&self.ledger).save(&mut out);
        self.order.save(&mut out);
        self.recent.save(&mut out);
        self.interpreter.save(&mut out);
        self.ledger.save(&mut out);
        out
    }

    /// What [`Self::save`] wrote.
    pub fn load(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut from = Source::new(bytes);
        if u32::load(&mut from)? != FORMAT {
            return Err(Damaged("its format is another"));
        }
        let keep = Arc::<JournalOptions>::load(&mut from)?;
        let mark = Mark::load(&mut from)?;
        let (order, recent) = (Persist::load(&mut from)?, Persist::load(&mut from)?);
        let mut interpreter = Interpreter::load(&mut from)?;
        let mut ledger = <Ledger as Persist>::load(&mut from)?;
        if !from.is_empty() {
            return Err(Damaged("it is longer than a memory"));
        }
        interpreter.revive(keep.clone());
        ledger.revive(keep, mark.cursor, mark.last_event_id)?;
        if Mark::of(&ledger) != mark {
            return Err(Damaged("it is not what was saved"));
        }
        Ok(Self::of(interpreter, ledger, order, recent))
    }

    /// Where it is.
    pub fn mark(&self) -> Mark {
        Mark::of(&self.ledger)
    }

    /// The last batch that was placed or given up, and its digest.
    pub fn last(&self) -> Option<(u64, Option<u128>)> {
        self.order.last.map(crate::sequencer::Last::parts)
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether it is of a stream with these rules. The bounds of the window may be others.
    pub fn fits(&self, keep: &JournalOptions, rank: u32) -> bool {
        let rules = |options: &JournalOptions| {
            let mut saved = Vec::new();
            JournalOptions { max_batches: 0, max_bytes: 0, ..options.clone() }.save(&mut saved);
            saved
        };
        self.interpreter.rank() == rank && rules(self.interpreter.options()) == rules(keep)
    }

    /// Subscribers may have been sent entries that are not remembered: a recorder that goes on from here
    /// gives them other numbers, in a new epoch, so that no cursor means two things.
    pub fn may_lack_entries(&mut self) {
        self.may_lack_entries = true;
    }

    pub(crate) fn lacks_entries(&self) -> bool {
        self.may_lack_entries
    }

    pub(crate) fn into_parts(self) -> (Interpreter, Ledger, Seen) {
        let continuity = self.ledger.continuity();
        let seen = Seen {
            order: self.order,
            recent: self.recent,
            reached: continuity != Continuity::Connecting,
            down: continuity == Continuity::Down,
        };
        (self.interpreter, self.ledger, seen)
    }

    /// The position after all that is remembered.
    pub fn cursor(&self) -> Cursor {
        self.ledger.cursor()
    }
}

/// What a step says of the order.
pub(crate) fn note(order: &mut Order, step: &Step) {
    match step {
        Step::Batch { sequence, digest, .. } | Step::GivenUp { sequence, digest } => {
            order.place(*sequence, *digest);
        }
        Step::NewEpoch(_) => order.begin_epoch(),
        Step::HeardFromStart => order.start_reported = true,
        Step::KnownFrom(_) => order.start_reported = false,
        Step::Order(actual) => *order = *actual,
        _ => {}
    }
}
