//! Readers and writers at once: nothing false is answered, and in the end all is as if they had come one by
//! one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::oracle::Oracle;
use super::*;

const WRITERS: u64 = 4;
const ROUNDS: u64 = 30;
const BLOCKS: u64 = 600;

/// What a writer does, a round at a time. Each has a replica of its own; they share prefixes.
fn round(book: &Book, replica: &str, round: u64) {
    let at_us = NOW + round as i64 * SECOND;
    if replica.ends_with('0') {
        let notes: Vec<Note> = (0..BLOCKS).map(|number| held(number, number as u32 * 16 + 16)).collect();
        book.hear(whose(replica), "s", &notes);
    } else {
        book.reported(replica, at_us, &entries(0..BLOCKS));
        for number in (round..BLOCKS).step_by(7) {
            book.evict(whose(replica), &hash(number), "");
        }
    }
    if round % 5 == 3 {
        book.hear(whose(replica).elsewhere(), "s", &[held(1, 16), Note::Nothing]);
        book.clear(whose(replica));
        book.reported("passing", at_us, &entries(0..100));
        book.forget(whose("passing"));
    }
    let stats = Stats { pressure: 0.5, ..Stats::default() };
    if replica.ends_with('0') {
        book.hear_stats(whose(replica), stats, at_us);
    } else {
        assert_eq!(book.set_stats(whose(replica), stats, at_us), Ok(true));
    }
}

impl<'a> Whose<'a> {
    fn elsewhere(self) -> Whose<'a> {
        Whose { model: "elsewhere", ..self }
    }
}

#[test]
fn in_the_end_all_is_as_if_they_had_come_one_by_one() {
    let book = book(Policy { minimum_matched_tokens: 0, routing_floor_score: 0.0, ..Policy::default() });
    book.reported("anchor", NOW, &entries(0..BLOCKS));
    book.reported("other", NOW, &entries(90_000..90_001));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut answers = 0_u64;
                    while !done.load(Ordering::Relaxed) || answers == 0 {
                        let verdict = book.ask_chain(0..BLOCKS);
                        let anchor = verdict.scores.iter().find(|score| &*score.replica == "anchor");
                        assert_eq!(anchor.map(|score| score.matched_tokens), Some(BLOCKS as u32 * 16));
                        assert!(
                            verdict.scores.iter().all(|score| score.matched_tokens <= BLOCKS as u32 * 16)
                        );
                        let census = book.census();
                        assert!(census.models.iter().all(|model| model.prefixes <= model.entries));
                        book.expire(NOW);
                        answers += 1;
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let book = &book;
                scope.spawn(move || (0..ROUNDS).for_each(|number| round(book, &format!("r{writer}"), number)))
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    });
    // "passing" is reported and dropped by everybody: what is left of it depends on who was last.
    book.forget(whose("passing"));

    let one_by_one = Book::new(Limits::default(), (*book.policies()).clone(), None);
    one_by_one.reported("anchor", NOW, &entries(0..BLOCKS));
    one_by_one.reported("other", NOW, &entries(90_000..90_001));
    for writer in 0..WRITERS {
        (0..ROUNDS).for_each(|number| round(&one_by_one, &format!("r{writer}"), number));
    }
    assert_eq!(book.census(), one_by_one.census());
    for first in 0..BLOCKS {
        assert_eq!(book.ask_chain(first..first + 9), one_by_one.ask_chain(first..first + 9));
    }
    book.known.read().assert_counts();

    // What the plain book makes of the last rounds: the one before the last clears what came before.
    let mut oracle = Oracle::new(Limits::default(), (*book.policies()).clone());
    oracle.report(whose("anchor"), "s", NOW, &entries(0..BLOCKS), &book);
    oracle.report(whose("other"), "s", NOW, &entries(90_000..90_001), &book);
    oracle.hear(whose("r0"), "s", &(0..BLOCKS).map(|number| held(number, 16)).collect::<Vec<_>>());
    for writer in 0..WRITERS {
        let replica = format!("r{writer}");
        let at_us = NOW + (ROUNDS - 1) as i64 * SECOND;
        oracle.hear(whose(&replica).elsewhere(), "s", &[]);
        let stats = Stats { pressure: 0.5, ..Stats::default() };
        if writer == 0 {
            oracle.hear_stats(whose(&replica), stats, at_us);
        } else {
            oracle.set_stats(whose(&replica), stats, at_us);
            let left = (0..BLOCKS)
                .filter(|number| *number < ROUNDS - 1 || !(number - (ROUNDS - 1)).is_multiple_of(7));
            let left: Vec<Entry> = left.map(|number| entry(number, 16)).collect();
            oracle.report(whose(&replica), "s", at_us, &left, &book);
        }
    }
    assert_eq!(book.census(), oracle.census());
}

/// A replica that is cleared is a ghost for a while. Others take its cells too, where the cap makes them, and
/// a new name takes its number once all are gone: it must not be taken for the ghost.
#[test]
fn a_clear_takes_nothing_of_those_that_come_after() {
    const ROUNDS: u64 = 100;
    const KEPT: u64 = 4;
    // What is kept is younger than the rest and fits: the cap never takes any of it.
    let limits = Limits { max_entries: (WRITERS * ROUNDS * KEPT) as usize, ..Limits::default() };
    let book = Book::new(limits.clone(), Policies::default(), None);
    let kept = |writer: u64, number: u64| (format!("kept-{writer}-{number}"), entries(0..KEPT));
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let book = &book;
            scope.spawn(move || {
                for number in 0..ROUNDS {
                    let passing = format!("passing-{writer}-{number}");
                    book.reported(&passing, NOW - MINUTE, &entries(0..BLOCKS));
                    book.clear(whose(&passing));
                    let (replica, entries) = kept(writer, number);
                    book.reported(&replica, NOW, &entries);
                }
            });
        }
    });
    let mut oracle = Oracle::new(limits, Policies::default());
    for (writer, number) in (0..WRITERS).flat_map(|writer| (0..ROUNDS).map(move |number| (writer, number))) {
        let (replica, entries) = kept(writer, number);
        oracle.report(whose(&replica), "s", NOW, &entries, &book);
    }
    assert_eq!(book.census(), oracle.census());
    book.known.read().assert_counts();
}

/// The same, step by step.
#[test]
fn a_ghost_is_not_mistaken_for_whoever_has_its_number_next() {
    let book = book(Policy::default());
    book.reported("old", NOW - MINUTE, &entries(0..BLOCKS));
    let mut known = book.known.write();
    let number = known.find(whose("old")).unwrap();
    let ghost = known.detach(number);
    assert_eq!(known.drain(&ghost, 10), Progress::More);
    let limits = Limits { max_entries: 0, ..Limits::default() };
    while known.keep_within(None, &limits, &Policies::default(), AT_ONCE, None) == Progress::More {}
    drop(known);
    book.reported("new", NOW, &entries(0..BLOCKS));
    let mut known = book.known.write();
    assert_eq!(known.find(whose("new")), Some(number), "it has the same number");
    assert_eq!(known.drain(&ghost, 10), Progress::Done);
    drop(known);
    assert_eq!(book.census().models[0].entries, BLOCKS as usize);
    assert_eq!(book.known.read().drops.all(), [], "what a ghost loses is not dropped: it was cleared");
}
