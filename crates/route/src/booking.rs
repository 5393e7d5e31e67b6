//! What was sent where and is not over: bounded in number, each for a bounded time.

use std::collections::VecDeque;

use crate::worker::Slot;

/// The name of a booking. Never used twice in one router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BookingId(pub u64);

/// One request that was sent somewhere.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Booking {
    /// Where.
    pub worker: Slot,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens that are to be prefilled.
    pub uncached: u64,
    /// Tokens that it is expected to generate.
    pub output: u64,
    /// When it was made.
    pub made: f64,
    /// Its first token came.
    pub started: bool,
    /// Its first token tells how fast the engine prefills: nothing was pending there, and what it holds was known.
    pub telling: bool,
}

/// A place for a booking; `serial` tells its tenants apart.
#[derive(Debug, Clone, Copy)]
struct Cell {
    serial: u32,
    booking: Option<Booking>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Bookings {
    cells: Vec<Cell>,
    free: Vec<u32>,
    /// By age. A booking that ended leaves its entry here until its time.
    order: VecDeque<BookingId>,
    live: usize,
    limit: usize,
}

/// A plane may have tens of thousands.
const _: () = assert!(Bookings::BYTES <= 200);

impl Bookings {
    pub(crate) fn new(limit: usize) -> Self {
        Self { cells: Vec::new(), free: Vec::new(), order: VecDeque::new(), live: 0, limit }
    }

    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// What each takes, its entry in the order of ages included.
    const BYTES: usize = size_of::<Cell>() + 2 * size_of::<BookingId>() + size_of::<u32>();

    /// `None` when there are too many.
    pub(crate) fn add(&mut self, booking: Booking) -> Option<BookingId> {
        if self.live >= self.limit {
            return None;
        }
        // Bookings that ended must not make the order grow without bound.
        if self.order.len() >= 2 * self.limit.max(64) {
            let cells = &self.cells;
            self.order.retain(|id| find(cells, *id).is_some());
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.cells.push(Cell { serial: 0, booking: None });
            self.cells.len() as u32 - 1
        });
        let cell = &mut self.cells[at as usize];
        cell.serial = cell.serial.wrapping_add(1);
        cell.booking = Some(booking);
        let id = BookingId(u64::from(cell.serial) << 32 | u64::from(at));
        self.order.push_back(id);
        self.live += 1;
        Some(id)
    }

    pub(crate) fn get(&self, id: BookingId) -> Option<&Booking> {
        find(&self.cells, id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (BookingId, &Booking)> {
        let named = |(at, cell): (usize, &Cell)| BookingId(u64::from(cell.serial) << 32 | at as u64);
        let all = self.cells.iter().enumerate();
        all.filter_map(move |(at, cell)| Some((named((at, cell)), cell.booking.as_ref()?)))
    }

    pub(crate) fn get_mut(&mut self, id: BookingId) -> Option<&mut Booking> {
        let cell = self.cells.get_mut(id.0 as u32 as usize)?;
        if u64::from(cell.serial) == id.0 >> 32 { cell.booking.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, id: BookingId) -> Option<Booking> {
        let found = *self.get_mut(id)?;
        self.cells[id.0 as u32 as usize].booking = None;
        self.free.push(id.0 as u32);
        self.live -= 1;
        Some(found)
    }

    /// The oldest, if it was made before a moment.
    pub(crate) fn oldest_before(&mut self, moment: f64) -> Option<BookingId> {
        while let Some(&id) = self.order.front() {
            match find(&self.cells, id) {
                Some(booking) if booking.made < moment => return Some(id),
                Some(_) => return None,
                None => {
                    self.order.pop_front();
                }
            }
        }
        None
    }

    /// Bookings of one worker.
    pub(crate) fn of(&self, worker: Slot) -> Vec<BookingId> {
        self.iter().filter(|(_, booking)| booking.worker == worker).map(|(id, _)| id).collect()
    }
}

fn find(cells: &[Cell], id: BookingId) -> Option<&Booking> {
    let cell = cells.get(id.0 as u32 as usize)?;
    if u64::from(cell.serial) == id.0 >> 32 { cell.booking.as_ref() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn booking(made: f64) -> Booking {
        Booking { worker: Slot(0), prompt: 1, uncached: 1, output: 1, made, started: false, telling: true }
    }

    #[test]
    fn their_number_is_bounded_and_no_name_is_used_twice() {
        let mut bookings = Bookings::new(2);
        let first = bookings.add(booking(0.0)).unwrap();
        let second = bookings.add(booking(1.0)).unwrap();
        assert_eq!(bookings.add(booking(2.0)), None);
        assert!(bookings.remove(first).is_some());
        let third = bookings.add(booking(2.0)).unwrap();
        assert_ne!(first, third);
        assert_eq!(bookings.remove(first), None);
        assert_eq!(bookings.oldest_before(1.5), Some(second));
        bookings.remove(second);
        assert_eq!(bookings.oldest_before(1.5), None);
        assert_eq!(bookings.len(), 1);
    }

    #[test]
    fn the_order_of_ages_does_not_grow_with_bookings_that_ended() {
        let mut bookings = Bookings::new(4);
        for round in 0..10_000 {
            let id = bookings.add(booking(f64::from(round))).unwrap();
            bookings.remove(id);
        }
        assert!(bookings.order.len() <= 128, "{}", bookings.order.len());
        assert_eq!(bookings.cells.len(), 1);
    }
}
