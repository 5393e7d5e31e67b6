//! What goes wrong.
//!
//! Engines that publish and engines that are drained have faults of their own; paths fail alike for both.

use std::time::Duration;

use kvplane_sim::trtllm::{TrtAnswer, TrtFault, TrtRestart};
use kvplane_sim::{Fault, ReplayMode, Restart};

use crate::proxy::Proxy;
use crate::worker::Worker;

/// A kind of fault: its name, how often it is chosen, and what it does.
pub struct Kind {
    pub name: &'static str,
    pub weight: u64,
    engines: Engines,
    inject: fn(&mut Worker),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Engines {
    All,
    Published,
    Drained,
}

impl Kind {
    /// Whether an engine, which is drained or publishes, can have it.
    pub fn befalls(&self, is_drained: bool) -> bool {
        self.engines == Engines::All || is_drained == (self.engines == Engines::Drained)
    }

    pub fn inject(&self, worker: &mut Worker) {
        (self.inject)(worker);
    }
}

const fn kind(name: &'static str, weight: u64, inject: fn(&mut Worker)) -> Kind {
    Kind { name, weight, engines: Engines::Published, inject }
}

const fn path(name: &'static str, weight: u64, inject: fn(&mut Worker)) -> Kind {
    Kind { name, weight, engines: Engines::All, inject }
}

const fn drain(name: &'static str, weight: u64, inject: fn(&mut Worker)) -> Kind {
    Kind { name, weight, engines: Engines::Drained, inject }
}

/// All of them. What costs no time is frequent; what takes seconds is rare.
pub const KINDS: &[Kind] = &[
    kind("frames lost, replay has them", 120, |w| some(w, Fault::Drop)),
    kind("frames twice", 120, |w| some(w, Fault::Duplicate)),
    kind("frames out of order", 120, |w| some(w, Fault::Reorder)),
    kind("frames late", 60, |w| {
        let (millis, count) = (1 + w.below(20), 1 + w.below(3) as u32);
        frames(w, Fault::Delay { millis, count }, count);
    }),
    kind("payloads are noise", 80, |w| some(w, Fault::Garbage)),
    kind("payloads cut", 80, |w| some(w, Fault::Truncate)),
    kind("batches lost for good", 40, |w| some(w, Fault::Lose)),
    kind("replay absent", 8, |w| replay(w, ReplayMode::Off)),
    kind("replay slow", 8, |w| replay(w, ReplayMode::Slow)),
    kind("replay without end", 8, |w| replay(w, ReplayMode::Endless)),
    kind("replay cut short", 20, |w| replay(w, ReplayMode::Short)),
    kind("replay of noise", 20, |w| replay(w, ReplayMode::Garbage)),
    kind("replay of nonsense", 20, |w| replay(w, ReplayMode::Nonsense)),
    kind("restart at a lower sequence", 10, |w| restart(w, |_| 0)),
    kind("restart at the same sequence", 10, |w| restart(w, |next| next)),
    kind("restart at a higher sequence", 10, |w| restart(w, |next| next + 7)),
    kind("disconnect", 15, |w| w.engine.fault(Fault::Disconnect)),
    kind("frames, then a disconnect at once", 10, |w| {
        w.serve_fresh(3);
        w.engine.fault(Fault::Disconnect);
    }),
    kind("frames, then a restart at once", 10, |w| {
        w.serve_fresh(3);
        restart(w, |_| 0);
    }),
    kind("cache cleared", 10, |w| {
        w.engine.clear();
        w.serve_fresh(1);
    }),
    path("connection reset", 20, |w| w.engine.paths(Proxy::reset)),
    kind("noise between frames", 15, |w| {
        w.engine.events.damage();
        w.serve_fresh(2);
    }),
    path("short silence, then a backlog", 8, |w| silence(w, Duration::from_millis(150))),
    path("long silence, then a backlog", 2, |w| {
        let longer = w.bound() + Duration::from_millis(500);
        silence(w, longer);
    }),
    kind("events silent, replay not", 2, |w| {
        w.engine.events.silence();
        let longer = w.bound() + Duration::from_millis(500);
        w.serve_and_ask(longer);
        w.engine.events.heal();
    }),
    path("restart behind a silence", 2, |w| {
        w.engine.paths(Proxy::silence);
        w.serve_fresh(2);
        restart(w, |_| 0);
        let longer = w.bound() + Duration::from_millis(300);
        w.serve_and_ask(longer);
        w.engine.paths(Proxy::heal);
    }),
    path("half-open connection", 3, |w| {
        w.engine.paths(Proxy::half_open);
        w.serve_fresh(2);
    }),
    path("restart behind a half-open connection", 2, |w| {
        w.engine.paths(Proxy::half_open);
        restart(w, |_| 0);
    }),
    path("plane stalled under frames", 1, |w| w.stalled(|w| w.serve_fresh(20))),
    path("plane stalled under frames and a restart", 1, |w| {
        w.stalled(|w| {
            w.serve_fresh(5);
            restart(w, |_| 0);
        });
    }),
    drain("drain unavailable", 10, |w| answer(w, TrtAnswer::Unavailable)),
    drain("drain answered with a page", 10, |w| answer(w, TrtAnswer::Html)),
    drain("drain answered with an object", 10, |w| answer(w, TrtAnswer::Object)),
    drain("drain cut", 10, |w| answer(w, TrtAnswer::Truncated)),
    drain("drain lost", 4, |w| answer(w, TrtAnswer::Lost)),
    drain("drain of much white space", 2, |w| answer(w, TrtAnswer::Huge)),
    drain("drain stolen", 20, |w| {
        w.serve_fresh(2);
        w.engine.drained(TrtFault::Steal);
        w.serve_fresh(1);
    }),
    drain("events lost", 20, |w| {
        w.engine.drained(TrtFault::Lose(2));
        w.serve_fresh(4);
    }),
    drain("restart from the first event", 5, |w| restart(w, |_| 0)),
    drain("restart from a later event", 5, |w| restart(w, |next| next + 7)),
];

/// The next drains are answered so.
fn answer(worker: &mut Worker, answer: TrtAnswer) {
    let polls = 1 + worker.below(2) as u32;
    worker.engine.drained(TrtFault::Answer { answer, polls });
    worker.serve_fresh(2);
}

/// A fault of one to three frames, and the frames.
fn some(worker: &mut Worker, fault: fn(u32) -> Fault) {
    let count = 1 + worker.below(3) as u32;
    frames(worker, fault(count), count);
}

/// A fault of frames, the frames that it befalls, and one more that shows what is missing.
fn frames(worker: &mut Worker, fault: Fault, count: u32) {
    worker.engine.fault(fault);
    worker.serve_fresh(count as usize + 2);
}

/// Replay is answered so for a while, and is needed.
fn replay(worker: &mut Worker, mode: ReplayMode) {
    worker.engine.fault(Fault::Replay(mode));
    frames(worker, Fault::Drop(1), 1);
    worker.serve_and_ask(Duration::from_millis(30));
    worker.engine.fault(Fault::Replay(ReplayMode::On));
    worker.serve_fresh(1);
}

/// A new life, which has published this many batches before anyone could connect.
fn restart(worker: &mut Worker, ahead: impl Fn(u64) -> u64) {
    // What an engine of long standing has published is not served again here.
    const MOST: u64 = 400;
    let first = ahead(worker.engine.next_sequence()).min(MOST);
    let same_content = worker.below(2) == 0;
    worker.engine.fault(Fault::Restart(Restart { first_sequence: first, same_content }));
    if worker.engine.is_drained() {
        // Unlike the simulated one, a process that restarts is gone for longer than from one drain to the
        // next.
        worker.engine.paths(Proxy::vanish);
        worker.engine.drained(TrtFault::Restart(TrtRestart { first_event_id: first, same_content }));
        worker.changed();
        worker.serve_and_ask(Duration::from_millis(400));
        worker.engine.paths(Proxy::come_back);
    }
    worker.changed();
}

/// Nothing passes for a while.
fn silence(worker: &mut Worker, time: Duration) {
    worker.engine.paths(Proxy::silence);
    worker.serve_and_ask(time);
    worker.engine.paths(Proxy::heal);
}
