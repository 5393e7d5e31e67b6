use kvplane_core::Tier;
use kvplane_ingest::{Origin, PlaneOptions};
use kvplane_stream::VisibleBlock;
use tokio::runtime::Runtime;

use super::*;
use crate::fleet::EngineConfig;

/// Far beyond anything that should take: only a hang reaches it.
const DEADLINE: Duration = Duration::from_secs(30);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A plane on this runtime, with an engine of two ranks that is never reached.
fn plane(on: &Runtime) -> Arc<Plane> {
    let engine = serde_json::json!({"id": "a", "kind": "vllm", "events": "tcp://127.0.0.1:1", "ranks": 2});
    let engine: EngineConfig = serde_json::from_value(engine).unwrap();
    let _inside = on.enter();
    let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
    plane.add(vec![engine.plan().unwrap().spec().clone()], Origin::Api).unwrap();
    plane
}

fn subscribe(mergers: &Mergers, plane: &Plane) -> Subscribed {
    mergers.of(&EngineId::new("a"), plane, &[Trust::Exact], &CancellationToken::new())
}

#[test]
fn a_merger_outlives_the_front_that_asked_first() {
    let main = runtime();
    let (plane, mergers) = (plane(&main), Mergers::default());
    let front = runtime();
    let first = front.block_on(async { subscribe(&mergers, &plane) });
    // The front goes away with its engine's description, and its runtime with it.
    front.shutdown_timeout(DEADLINE);
    let second = main.block_on(async { subscribe(&mergers, &plane) });
    assert!(Arc::ptr_eq(&first.0, &second.0));
    assert!(!second.ended().is_cancelled(), "the merger ended with the front");
    // It ends with its engine, as ever.
    plane.remove("a").unwrap();
    main.block_on(async { tokio::time::timeout(DEADLINE, second.ended().cancelled()).await }).unwrap();
    plane.shutdown();
}

#[test]
fn a_dead_merger_is_replaced_and_says_that_it_ended() {
    let main = runtime();
    let (plane, mergers) = (plane(&main), Mergers::default());
    let dead = main.block_on(async { subscribe(&mergers, &plane) });
    assert!(!dead.ended().is_cancelled());
    main.shutdown_timeout(DEADLINE);
    assert!(dead.ended().is_cancelled(), "nobody learns that it ended");
    assert!(mergers.running.lock().by_engine.is_empty());
    let next = subscribe(&mergers, &plane);
    assert!(!Arc::ptr_eq(&dead.0, &next.0));
    assert!(next.epoch > dead.epoch, "numbers of the dead one would be inside its window");
    plane.shutdown();
}

/// As long as somebody is sent a state and all that came after it is here, others who begin are sent the
/// same.
#[test]
fn gateways_that_begin_together_share_a_state() {
    let merger = Merger::new(1_800_000_000_000, None);
    let stored = |hash| {
        let block = VisibleBlock {
            hash,
            content: hash,
            tokens: kvplane_stream::Tokens::from([1]),
            block_size: 1,
            attributes: Arc::default(),
            extra_keys: None,
        };
        Transition::Stored { tier: Tier::Device, parent: None, blocks: vec![block] }
    };
    merger.apply(0, 0.0, &[stored(1)], false);
    let first = merger.plan();
    merger.apply(1, 0.0, &[stored(2)], false);
    let second = merger.plan();
    assert!(Arc::ptr_eq(&first, &second));
    let (missed, last) = merger.read_after(second.plan().cut(), 10).unwrap();
    assert_eq!((missed.len(), last), (1, first.plan().cut() + 1));
    // Nobody is sent it any more: the next one is of now.
    drop((first, second));
    assert_eq!(merger.plan().plan().cut(), last);
}

#[test]
fn a_merger_that_nobody_subscribes_to_is_freed() {
    let main = runtime();
    let plane = plane(&main);
    let mergers = Mergers { idle: Duration::from_millis(5), ..Mergers::default() };
    let (first, second) = main.block_on(async { (subscribe(&mergers, &plane), subscribe(&mergers, &plane)) });
    let third = second.clone();
    let (ended, state) = (first.ended().clone(), Arc::downgrade(&first.0));
    drop((first, second));
    assert!(Arc::ptr_eq(&third.0, &main.block_on(async { subscribe(&mergers, &plane) }).0));
    assert!(!ended.is_cancelled());
    drop(third);
    main.block_on(async { tokio::time::timeout(DEADLINE, ended.cancelled()).await }).unwrap();
    assert!(mergers.running.lock().by_engine.is_empty());
    let deadline = kvplane_runtime::now() + DEADLINE;
    while state.strong_count() > 0 {
        assert!(kvplane_runtime::now() < deadline, "the copy of the state is kept");
        std::thread::sleep(Duration::from_millis(5));
    }
    let next = main.block_on(async { subscribe(&mergers, &plane) });
    assert!(!next.ended().is_cancelled());
    plane.shutdown();
}

#[test]
fn any_number_of_a_client_is_a_number() {
    let merger = Merger::new(1_000, None);
    let next = merger.merged.lock().next_sequence;
    for sequence in [0, next, u64::MAX - 1, u64::MAX] {
        assert_eq!(merger.read_after(sequence, 1), Err(Outside), "{sequence}");
    }
    let last = merger.merged.lock().next_sequence - 1;
    assert_eq!(merger.read_after(last, 1), Ok((Vec::new(), last)));
    assert_eq!(merger.epoch, Epoch::mint(1_000, None, 0), "minted from the plane's clock");
}
