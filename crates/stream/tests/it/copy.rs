//! A copy of a stream, as a plane keeps it that follows the one that records it.

use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Cursor, EngineKind};
use kvplane_stream::{
    Chain, Change, Entry, JournalOptions, Ledger, Loss, MirrorBlocks, MirrorChunk, MirrorEnd, MirrorEntry,
    MirrorSnapshot, Misfit, Now, Recorder, Semantics, Snapshot, StoredBlock, StoredParts,
};

const NOW: Now = Now { mono: Duration::ZERO, unix_ms: 1_700_000_000_000 };

/// Follows a recorder over a link that never fails, and is the same at every step.
pub struct Copy {
    mirror: Recorder,
    semantics: Semantics,
    forgot: bool,
}

impl Copy {
    pub fn new(kind: EngineKind) -> Self {
        let semantics = Semantics::of(kind);
        let keep = JournalOptions { semantics, ..JournalOptions::default() };
        let mirror = Recorder::of_mirror(Duration::from_secs(10), keep, 0, NOW);
        Self { mirror, semantics, forgot: false }
    }

    pub fn ledger(&self) -> &Ledger {
        self.mirror.ledger()
    }

    pub fn ledger_mut(&mut self) -> &mut Ledger {
        self.mirror.ledger_mut()
    }

    pub fn follow(&mut self, recorder: &mut Recorder) {
        let ledger = recorder.ledger_mut();
        self.mirror.reached(NOW, ledger.cursor());
        while self.mirror.ledger().cursor() != ledger.cursor() {
            let resume = self.mirror.resume().ok_or(Loss::OtherEpoch);
            match resume.and_then(|cursor| ledger.read_after(cursor, usize::MAX)) {
                Ok(entries) => self.entries(&entries),
                Err(_) => self.load(ledger),
            }
        }
        let ours = self.mirror.ledger();
        assert_eq!(ours.state().digest(), ledger.state().digest());
        assert_eq!(ours.trust(), ledger.trust());
        assert_eq!(ours.last_event_id(), ledger.last_event_id());
        assert_eq!(ours.engine_sequence(), ledger.engine_sequence());
        assert_eq!(ours.known_from(), ledger.known_from());
    }

    fn entries(&mut self, entries: &[Arc<Entry>]) {
        for entry in entries {
            if let Err(misfit) = self.mirror.mirrored(NOW, mirror_entry(entry)) {
                assert!(self.forgot && misfit == Misfit::EventIds, "{misfit}");
                return;
            }
        }
    }

    fn load(&mut self, ledger: &mut Ledger) {
        let snapshot = take(ledger);
        self.forgot = forgets(ledger, &snapshot);
        let mut mirrored =
            MirrorSnapshot::new(snapshot.cursor, JournalOptions::default().state, self.semantics);
        for chunk in mirror_chunks(&snapshot) {
            mirrored.chunk(snapshot.cursor, chunk).unwrap();
        }
        self.mirror.load(NOW, mirrored.finish().unwrap());
    }
}

/// Whether a snapshot does not have everything that the ledger knows: what nobody holds is not in it.
pub fn forgets(ledger: &Ledger, snapshot: &Snapshot) -> bool {
    ledger.state().entries() != snapshot.parents_first().len()
}

pub fn take(ledger: &mut Ledger) -> Snapshot {
    let mut builder = ledger.begin_snapshot();
    while !builder.gather() {
        ledger.step_snapshot(&mut builder, 3).unwrap();
    }
    builder.finish()
}

/// An entry, as it is sent.
pub fn mirror_entry(entry: &Entry) -> MirrorEntry {
    let without_elsewhere = |change: &Change| match change {
        Change::Dropped { reason, .. } => Change::Dropped { reason: *reason, elsewhere: Vec::new() },
        other => other.clone(),
    };
    MirrorEntry {
        age: entry.age,
        cursor: Cursor { epoch: entry.epoch, sequence: entry.sequence },
        engine_sequence: entry.engine_sequence,
        engine_digest: entry.engine_digest,
        timestamp: entry.timestamp,
        changes: entry.changes.iter().map(without_elsewhere).collect(),
        trust: entry.trust.clone(),
        known_from: entry.trust.as_ref().and(entry.known_from),
        continuity: entry.continuity,
        digest: entry.digest,
        last_event_id: entry.next_event_id() - 1,
        units: entry.resumption.as_ref().map(|resumption| resumption.units),
        whole_prompt: entry.resumption.as_ref().is_some_and(|resumption| resumption.whole_prompt),
    }
}

/// A snapshot, as it is sent: two blocks at a time.
pub fn mirror_chunks(snapshot: &Snapshot) -> Vec<MirrorChunk> {
    let blocks: Vec<MirrorBlocks> =
        snapshot.parents_first().iter().flat_map(|&at| mirror_block(snapshot, at)).collect();
    let mut chunks = Vec::new();
    let mut blocks = blocks.into_iter().peekable();
    while blocks.peek().is_some() {
        let index = chunks.len() as u32;
        chunks.push(MirrorChunk { index, blocks: blocks.by_ref().take(2).collect(), end: None });
    }
    if chunks.is_empty() {
        chunks.push(MirrorChunk { index: 0, blocks: Vec::new(), end: None });
    }
    chunks.last_mut().unwrap().end = Some(MirrorEnd {
        age: snapshot.age,
        trust: snapshot.trust.clone(),
        continuity: snapshot.continuity,
        engine_sequence: snapshot.engine_sequence,
        engine_digest: snapshot.engine_digest,
        known_from: snapshot.known_from,
        digest: snapshot.digest,
        last_event_id: snapshot.last_event_id,
        block_size: snapshot.block_size,
        partial_blocks: snapshot.partial_blocks,
        groups: snapshot.groups.clone(),
        resumption: (*snapshot.resumption).clone(),
    });
    chunks
}

fn mirror_block(snapshot: &Snapshot, at: u32) -> Vec<MirrorBlocks> {
    let image = &snapshot.image.blocks[at as usize];
    let (chain, others) = snapshot.chains_of(image);
    let holdings = image.holdings.iter().map(|holding| (Some(holding.place), holding.copies));
    let hole = image.holdings.is_empty().then_some((None, 0));
    let one = |chain: Option<&Chain>, (place, copies): (Option<u16>, u32)| MirrorBlocks {
        place: place.map(|place| snapshot.image.places[usize::from(place)].clone()),
        block_size: chain.map_or(0, |chain| chain.block_size),
        attributes: chain.map_or_else(Arc::default, |chain| chain.attributes.clone()),
        blocks: vec![StoredBlock::from(StoredParts {
            hash: image.hash,
            wide: image.wide.clone(),
            copies,
            parent: chain.map(Chain::parent),
            tokens: chain.map(|chain| chain.tokens.clone()),
            first_position: None,
            content: chain.filter(|chain| chain.attached).map(|chain| chain.content),
            extra_keys: chain.and_then(|chain| chain.extra_keys.clone()),
        })],
    };
    let others = others.into_iter().map(|other| one(Some(other), (None, 0)));
    others.chain(holdings.chain(hole).map(|held| one(chain, held))).collect()
}
