//! A stream that publishes, is recorded, and appends to a journal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kvplane_store::memory::MemoryFiles;
use kvplane_store::{Header, Journal, Name, Options, Recovered, StreamJournal, Sync, Written, read};
use kvplane_stream::{JournalOptions, Mark, Memory, Now, Options as Follow, Recorder};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};

pub const HEADER: Header = Header { plane: [1; 16], boot: [2; 16], run: 1, always_synced: false };

pub fn name(engine: &str) -> Name {
    Name { engine: engine.to_owned(), rank: 0 }
}

/// What a stream was notified of as written.
#[derive(Debug, Default)]
pub struct Synced {
    pub sequence: AtomicU64,
    pub off: AtomicBool,
}

impl Written for Synced {
    fn written(&self, sequence: u64) {
        self.sequence.fetch_max(sequence, Ordering::AcqRel);
    }

    fn off(&self) {
        self.off.store(true, Ordering::Release);
    }
}

/// Waits for something, and not for long.
pub fn eventually(what: &str, is: impl Fn() -> bool) {
    let deadline = kvplane_runtime::now() + Duration::from_secs(30);
    while !is() {
        assert!(kvplane_runtime::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[derive(Debug)]
pub struct Stream {
    pub recorder: Recorder,
    pub next: u64,
    pub journal: StreamJournal,
    pub written: Arc<Synced>,
    pub now: Now,
}

impl Stream {
    pub fn new(journal: &Arc<Journal>, engine: &str) -> Self {
        let now = Now { mono: Duration::from_secs(1), unix_ms: 1_700_000_000_000 };
        let mut recorder = Recorder::new(Follow::default(), JournalOptions::default(), 0, now);
        assert!(recorder.keep_records(now));
        let written = Arc::new(Synced::default());
        let journal = journal.stream(name(engine), None, written.clone());
        let mut stream = Self { recorder, next: 0, journal, written, now };
        stream.recorder.connected(now);
        stream.answer();
        stream
    }

    /// Goes on from what was recovered.
    pub fn adopt(journal: &Arc<Journal>, recovered: Recovered, next: u64) -> Self {
        let now = Now { mono: Duration::from_secs(9), unix_ms: 1_700_000_009_000 };
        let written = Arc::new(Synced::default());
        let journal = journal.stream(recovered.name, Some((recovered.id, recovered.next)), written.clone());
        let recorder = Recorder::adopt(Follow::default(), recovered.memory.unwrap(), now);
        let mut stream = Self { recorder, next, journal, written, now };
        stream.keep();
        stream
    }

    /// The engine is there again, and has published nothing since.
    pub fn resume(&mut self) {
        self.recorder.connected(self.now);
        let last = Self::payload(self.next - 1);
        for ask in self.recorder.take_asks() {
            if let kvplane_stream::Ask::Replay { id, from } = ask {
                assert_eq!(from, self.next - 1);
                self.recorder.replayed(self.now, id, from, last.clone());
                self.recorder.replay_ended(self.now, id, true);
            }
        }
        self.keep();
        assert_eq!(self.recorder.continuity(), kvplane_core::Continuity::Live);
    }

    /// The replay socket has nothing new.
    fn answer(&mut self) {
        for ask in self.recorder.take_asks() {
            if let kvplane_stream::Ask::Replay { id, .. } = ask {
                self.recorder.replay_ended(self.now, id, true);
            }
        }
        self.keep();
    }

    /// The next batch: two blocks come, and one that came before goes.
    pub fn publish(&mut self) {
        let payload = Self::payload(self.next);
        self.recorder.live(self.now, self.next, payload);
        self.next += 1;
        self.keep();
    }

    fn payload(n: u64) -> Bytes {
        let stored = OwnedStored {
            block_hashes: [2 * n + 1, 2 * n + 2].map(OwnedHash::Unsigned).to_vec(),
            token_ids: (0..4).map(|at| n as u32 * 4 + at).collect(),
            block_size: 2,
            medium: Some("GPU".into()),
            ..OwnedStored::default()
        };
        let removed = OwnedRemoved {
            block_hashes: vec![OwnedHash::Unsigned(n)],
            medium: Some("GPU".into()),
            ..OwnedRemoved::default()
        };
        let events = [OwnedEvent::Stored(stored), OwnedEvent::Removed(removed)];
        Bytes::from(encode_batch(Profile::Vllm0_24, 1.0, Some(0), &events))
    }

    fn keep(&mut self) {
        let records = self.recorder.take_records();
        let sequence = self.recorder.ledger().cursor().sequence;
        self.journal.append(records, sequence);
    }

    pub fn mark(&self) -> Mark {
        let ledger = self.recorder.ledger();
        Mark {
            cursor: ledger.cursor(),
            last_event_id: ledger.last_event_id(),
            digest: ledger.state().digest(),
        }
    }

    pub fn is_written(&self) -> bool {
        self.written.sequence.load(Ordering::Acquire) >= self.mark().cursor.sequence
    }
}

pub fn options() -> Options {
    Options { sync: Sync::Every(Duration::from_millis(1)), ..Options::default() }
}

pub fn start(files: &MemoryFiles, options: Options) -> Arc<Journal> {
    let files = Arc::new(files.clone());
    let found = read(files.clone()).unwrap();
    let keep: Vec<u32> = found.whole().map(|(id, _)| id).collect();
    Journal::start(files, HEADER, options, &found, &keep).unwrap()
}

/// What can be gone on from.
pub fn recover(files: &MemoryFiles) -> Vec<Recovered> {
    let found = read(Arc::new(files.clone())).unwrap();
    let ids: Vec<u32> = found.whole().map(|(id, _)| id).collect();
    found.restore(&ids, u64::MAX, 2).unwrap()
}

pub fn memory(recovered: Recovered) -> Memory {
    recovered.memory.unwrap()
}
