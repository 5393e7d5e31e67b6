//! What the worst batch of every shape costs: the work per batch is linear in its size.
//!
//! `cargo test -p kvplane-stream --test ledger -- --ignored --nocapture table` prints what one and four MiB
//! of each shape cost.

use kvplane_stream::{JournalOptions, Limits};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{Decoder, OwnedEvent, OwnedRemoved, OwnedStored};

use crate::rig::{NOW, Rig, hashes, placeholder, remove, remove_from, store, store_in, stored};

/// A shape: what is there before, and the events number `at` of a batch.
struct Shape {
    name: &'static str,
    before: fn(&mut Rig),
    events: fn(u64) -> Vec<OwnedEvent>,
}

fn nothing(_: &mut Rig) {}

/// A state of many blocks, which no batch may walk for every event.
fn many_blocks(rig: &mut Rig) {
    for first in (1..=20_000u64).step_by(100) {
        let chain: Vec<u64> = (first..first + 100).map(|hash| hash + (1 << 40)).collect();
        rig.apply(&[store(&chain, None)]);
    }
}

fn many_blocks_and_places(rig: &mut Rig) {
    many_blocks(rig);
    for owner in 0..1200 {
        rig.apply(&[owned(1 << 41, owner)]);
    }
    rig.apply(&[store_in("CPU", &[1 << 42], None), OwnedEvent::Cleared]);
}

fn two_groups(rig: &mut Rig) {
    rig.apply(&[store(&[1 << 43, 2 << 43], None), in_group(&[1 << 43, 2 << 43], 1, "full_attention")]);
}

fn full(rig: &mut Rig) {
    for first in (1..=20_000u64).step_by(100) {
        let chain: Vec<u64> = (first..first + 100).map(|hash| hash + (1 << 40)).collect();
        rig.apply(&[store(&chain, None)]);
    }
}

fn owned(hash: u64, owner: u64) -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored { ownership: Some(format!("owner {owner}")), ..stored(&[hash], None) })
}

fn in_group(list: &[u64], group: u32, kind: &str) -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored {
        group: Some(group),
        spec_kind: Some(kind.to_owned()),
        ..stored(list, None)
    })
}

fn orphan(hash: u64, parent: u64) -> OwnedEvent {
    store(&[hash], Some(parent))
}

/// A store of one block with this many tokens.
fn sized(hash: u64, size: u32, parent: Option<u64>) -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored {
        token_ids: vec![1; size as usize],
        block_size: size,
        ..stored(&[hash], parent)
    })
}

fn sparse(hash: u64, group: u32) -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored {
        group: Some(group),
        token_ids: vec![1; 4],
        spec_kind: None,
        ..stored(&[hash], None)
    })
}

const SHAPES: &[Shape] = &[
    Shape { name: "roots", before: nothing, events: |at| vec![store(&[at + 1], None)] },
    Shape { name: "one root again", before: nothing, events: |_| vec![store(&[1], None)] },
    Shape {
        name: "roots gone on with",
        before: nothing,
        events: |at| vec![store(&[1], None), store(&[at + 2], Some(1))],
    },
    Shape {
        name: "windows beside roots",
        before: two_groups,
        events: |at| vec![in_group(&[at + 1], 1, "full_attention")],
    },
    Shape {
        name: "windows of one prompt",
        before: two_groups,
        events: |at| {
            if at == 0 {
                vec![store(&[1], None)]
            } else {
                vec![in_group(&[1], 1 + at as u32 % 7, "sliding_window")]
            }
        },
    },
    Shape { name: "new places", before: nothing, events: |at| vec![owned(at + 1, at)] },
    Shape { name: "one block in many places", before: nothing, events: |at| vec![owned(1, at)] },
    Shape {
        name: "new groups",
        before: nothing,
        events: |at| vec![in_group(&[at + 1], at as u32, "full_attention")],
    },
    Shape {
        name: "a kind that changes",
        before: many_blocks,
        events: |at| vec![in_group(&[1], 0, if at % 2 == 0 { "sliding_window" } else { "full_attention" })],
    },
    Shape { name: "sparse in new groups", before: nothing, events: |at| vec![sparse(at + 1, at as u32)] },
    Shape {
        name: "orphans stored and removed",
        before: nothing,
        events: |at| vec![orphan(at + 2, 1), remove(&[at.saturating_sub(2000) + 2])],
    },
    Shape {
        name: "orphans of one parent",
        before: nothing,
        events: |at| if at < 60_000 { vec![orphan(at + 2, 1)] } else { vec![store(&[1], None)] },
    },
    Shape {
        name: "hashes alone in many places",
        before: many_blocks_and_places,
        events: |at| vec![placeholder(&[at + 1], "GPU")],
    },
    Shape { name: "clears", before: many_blocks, events: |_| vec![OwnedEvent::Cleared] },
    Shape {
        name: "clears of many places",
        before: many_blocks_and_places,
        events: |_| vec![OwnedEvent::Cleared, remove(&[])],
    },
    Shape {
        name: "host stores and clears",
        before: many_blocks_and_places,
        events: |at| vec![store_in("CPU", &[at + 1], None), OwnedEvent::Cleared],
    },
    Shape {
        name: "one hash of many sizes",
        before: |rig| (1..1000).for_each(|size| drop(rig.apply(&[sized(1, size, None)]))),
        events: |at| vec![sized(1, 1000 + at as u32 % 16, None)],
    },
    Shape {
        name: "copies in chunks",
        before: |rig| {
            rig.apply(&[store(&[1, 2, 3, 4], None)]);
            rig.apply(&[placeholder(&vec![2; 100_000], "CPU")]);
        },
        events: |_| vec![placeholder(&[2], "CPU")],
    },
    Shape {
        name: "removals of unknown blocks",
        before: many_blocks_and_places,
        events: |at| vec![remove_from("CPU", &[at])],
    },
    Shape { name: "no room", before: full, events: |at| vec![placeholder(&[at + 1, at + 2], "GPU")] },
    Shape {
        name: "a cycle over two sizes",
        before: nothing,
        events: |at| {
            let (a, b) = (2 * at + 1, 2 * at + 2);
            vec![store(&[a], None), store(&[b], Some(a)), sized(a, 3, Some(b)), remove(&[a, a, b])]
        },
    },
    Shape {
        name: "keys",
        before: nothing,
        events: |at| {
            let keys = vec![kvplane_wire::OwnedExtraKey::Text("salt".into()); 4];
            vec![OwnedEvent::Stored(OwnedStored {
                extra_keys: Some(vec![Some(keys)]),
                ..stored(&[at + 1], None)
            })]
        },
    },
    Shape {
        name: "removals of nothing",
        before: many_blocks_and_places,
        events: |_| {
            vec![OwnedEvent::Removed(OwnedRemoved { block_hashes: hashes(&[]), ..Default::default() })]
        },
    },
];

/// A batch of at most this many bytes.
fn payload(shape: &Shape, bytes: usize) -> Vec<u8> {
    let encode = |events: &[OwnedEvent]| encode_batch(Profile::Vllm0_29, 1.0, Some(0), events);
    let probe: Vec<OwnedEvent> = (0..256).flat_map(|at| (shape.events)(at + 70_000)).collect();
    let each = encode(&probe).len() as u64 / 256;
    let events: Vec<OwnedEvent> = (0..bytes as u64 / each.max(1)).flat_map(|at| (shape.events)(at)).collect();
    encode(&events)
}

/// Nanoseconds that this thread has computed: other load does not count.
fn computed() -> u64 {
    // What is computed is added up with every switch.
    std::thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn options() -> JournalOptions {
    let state = Limits { max_bytes: 48 << 20, ..Limits::default() };
    JournalOptions { state, offload_chunk: Some(4), ..JournalOptions::default() }
}

/// The least of several measurements: milliseconds, and the bytes that it was.
fn cost(shape: &Shape, bytes: usize, times: usize) -> (f64, usize) {
    let payload = payload(shape, bytes);
    let mut best = f64::MAX;
    for _ in 0..times {
        let mut rig = Rig::with(options());
        (shape.before)(&mut rig);
        let mut decoder = Decoder::default();
        let start = computed();
        rig.interpreter.apply(&mut rig.ledger, rig.next, &decoder.decode(&payload).unwrap(), NOW);
        best = best.min((computed() - start) as f64 / 1e6);
    }
    (best, payload.len())
}

#[test]
fn the_work_of_a_batch_is_linear_in_its_size() {
    const SMALL: usize = 96 << 10;
    for shape in SHAPES {
        let (small, small_bytes) = cost(shape, SMALL, 3);
        let (large, large_bytes) = cost(shape, 4 * SMALL, 2);
        let ratio = large / small.max(0.5) * (4.0 * small_bytes as f64 / large_bytes as f64);
        assert!(ratio < 9.0, "{}: {small:.1} ms, and {large:.1} ms for four times as much", shape.name);
        assert!(large < 4_000.0, "{}: {large:.0} ms for {large_bytes} bytes", shape.name);
    }
}

#[test]
#[ignore = "prints figures"]
fn table() {
    for shape in SHAPES {
        let cells = [1 << 20, 4 << 20].map(|size| {
            let (ms, bytes) = cost(shape, size, 1);
            format!("{ms:>10.1} ms {:>8.0} ns/byte", ms * 1e6 / bytes as f64)
        });
        println!("{:<30}{}", shape.name, cells.join(" |"));
    }
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<usize>().ok()).unwrap_or(0) * 1024
}

#[test]
#[ignore = "prints figures"]
fn memory() {
    let chain = |at: u64| (at * 64 + 1..=at * 64 + 64).collect::<Vec<_>>();
    for (name, is_chain) in [("hashes alone", false), ("blocks", true)] {
        let event = |at| if is_chain { store(&chain(at), None) } else { placeholder(&chain(at), "GPU") };
        let state = Limits { max_bytes: 128 << 20, max_waiting: usize::MAX, ..Limits::default() };
        let mut rig = Rig::with(JournalOptions { state, max_bytes: 1 << 20, ..JournalOptions::default() });
        let before = resident();
        (0..3_000_000 / 64).for_each(|at| drop(rig.apply(&[event(at)])));
        let (grown, counted) = ((resident() - before) >> 10, rig.ledger.state().bytes() >> 10);
        println!(
            "{name}: {} entries, {grown} KiB grown, {counted} KiB counted",
            rig.ledger.state().entries()
        );
    }
}
