//! A peer's `/dump`, as parts that streams can take.

use kvplane_stream::{DumpedRun, PeerDump, Position};
use kvplane_wire::dynamo::{
    DumpedStream, IndexerDump, IndexerDumpPart, KvCacheEventData, RouterEvent, StorageTier,
};

/// Blocks of one part: what is done under a stream's lock at once.
const PART_BLOCKS: usize = 1024;

/// A stream, as peers name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) model: String,
    pub(super) group: String,
    pub(super) worker: u64,
    pub(super) rank: u32,
}

/// Why a dump, or what it has of a stream, cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unusable {
    /// The peer does not know the stream.
    Unknown,
    /// What it says of the stream is no list of stores.
    NotStores,
    /// The cache has groups that a dump does not tell of.
    Groups,
}

impl Unusable {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "the peer does not know the stream",
            Self::NotStores => "the dump has other events than stores",
            Self::Groups => "the cache has several groups",
        }
    }
}

/// What a dump has of each stream, in parts. At least one part, also where nothing is held.
pub(super) fn parts_of(dump: &IndexerDump, names: &[Name]) -> Vec<Result<Vec<PeerDump>, Unusable>> {
    names.iter().map(|name| parts_for(dump, name)).collect()
}

fn parts_for(dump: &IndexerDump, name: &Name) -> Result<Vec<PeerDump>, Unusable> {
    let key = format!("{}:{}", name.model, name.group);
    let mut candidates = dump.iter().filter(|(candidate, part)| {
        // A kvplane whose engines have blocks of several sizes names them.
        **candidate == key || **candidate == format!("{key}-{}", part.block_size)
    });
    candidates.find_map(|(_, part)| find_in(part, name)).unwrap_or(Err(Unusable::Unknown))
}

fn find_in(part: &IndexerDumpPart, name: &Name) -> Option<Result<Vec<PeerDump>, Unusable>> {
    let described = part
        .streams
        .iter()
        .find(|described| described.worker_id == name.worker && described.dp_rank == name.rank);
    let is_its = |event: &&RouterEvent| event.worker_id == name.worker && event.event.dp_rank == name.rank;
    let mut events = part.events.iter().filter(is_its).peekable();
    if described.is_none() && events.peek().is_none() {
        return None;
    }
    if described.is_some_and(|described| described.groups > 1) {
        return Some(Err(Unusable::Groups));
    }
    let position = described.and_then(vouched_position);
    let empty = || PeerDump { block_size: part.block_size, runs: Vec::new(), position };
    let (mut parts, mut open, mut blocks) = (Vec::new(), empty(), 0);
    for event in events {
        let KvCacheEventData::Stored(stored) = &event.event.data else {
            return Some(Err(Unusable::NotStores));
        };
        if event.storage_tier != StorageTier::Device {
            continue;
        }
        let mut parent = stored.parent_hash;
        for run in stored.blocks.chunks(PART_BLOCKS) {
            if blocks > 0 && blocks + run.len() > PART_BLOCKS {
                parts.push(std::mem::replace(&mut open, empty()));
                blocks = 0;
            }
            blocks += run.len();
            let pairs = run.iter().map(|block| (block.block_hash, block.tokens_hash)).collect();
            open.runs.push(DumpedRun { parent, blocks: pairs });
            parent = run.last().map(|block| block.block_hash);
        }
    }
    parts.push(open);
    Some(Ok(parts))
}

/// The batch at which a peer dumped a stream, where it vouches for what it says.
fn vouched_position(described: &DumpedStream) -> Option<Position> {
    let vouches = matches!(described.trust.as_str(), "exact" | "lower");
    let digest = u128::from_str_radix(&described.digest, 16).ok().filter(|_| vouches)?;
    Some(Position { sequence: described.sequence, digest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(worker: u64) -> Name {
        Name { model: "a:b".into(), group: "default".into(), worker, rank: 0 }
    }

    fn read(text: &str) -> Vec<Result<Vec<PeerDump>, Unusable>> {
        parts_of(&serde_json::from_str(text).unwrap(), &[name(7)])
    }

    fn stored(tier: &str, parent: &str, hash: u64) -> String {
        format!(
            r#"{{"worker_id":7,"storage_tier":"{tier}","event":{{"event_id":0,"data":{{"stored":{{"parent_hash":{parent},"blocks":[{{"block_hash":{hash},"tokens_hash":1}}]}}}},"dp_rank":0}}}}"#
        )
    }

    #[test]
    fn a_dump_of_dynamos_has_no_position() {
        let events = [stored("device", "null", 1), stored("device", "1", 2), stored("host_pinned", "2", 3)];
        let text = format!(r#"{{"a:b:default":{{"block_size":4,"events":[{}]}}}}"#, events.join(","));
        let parts = read(&text).remove(0).unwrap();
        let run = |parent, hash| DumpedRun { parent, blocks: vec![(hash, 1)] };
        assert_eq!(
            parts,
            [PeerDump { block_size: 4, runs: vec![run(None, 1), run(Some(1), 2)], position: None }]
        );
    }

    #[test]
    fn a_kvplane_vouches_for_its_dump_or_does_not() {
        let dump = |trust: &str, groups: u32| {
            format!(
                r#"{{"a:b:default-4":{{"block_size":4,"events":[],"streams":[{{"worker_id":7,"dp_rank":0,"sequence":9,"digest":"ff","trust":"{trust}","groups":{groups}}}]}}}}"#
            )
        };
        let position = Some(Position { sequence: 9, digest: 255 });
        for (trust, expected) in
            [("exact", position), ("lower", position), ("unverified", None), ("new", None)]
        {
            assert_eq!(read(&dump(trust, 1)).remove(0).unwrap()[0].position, expected, "{trust}");
        }
        assert_eq!(read(&dump("exact", 2)), [Err(Unusable::Groups)]);
    }

    #[test]
    fn what_cannot_be_used() {
        assert_eq!(read("{}"), [Err(Unusable::Unknown)]);
        assert_eq!(read(r#"{"a:b:default":{"error":"no"}}"#), [Err(Unusable::Unknown)]);
        assert_eq!(read(r#"{"a:other":{"block_size":4,"events":[]}}"#), [Err(Unusable::Unknown)]);
        let cleared = r#"{"a:b:default":{"block_size":4,"events":[{"worker_id":7,"event":{"event_id":0,"data":"cleared"}}]}}"#;
        assert_eq!(read(cleared), [Err(Unusable::NotStores)]);
    }

    #[test]
    fn long_runs_come_in_parts() {
        let blocks: Vec<String> =
            (0..2500).map(|hash| format!(r#"{{"block_hash":{hash},"tokens_hash":1}}"#)).collect();
        let text = format!(
            r#"{{"a:b:default":{{"block_size":4,"events":[{{"worker_id":7,"event":{{"event_id":0,"data":{{"stored":{{"parent_hash":null,"blocks":[{}]}}}}}}}}]}}}}"#,
            blocks.join(",")
        );
        let parts = read(&text).remove(0).unwrap();
        let of = |part: &PeerDump| (part.runs[0].parent, part.runs[0].blocks.len());
        assert_eq!(
            parts.iter().map(of).collect::<Vec<_>>(),
            [(None, 1024), (Some(1023), 1024), (Some(2047), 452)]
        );
    }
}
