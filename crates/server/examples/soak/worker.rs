//! Drives one engine: a fault, requests, questions, and so on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvplane_sim::trtllm::TrtFault;
use kvplane_sim::{Fault, ReplayMode};
use parking_lot::Mutex;

use crate::engine::{DOCUMENTS, Engine};
use crate::fault::{KINDS, Kind};
use crate::plane::{Asker, Plane, Said};
use crate::proxy::Proxy;
use crate::truth::{Claim, Truth};

/// A stream that is not credited for this long after everything is well does not come back.
const STUCK: Duration = Duration::from_mins(1);
/// Wrong answers that are reported in full, of all engines and of each.
const TOLD: usize = 40;
const TOLD_EACH: u64 = 2;
/// Requests before the first fault.
const WARM_UP: usize = 128;
/// Faults that a wrong answer names.
const REMEMBERED: usize = 8;

/// What all workers count.
pub struct Tally {
    kinds: Vec<AtomicU64>,
    pub answers: AtomicU64,
    pub exact: AtomicU64,
    pub lower: AtomicU64,
    pub uncredited: AtomicU64,
    pub wrong: AtomicU64,
    pub stuck: AtomicU64,
    pub wrongs: Mutex<Vec<String>>,
    pub ended: AtomicBool,
    /// One of them stalls the plane at a time.
    stalling: Mutex<()>,
}

impl Default for Tally {
    fn default() -> Self {
        let none = AtomicU64::default;
        Self {
            kinds: KINDS.iter().map(|_| none()).collect(),
            answers: none(),
            exact: none(),
            lower: none(),
            uncredited: none(),
            wrong: none(),
            stuck: none(),
            wrongs: Mutex::default(),
            ended: AtomicBool::default(),
            stalling: Mutex::default(),
        }
    }
}

impl Tally {
    pub fn faults(&self) -> u64 {
        self.kinds.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS.iter().zip(&self.kinds).map(|(kind, count)| (kind.name, count.load(Ordering::Relaxed)))
    }

    fn tell(&self, text: String) {
        let mut wrongs = self.wrongs.lock();
        if wrongs.len() < TOLD {
            println!("wrong: {text}");
            wrongs.push(text);
        }
    }
}

/// One engine's driver.
pub struct Worker {
    pub engine: Engine,
    plane: Arc<Plane>,
    asker: Asker,
    truth: Truth,
    tally: Arc<Tally>,
    /// The last faults.
    recent: VecDeque<&'static str>,
    wrong: u64,
}

impl Worker {
    pub fn new(engine: Engine, plane: Arc<Plane>, tally: Arc<Tally>) -> Self {
        let (asker, truth) = (plane.asker(&engine.model), Truth::new(engine.hits(), plane.bound));
        Self { engine, plane, asker, truth, tally, recent: VecDeque::new(), wrong: 0 }
    }

    /// Until it has been enough.
    pub fn run(&mut self) {
        for document in 0..DOCUMENTS {
            self.serve(Some(document));
        }
        // The plane's windows are full before the first fault: what its memory grows by from then on is a
        // leak.
        self.serve_fresh(WARM_UP);
        self.settle();
        while !self.tally.ended.load(Ordering::Relaxed) {
            self.fault();
            let requests = 1 + self.below(3);
            for _ in 0..requests {
                let document = self.below(DOCUMENTS as u64) as usize;
                self.serve(Some(document));
                self.ask_any();
            }
            match self.below(64) {
                0 => self.quiesce(),
                1..4 => self.settle(),
                _ => {}
            }
        }
        self.quiesce();
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.engine.random.below(limit)
    }

    pub fn bound(&self) -> Duration {
        self.plane.bound
    }

    fn fault(&mut self) {
        let is_drained = self.engine.is_drained();
        let weight = |kind: &Kind| if kind.befalls(is_drained) { kind.weight } else { 0 };
        let mut choice = self.below(KINDS.iter().map(weight).sum());
        let chosen = KINDS.iter().position(|kind| match choice.checked_sub(weight(kind)) {
            Some(left) => {
                choice = left;
                false
            }
            None => true,
        });
        let Some(chosen) = chosen else { return };
        self.tally.kinds[chosen].fetch_add(1, Ordering::Relaxed);
        self.recent.push_back(KINDS[chosen].name);
        if self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
        KINDS[chosen].inject(self);
        self.changed();
    }

    fn serve(&mut self, document: Option<usize>) {
        let truth = &mut self.truth;
        self.engine.serve(document, |hits| truth.record(hits));
    }

    /// Serves requests that the engine has something to tell of.
    pub fn serve_fresh(&mut self, count: usize) {
        for _ in 0..count {
            self.serve(None);
        }
    }

    /// The engine may hold something else than before.
    pub fn changed(&mut self) {
        self.truth.record(self.engine.hits());
    }

    /// Serves and asks for a while.
    pub fn serve_and_ask(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end && !self.tally.ended.load(Ordering::Relaxed) {
            let document = self.below(DOCUMENTS as u64) as usize;
            self.serve(Some(document));
            self.ask_any();
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Does something while the plane stands still.
    pub fn stalled(&mut self, act: impl FnOnce(&mut Self)) {
        let tally = self.tally.clone();
        let Some(_only) = tally.stalling.try_lock() else { return };
        let plane = self.plane.clone();
        let stall = thread::spawn(move || plane.stall(Duration::from_millis(100)));
        thread::sleep(Duration::from_millis(10));
        act(self);
        stall.join().unwrap();
    }

    fn ask_any(&mut self) {
        let document = self.below(DOCUMENTS as u64) as usize;
        self.ask(document);
    }

    /// Asks for a document, and checks the answer; whether the engine was credited.
    fn ask(&mut self, document: usize) -> bool {
        let (asked, said) = self.asker.ask(&self.engine.documents[document]);
        match said {
            Said::Credited { tokens, is_exact } => {
                self.tally.answers.fetch_add(1, Ordering::Relaxed);
                let worth = if is_exact { &self.tally.exact } else { &self.tally.lower };
                worth.fetch_add(1, Ordering::Relaxed);
                let claim = Claim { document, tokens, is_exact };
                if !self.truth.allows(claim, asked) {
                    self.wrong(claim);
                }
                true
            }
            Said::Uncredited(_) => {
                self.tally.uncredited.fetch_add(1, Ordering::Relaxed);
                false
            }
            Said::Nothing(_) => false,
        }
    }

    fn wrong(&mut self, claim: Claim) {
        self.tally.wrong.fetch_add(1, Ordering::Relaxed);
        self.wrong += 1;
        if self.wrong <= TOLD_EACH {
            let (engine, states) = (self.engine.describe(), self.truth.describe(claim.document));
            let trace = self.plane.trace(&self.engine.name);
            self.tally
                .tell(format!("{engine}: {claim:?}; the engine:{states}; after {:?}{trace}", self.recent));
        }
    }

    /// Nothing goes wrong any more: the engine is credited again.
    fn settle(&mut self) {
        self.engine.fault(Fault::Replay(ReplayMode::On));
        self.engine.drained(TrtFault::Heal);
        self.engine.paths(Proxy::heal);
        self.serve_fresh(1);
        let begun = Instant::now();
        let mut last_request = begun;
        while !self.ask(0) {
            if begun.elapsed() > STUCK {
                self.tally.stuck.fetch_add(1, Ordering::Relaxed);
                let said = self.asker.ask(&self.engine.documents[0]).1;
                // What still moves, and what does not.
                let earlier = self.asker.status(&self.engine.name);
                self.serve_fresh(1);
                thread::sleep(Duration::from_secs(3));
                let later = self.asker.status(&self.engine.name);
                let engine = self.engine.describe();
                self.tally.tell(format!(
                    "{engine}: not credited for {STUCK:?}: {said:?}; after {:?}{}\n    {earlier}\n    {later}",
                    self.recent,
                    self.plane.trace(&self.engine.name)
                ));
                return;
            }
            thread::sleep(Duration::from_millis(5));
            // An engine that is never busy again may never be sure again either.
            if last_request.elapsed() > Duration::from_secs(1) {
                last_request = Instant::now();
                self.serve_fresh(1);
            }
        }
    }

    /// Nothing changes for longer than the bound: then there is one right answer for every document.
    fn quiesce(&mut self) {
        self.settle();
        if self.below(2) == 0 {
            self.engine.clear();
            self.serve_fresh(1);
            self.serve(Some(0));
        }
        let end = Instant::now() + self.bound().min(Duration::from_secs(3));
        while Instant::now() < end {
            self.ask_any();
            thread::sleep(Duration::from_millis(20));
        }
        for document in 0..DOCUMENTS {
            self.ask(document);
        }
    }
}
