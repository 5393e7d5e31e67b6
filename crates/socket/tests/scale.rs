//! 300 streams in one process. Alone in its file: it counts this process's threads.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "it/support/mod.rs"]
mod support;

use std::fs;

use support::libzmq::PublishContext;
use support::{PATIENCE, publisher, sockets, subscribe};

const STREAMS: usize = 300;

/// All threads of this process: libzmq's own inherit the name of the thread that started them.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// All descriptors of this process.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn three_hundred_streams_need_few_threads_and_a_descriptor_each() {
    let context = PublishContext::new();
    let mut publishers: Vec<_> = (0..STREAMS).map(|_| publisher(&context, "tcp://127.0.0.1:0")).collect();
    let (before, open_before) = (threads(), descriptors());

    let sockets = sockets();
    let subscriptions: Vec<_> = publishers.iter().map(|p| subscribe(&sockets, p.last_endpoint())).collect();
    for publisher in &mut publishers {
        assert!(publisher.wait_for_subscriptions(1, PATIENCE));
        for sequence in 0..20 {
            publisher.send(b"kv", sequence, b"payload").unwrap();
        }
    }
    for (_handle, log) in &subscriptions {
        log.wait_for_message(19);
        assert_eq!(log.sequences(), (0..20).collect::<Vec<_>>());
    }
    let used = threads() - before;
    assert!(used <= 3, "{used} threads");
    // The publishers, which are here as well, take the other half.
    let opened = descriptors() - open_before;
    assert!(opened <= 2 * STREAMS + 16, "{opened} descriptors");

    sockets.shutdown();
    assert_eq!(threads(), before, "a shutdown joins every thread");
    drop(subscriptions);
}
