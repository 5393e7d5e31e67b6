//! What happened lately, over all streams, in words: a ring for people to look at. Logs have the same, and
//! more.

mod words;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use kvplane_core::StreamId;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Remarks that are kept: some hours of a fleet with a few restarts, half a megabyte.
const KEPT: usize = 1024;
/// Remarks of one stream that are kept when there is no more room: one that comes and goes again and again
/// drives out its own.
const KEPT_OF_ONE: usize = 64;

/// Of these many that were written first, what is routine goes before anything else: a fleet that begins
/// tells it of every stream.
const OLD: usize = KEPT * 3 / 4;

/// How a remark is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// All is well, or well again.
    Good,
    /// Something happened, and was dealt with.
    Plain,
    /// Answers are worth less than they were.
    Bad,
}

impl Mood {
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Plain => "plain",
            Self::Bad => "bad",
        }
    }
}

/// What is said of a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// What it is about, as a stable word: `epoch`, `trust`, `continuity`, `flush`, …
    pub topic: &'static str,
    /// How it is to be read.
    pub mood: Mood,
    /// A sentence.
    pub words: String,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Rises with every remark. One that happens again right away gets a new number.
    pub number: u64,
    /// When, in unix milliseconds.
    pub unix_ms: u64,
    /// To which stream; absent for the plane as a whole.
    pub stream: Option<StreamId>,
    /// What.
    pub said: Said,
    /// How often in a row.
    pub times: u64,
}

/// What happened lately.
#[derive(Debug)]
pub struct Chronicle {
    remarks: Mutex<VecDeque<Arc<Remark>>>,
    /// The number of the last remark.
    last: watch::Sender<u64>,
}

impl Default for Chronicle {
    fn default() -> Self {
        Self { remarks: Mutex::default(), last: watch::Sender::new(0) }
    }
}

impl Chronicle {
    /// Writes down what happened.
    pub fn write(&self, unix_ms: u64, stream: Option<&StreamId>, said: Said) {
        let mut remarks = self.remarks.lock();
        let number = *self.last.borrow() + 1;
        // Streams that repeat themselves must not evict the entries of others.
        let same = remarks.iter().rev().find(|remark| remark.stream.as_ref() == stream);
        let same = same.filter(|remark| remark.said == said).map(|remark| (remark.number, remark.times));
        let times = match same {
            Some((number, times)) => {
                remarks.retain(|remark| remark.number != number);
                times + 1
            }
            None => 1,
        };
        if remarks.len() == KEPT {
            let goes = first_to_go(&remarks);
            remarks.remove(goes);
        }
        remarks.push_back(Arc::new(Remark { number, unix_ms, stream: stream.cloned(), said, times }));
        // Under the lock: the next one takes its number from it.
        self.last.send_replace(number);
    }

    /// What was written after a number, oldest first.
    pub fn after(&self, number: u64) -> Vec<Arc<Remark>> {
        let remarks = self.remarks.lock();
        let from = remarks.partition_point(|remark| remark.number <= number);
        remarks.range(from..).cloned().collect()
    }

    /// The number of the last remark, and a wake-up for every new one.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }
}

/// The remark that makes room: the oldest routine, unless it is news still; else the oldest of a stream that
/// has more than its part; else the oldest.
fn first_to_go(remarks: &VecDeque<Arc<Remark>>) -> usize {
    if let Some(routine) = remarks.iter().take(OLD).position(|remark| remark.said.is_routine()) {
        return routine;
    }
    let mut remarks_of: HashMap<_, usize> = HashMap::new();
    for remark in remarks {
        *remarks_of.entry(&remark.stream).or_default() += 1;
    }
    let has_much = |remark: &Arc<Remark>| {
        remarks_of.get(&remark.stream).is_some_and(|remarks_of| *remarks_of > KEPT_OF_ONE)
    };
    remarks.iter().position(has_much).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use kvplane_core::EngineId;

    use super::*;

    fn said(words: &str) -> Said {
        Said { topic: "events", mood: Mood::Plain, words: words.to_owned() }
    }

    fn stream(rank: u32) -> StreamId {
        StreamId::new(EngineId::new("a"), rank)
    }

    #[test]
    fn what_repeats_is_counted_and_moves_to_the_end() {
        let chronicle = Chronicle::default();
        let (a, b) = (stream(0), stream(1));
        chronicle.write(1, Some(&a), said("x"));
        chronicle.write(2, Some(&b), said("y"));
        chronicle.write(3, Some(&a), said("x"));
        let seen: Vec<_> = chronicle.after(0).iter().map(|r| (r.number, r.unix_ms, r.times)).collect();
        assert_eq!(seen, [(2, 2, 1), (3, 3, 2)]);
        chronicle.write(4, Some(&a), said("z"));
        chronicle.write(5, Some(&a), said("x"));
        assert_eq!(chronicle.after(2).iter().map(|r| r.times).collect::<Vec<_>>(), [2, 1, 1]);
        assert_eq!(*chronicle.watch().borrow(), 5);
    }

    #[test]
    fn numbers_are_given_once_whoever_writes() {
        let chronicle = Chronicle::default();
        std::thread::scope(|scope| {
            for rank in 0..4 {
                let chronicle = &chronicle;
                scope.spawn(move || {
                    for at in 0..200_u64 {
                        chronicle.write(at, Some(&stream(rank)), said(&at.to_string()));
                    }
                });
            }
        });
        let numbers: Vec<_> = chronicle.after(0).iter().map(|remark| remark.number).collect();
        assert_eq!(numbers, (1..=800).collect::<Vec<_>>());
    }

    #[test]
    fn the_oldest_goes() {
        let chronicle = Chronicle::default();
        for at in 0..KEPT as u64 + 10 {
            chronicle.write(at, None, said(&at.to_string()));
        }
        let kept = chronicle.after(0);
        assert_eq!((kept.len(), kept[0].number), (KEPT, 11));
        assert_eq!(chronicle.after(KEPT as u64 + 8).len(), 2);
    }

    #[test]
    fn a_fleet_that_begins_does_not_drive_out_what_went_wrong() {
        let chronicle = Chronicle::default();
        let write = |rank, topic, mood, words: &str| {
            chronicle.write(0, Some(&stream(rank)), Said::new(topic, mood, words));
        };
        write(0, "trust", Mood::Bad, "unsound");
        for rank in 0..KEPT as u32 {
            write(rank, "source", Mood::Plain, "has not said yet");
            write(rank, "source", Mood::Good, "resolved");
            write(rank, "continuity", Mood::Plain, "asking");
            write(rank, "continuity", Mood::Good, "following");
            write(rank, "trust", Mood::Good, "exact");
        }
        let kept = chronicle.after(0);
        assert_eq!((kept.len(), kept[0].said.words.as_str()), (KEPT, "unsound"));
        // Routine entries are kept while they are new.
        for rank in 0..2 * KEPT as u32 {
            write(rank, "events", Mood::Bad, "wrong");
        }
        write(0, "trust", Mood::Good, "exact");
        write(1, "events", Mood::Bad, "worse");
        let kept = chronicle.after(0);
        assert_eq!(kept.iter().filter(|remark| remark.said.is_routine()).count(), 1);
    }

    #[test]
    fn one_that_has_much_to_tell_does_not_drive_out_the_others() {
        let chronicle = Chronicle::default();
        let (quiet, loud) = (stream(0), stream(1));
        chronicle.write(0, Some(&quiet), said("once"));
        let of = |stream: &StreamId| {
            chronicle.after(0).iter().filter(|remark| remark.stream.as_ref() == Some(stream)).count()
        };
        for at in 0..10 * KEPT as u64 {
            chronicle.write(at, Some(&loud), said(&at.to_string()));
        }
        assert_eq!((of(&quiet), of(&loud)), (1, KEPT - 1));
        // It had room that nobody else wanted. Others take it, up to what is its own.
        for rank in 2..1000 {
            chronicle.write(0, Some(&stream(rank)), said("once"));
        }
        assert_eq!((of(&quiet), of(&loud), of(&stream(2))), (0, KEPT_OF_ONE - 38, 1));
    }
}
