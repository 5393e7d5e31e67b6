//! Inputs from the engine's own process.

use kvplane_wire::{Batch, Decoder, Dialect, OwnedEvent};

use super::follower::Follower;
use super::{Happening, Recorder, heed};
use crate::clock::Now;
use crate::handed::{Handed, HandedOptions, NotTaken};
use crate::options::JournalOptions;

impl Recorder {
    /// A recorder of what the engine's own process hands over.
    pub fn of_hand_over(follow: HandedOptions, keep: JournalOptions, rank: u32, now: Now) -> Self {
        Self::of(Follower::Handed(Box::new(Handed::new(follow))), Dialect::Msgpack, keep, rank, now)
    }

    /// A message as the engine publishes it, under its number; without one, under the next. Engines number
    /// from 0, so that a higher first number says that something came before it. Returns the number.
    pub fn hand_frame(&mut self, now: Now, number: Option<u64>, payload: &[u8]) -> Result<u64, NotTaken> {
        let begins = number.is_none_or(|number| number == 0);
        self.hand_over(now, number, begins, |decoder| {
            let batch = decoder.decode(payload)?;
            batch.broken.map_or(Ok(batch), |broken| Err(broken.into()))
        })
    }

    /// Events under one number, the first of which may be any; without one, under the next. Returns the
    /// number.
    pub fn hand_events(
        &mut self,
        now: Now,
        number: Option<u64>,
        events: &[OwnedEvent],
    ) -> Result<u64, NotTaken> {
        let timestamp = now.unix_ms as f64 / 1_000.0;
        self.hand_over(now, number, true, |decoder| {
            decoder.assemble(timestamp, events).map_err(NotTaken::Unfit)
        })
    }

    fn hand_over<'p>(
        &mut self,
        now: Now,
        given: Option<u64>,
        begins: bool,
        read: impl for<'d> FnOnce(&'d mut Decoder) -> Result<Batch<'d, 'p>, NotTaken>,
    ) -> Result<u64, NotTaken> {
        let Self { follower: Follower::Handed(handed), interpreter, ledger, decoder, happenings, .. } = self
        else {
            return Err(NotTaken::Foreign);
        };
        // Read first: what cannot be read changes nothing, its number neither.
        let batch = read(decoder).inspect_err(|_| handed.count_undecodable())?;
        // Numbers of our own carry the life that they are of, as those of any other stream do.
        let number = handed.number(given, ledger.epoch().base().nth(1))?;
        if let Some(action) = handed.take(number, begins) {
            heed((interpreter, ledger), happenings, &action, now);
        }
        let foreign = batch.rank.filter(|_| ledger.counters().foreign_rank == 0);
        interpreter.apply(ledger, number, &batch, now);
        if let Some(rank) = foreign.filter(|_| ledger.counters().foreign_rank > 0) {
            happenings.push(Happening::ForeignRank(rank));
        }
        self.settle(now);
        Ok(number)
    }
}
