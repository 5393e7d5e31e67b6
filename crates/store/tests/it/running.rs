//! A journal that works: written, closed, killed, gone on with, made smaller.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvplane_store::memory::MemoryFiles;
use kvplane_store::{Disk, Journal, Off, Options, Sync, read};

use crate::rig::{HEADER, Stream, eventually, memory, options, recover, start};

#[test]
fn what_is_written_is_what_comes_back() {
    let files = MemoryFiles::default();
    let journal = start(&files, options());
    let mut streams: Vec<Stream> = ["a", "b", "c"].map(|engine| Stream::new(&journal, engine)).into();
    for round in 0..50 {
        for stream in &mut streams[..=(round % 3)] {
            stream.publish();
        }
    }
    eventually("written", || streams.iter().all(Stream::is_written));
    // Killed: everything that a subscriber has seen is there.
    let found = read(Arc::new(files.copied())).unwrap();
    assert!(!found.closed && found.is_complete(HEADER.boot) && !found.is_complete([9; 16]));
    for (stream, recovered) in streams.iter().zip(recover(&files.copied())) {
        assert_eq!(memory(recovered).mark(), stream.mark());
    }
    journal.close();
    let found = read(Arc::new(files)).unwrap();
    assert!(found.closed && found.is_complete([9; 16]));
}

#[test]
fn streams_go_on_over_many_processes_and_removed_ones_do_not() {
    let mut files = MemoryFiles::default();
    let mut journal = start(&files, options());
    Stream::new(&journal, "gone").journal.remove();
    let mut kept = Stream::new(&journal, "kept");
    for process in 0..4 {
        for _ in 0..10 {
            kept.publish();
        }
        eventually("written", || kept.is_written());
        // The process is killed, and another one finds what it left.
        files = files.copied();
        let mut recovered = recover(&files);
        assert_eq!(recovered.len(), 1, "process {process}");
        journal = start(&files, options());
        let before = kept.mark();
        kept = Stream::adopt(&journal, recovered.remove(0), kept.next);
        let after = kept.mark();
        assert_eq!((before.cursor.epoch, before.digest), (after.cursor.epoch, after.digest));
        kept.resume();
    }
}

#[test]
fn old_segments_are_replaced_by_what_they_lead_to() {
    let files = MemoryFiles::default();
    let small = Options { compact_from: 40_000, segment: 8_000, ..options() };
    let journal = start(&files, small);
    let (mut busy, mut quiet) = (Stream::new(&journal, "busy"), Stream::new(&journal, "quiet"));
    quiet.publish();
    let mut batches = 0;
    while journal.status().compactions < 3 {
        busy.publish();
        batches += 1;
        assert!(batches < 200_000 && journal.status().off.is_none());
        if batches % 50 == 0 {
            eventually("written", || busy.is_written());
        }
    }
    quiet.publish();
    eventually("written", || busy.is_written() && quiet.is_written());
    journal.close();
    let found = read(Arc::new(files.copied())).unwrap();
    assert!(found.troubles.is_empty() && found.torn.is_none());
    assert!(*found.segments.first_key_value().unwrap().0 > 1, "the first segments are gone");
    for (stream, recovered) in [&busy, &quiet].into_iter().zip(recover(&files)) {
        assert_eq!(memory(recovered).mark(), stream.mark());
    }
}

#[test]
fn a_directory_belongs_to_one_process_and_is_nobody_elses_business() {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("kvplane-store-{}", std::process::id()));
    let disk = Arc::new(Disk::take(&path).unwrap());
    assert_eq!(Disk::take(&path).unwrap_err().kind(), std::io::ErrorKind::ResourceBusy);
    let found = read(disk.clone()).unwrap();
    let journal =
        Journal::start(disk, HEADER, Options { sync: Sync::Always, ..options() }, &found, &[]).unwrap();
    let mut stream = Stream::new(&journal, "a");
    for _ in 0..20 {
        stream.publish();
    }
    eventually("written", || stream.is_written());
    journal.close();
    let mode = |name: &str| std::fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("."), mode("00000001.kvj"), mode("lock")), (0o700, 0o600, 0o600));
    let looked = Arc::new(Disk::look_at(&path).unwrap());
    let found = read(looked).unwrap();
    let recovered = found.restore(&[1], u64::MAX, 1).unwrap().remove(0);
    assert_eq!(memory(recovered).mark(), stream.mark());
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn a_disk_that_fails_ends_the_journal_and_nothing_else() {
    use std::io::ErrorKind;

    type Fault = fn(&MemoryFiles);
    let faults: [(Fault, Off); 3] = [
        (|files| files.fill_up_after(Some(100)), Off::Full),
        (|files| files.fail(Some(ErrorKind::Other)), Off::Failed),
        (|files| files.fail(Some(ErrorKind::QuotaExceeded)), Off::Full),
    ];
    for (fault, off) in faults {
        let files = MemoryFiles::default();
        let journal = start(&files, options());
        let mut stream = Stream::new(&journal, "a");
        stream.publish();
        eventually("written", || stream.is_written());
        fault(&files);
        stream.publish();
        eventually("off", || stream.written.off.load(Ordering::Acquire));
        assert_eq!(journal.off(), Some(off));
        // Heard all the same; and a later stream is not kept waiting.
        stream.publish();
        assert_eq!(stream.recorder.last_sequence(), Some(2));
        assert!(Stream::new(&journal, "b").written.off.load(Ordering::Acquire));
        journal.close();
        files.fail(None);
        files.fill_up_after(None);
        assert!(recover(&files).is_empty(), "what was left behind is not gone on from");
    }
}

#[test]
fn a_journal_has_its_bounds() {
    for (options, off) in [
        (Options { max_disk: 5_000, ..options() }, Off::Limit),
        (Options { max_queue: 5_000, ..options() }, Off::Slow),
    ] {
        let files = MemoryFiles::default();
        let journal = start(&files, options);
        let mut stream = Stream::new(&journal, "a");
        for _ in 0..20_000 {
            if journal.off().is_some() {
                break;
            }
            stream.publish();
        }
        eventually("off", || journal.off() == Some(off));
        eventually("removed", || read(Arc::new(files.copied())).is_ok_and(|found| found.segments.is_empty()));
    }
}

#[test]
fn a_disk_that_hangs_does_not_hold_up_the_end() {
    let files = MemoryFiles::default();
    let max_stall = std::time::Duration::from_millis(20);
    let journal = start(&files, Options { max_stall, ..options() });
    let mut stream = Stream::new(&journal, "a");
    eventually("written", || stream.is_written());
    files.hold(true);
    stream.publish();
    journal.close();
    assert!(!stream.is_written());
    assert!(!read(Arc::new(files.copied())).unwrap().closed);
    files.hold(false);
}
