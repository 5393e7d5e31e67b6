//! Backends over real sockets, well and ill.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod fan_out;
mod over_grpc;
mod over_http;
mod peer;

use std::time::{Duration, Instant};

use kvplane_ops::{Answer, Backend, Flush, Limits, Sent, Verb, ask};

/// For those who never answer: waiting for it costs little, and a busy machine has asked within it.
const DEADLINE: Duration = Duration::from_secs(2);
/// What a busy machine may add to a deadline. Only what hangs takes longer.
const SLACK: Duration = Duration::from_mins(1);

fn flush() -> Verb {
    Verb::Flush(Flush::default())
}

fn limits(verb: &Verb) -> Limits {
    Limits { deadline: DEADLINE, ..Limits::of(verb) }
}

/// Asks a backend that has to answer: a deadline that only a defect reaches.
async fn asked(backend: &Backend, verb: Verb) -> Answer {
    let limits = Limits { deadline: Duration::from_mins(2), ..Limits::of(&verb) };
    ask(backend, &verb, &limits, &Sent::default()).await
}

/// Asks a backend that may keep us waiting, and sees to it that it cannot.
async fn asked_in_time(backend: &Backend, verb: Verb) -> Answer {
    let (limits, began) = (limits(&verb), Instant::now());
    let answer = ask(backend, &verb, &limits, &Sent::default()).await;
    assert!(began.elapsed() < DEADLINE + SLACK, "{:?}: {answer:?}", began.elapsed());
    answer
}
