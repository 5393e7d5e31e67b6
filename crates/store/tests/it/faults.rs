//! A small journal, cut at every byte, with every bit flipped, and after a loss of power at every moment:
//! what comes back is what was there, at an earlier moment, or nothing.

use std::collections::HashSet;
use std::sync::Arc;

use kvplane_store::memory::MemoryFiles;
use kvplane_store::{Journal, Options, Segment, Sync, read};
use kvplane_stream::Mark;

use crate::rig::{HEADER, Stream, eventually, options, recover, start};

/// A journal of two streams over two segments, and every state that either has been in.
fn small() -> (MemoryFiles, HashSet<String>) {
    let files = MemoryFiles::default();
    let journal = start(&files, Options { segment: 1_500, ..options() });
    let mut streams = ["a", "b"].map(|engine| Stream::new(&journal, engine));
    let mut marks = HashSet::new();
    let note = |stream: &Stream, marks: &mut HashSet<String>| marks.insert(text(stream.mark()));
    for _ in 0..2 {
        for stream in &mut streams {
            stream.publish();
            note(stream, &mut marks);
            eventually("written", || stream.is_written());
        }
    }
    journal.close();
    (files, marks)
}

fn text(mark: Mark) -> String {
    format!("{mark:?}")
}

/// Whatever a damaged journal gives back was there once. Returns how many streams it gave back.
fn check(files: &MemoryFiles, marks: &HashSet<String>, goes_on: bool) -> usize {
    let Ok(found) = read(Arc::new(files.clone())) else { return 0 };
    let ids: Vec<u32> = found.whole().map(|(id, _)| id).collect();
    let mut back = 0;
    for recovered in found.restore(&ids, u64::MAX, 1).unwrap() {
        let Ok(memory) = recovered.memory else { continue };
        // Before the first batch a stream has been in states that nobody noted.
        if memory.last().is_some() && memory.ledger().engine_sequence().is_some() {
            let mark = memory.mark();
            assert!(marks.contains(&text(mark)) || memory.last().unwrap().0 == 0, "{mark:?} never was");
        }
        back += 1;
    }
    if !goes_on {
        return back;
    }
    // It can be gone on with, or is refused as a whole.
    let journal = Journal::start(Arc::new(files.clone()), HEADER, options(), &found, &ids);
    if let Ok(journal) = journal {
        journal.close();
        let again = read(Arc::new(files.clone())).unwrap();
        assert_eq!(again.whole().count(), found.whole().count());
        assert!(again.torn.is_none() && again.closed);
    }
    back
}

#[test]
fn cut_at_every_byte() {
    let (files, marks) = small();
    let names = [Segment::file(1), Segment::file(2)];
    let mut most = 0;
    for name in &names {
        let length = kvplane_store::Files::read(&files, name).unwrap().len();
        for cut in 0..length {
            let damaged = files.copied();
            damaged.damage(name, |bytes| bytes.truncate(cut));
            most = most.max(check(&damaged, &marks, cut % 16 == 0));
        }
    }
    assert_eq!(most, 2);
}

#[test]
fn every_bit_flipped() {
    let (files, marks) = small();
    for name in [Segment::file(1), Segment::file(2)] {
        let length = kvplane_store::Files::read(&files, &name).unwrap().len();
        for bit in 0..8 * length {
            let damaged = files.copied();
            damaged.damage(&name, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            let found = read(Arc::new(damaged.clone()));
            assert!(
                found.is_err() || found.is_ok_and(|found| !found.is_complete([9; 16])),
                "bit {bit} of {name} went unnoticed"
            );
            check(&damaged, &marks, bit % 256 == 0);
        }
    }
}

#[test]
fn torn_pages() {
    let (files, marks) = small();
    for name in [Segment::file(1), Segment::file(2)] {
        let length = kvplane_store::Files::read(&files, &name).unwrap().len();
        for page in (0..length).step_by(512) {
            let damaged = files.copied();
            damaged.damage(&name, |bytes| {
                let end = (page + 512).min(length);
                bytes[page..end].fill(0);
            });
            check(&damaged, &marks, true);
        }
    }
}

#[test]
fn power_lost_with_and_without_syncs() {
    for lies in [false, true] {
        for kept in [0, 1, 64, 100, 300, 1_000, 5_000] {
            let files = MemoryFiles::default();
            let journal = start(&files, Options { sync: Sync::Always, ..options() });
            if lies {
                files.lose_syncs();
            }
            let mut stream = Stream::new(&journal, "a");
            let mut marks = HashSet::new();
            for _ in 0..8 {
                stream.publish();
                marks.insert(text(stream.mark()));
                eventually("written", || stream.is_written());
            }
            let after = files.copied();
            after.lose_power(kept);
            if !lies {
                // What was acknowledged was synced first.
                let recovered = recover(&after).remove(0).memory.unwrap();
                assert_eq!(recovered.mark(), stream.mark());
            }
            check(&after, &marks, true);
            journal.close();
        }
    }
}
