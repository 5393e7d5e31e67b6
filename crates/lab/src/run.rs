//! A run: events in the order of their time.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use kvplane_core::Trust;
use kvplane_route::{Ask, BookingId, Candidate, Options, Outline, Policy, Role, Router, Slot, Standing};

use crate::cache::Pool;
use crate::engine::{Engine, Speed};
use crate::summary::{Row, Summary};
use crate::trace::{Request, Start, Workload};

/// The engines, and who routes to them.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// Engines.
    pub engines: usize,
    /// KV tokens of each.
    pub capacity: u64,
    /// What they take for what.
    pub speed: Speed,
    /// Routers; requests come to them at random.
    pub routers: usize,
    /// All routers use the same bookings.
    pub shared: bool,
    /// How often each router reads how busy engines are, in seconds.
    pub reports: f64,
    /// What goes wrong.
    pub fault: Option<Fault>,
    /// What routers go by.
    pub options: Options,
    /// Chance.
    pub seed: u64,
}

/// An engine restarts.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Which.
    pub engine: usize,
    /// When.
    pub at: f64,
    /// For how long it is away.
    pub seconds: f64,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            engines: 8,
            capacity: 400_000,
            speed: Speed::default(),
            routers: 1,
            shared: true,
            reports: 1.0,
            fault: None,
            options: Options::default(),
            seed: 1,
        }
    }
}

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// A policy of the router.
    Policy(Policy),
    /// Sessions are dealt out to engines one after the other, and stay: what session affinity is at its best.
    EvenSession,
    /// No policy but a bound: where the first token will come first, known exactly, whatever that does to others.
    Foresight,
    /// No policy but a bound: the same, and every engine holds whatever any has computed or begun to, for
    /// ever. Nothing is computed twice, and nobody is bound to an engine.
    SharedCache,
}

impl Contender {
    /// What no router can know or have: how far policies are from it.
    pub fn bounds() -> [Self; 2] {
        [Self::Foresight, Self::SharedCache]
    }

    /// Every policy.
    pub fn all() -> Vec<Self> {
        Policy::ALL.into_iter().map(Self::Policy).chain([Self::EvenSession]).collect()
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Policy(policy) => policy.as_str(),
            Self::EvenSession => "session_even",
            Self::Foresight => "foresight",
            Self::SharedCache => "shared_cache",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Arrive(usize),
    /// The engine's life, too: steps of an earlier one are void.
    StepEnds(usize, u32),
    Crash(usize),
    Back(usize),
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    at: f64,
    number: u64,
    what: What,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Run<'a> {
    workload: &'a Workload,
    contender: Contender,
    engines: Vec<Engine>,
    lives: Vec<u32>,
    routers: Vec<Router>,
    events: BinaryHeap<Event>,
    number: u64,
    arrived: Vec<f64>,
    rows: Vec<Row>,
    /// Where each request is booked.
    bookings: Vec<Option<(usize, BookingId)>>,
    /// Which requests each one is followed by.
    followers: Vec<Vec<(usize, f64)>>,
    /// Nobody could take them; they come again when an engine is back.
    stranded: Vec<usize>,
    /// How often routers read how busy engines are, and each router's last round.
    reports: f64,
    rounds: Vec<f64>,
}

/// Runs a workload under a policy.
pub fn run(workload: &Workload, fleet: &Fleet, contender: Contender) -> Summary {
    let mut run = Run::new(workload, fleet, contender);
    while let Some(Event { at, what, .. }) = run.events.pop() {
        run.happen(at, what);
    }
    let busy: Vec<f64> = run.engines.iter().map(|engine| engine.busy).collect();
    Summary::of(&run.rows, &busy)
}

impl<'a> Run<'a> {
    fn new(workload: &'a Workload, fleet: &Fleet, contender: Contender) -> Self {
        let count = workload.requests.len();
        let policy = match contender {
            Contender::Policy(policy) => policy,
            Contender::EvenSession => Policy::Session,
            Contender::Foresight | Contender::SharedCache => Policy::Work,
        };
        let routers = if fleet.shared { 1 } else { fleet.routers.max(1) };
        let router = |at: usize| {
            let mut router = Router::new(Options {
                policy,
                seed: fleet.seed + at as u64,
                kv_capacity: fleet.capacity,
                ..fleet.options.clone()
            });
            for engine in 0..fleet.engines {
                router.worker(&format!("engine-{engine}/0"));
            }
            router
        };
        let mut run = Self {
            workload,
            contender,
            engines: (0..fleet.engines)
                .map(|_| Engine::new(fleet.speed, workload.block, fleet.capacity))
                .collect(),
            lives: vec![0; fleet.engines],
            routers: (0..routers).map(router).collect(),
            events: BinaryHeap::new(),
            number: 0,
            arrived: vec![0.0; count],
            rows: vec![Row::default(); count],
            bookings: vec![None; count],
            followers: vec![Vec::new(); count],
            stranded: Vec::new(),
            reports: fleet.reports,
            rounds: vec![f64::NEG_INFINITY; routers],
        };
        if contender == Contender::SharedCache {
            let pool = Pool::default();
            run.engines.iter_mut().for_each(|engine| engine.share(pool.clone()));
        }
        for (at, request) in workload.requests.iter().enumerate() {
            match request.start {
                Start::At(seconds) => run.push(seconds, What::Arrive(at)),
                Start::After(before, seconds) => run.followers[before].push((at, seconds)),
            }
        }
        if let Some(fault) = fleet.fault {
            run.push(fault.at, What::Crash(fault.engine));
            run.push(fault.at + fault.seconds, What::Back(fault.engine));
        }
        run
    }

    fn push(&mut self, at: f64, what: What) {
        self.number += 1;
        self.events.push(Event { at, number: self.number, what });
    }

    fn happen(&mut self, now: f64, what: What) {
        match what {
            What::Arrive(request) => {
                self.arrived[request] = now;
                self.route(request, now);
            }
            What::StepEnds(engine, life) if life == self.lives[engine] => self.step_ended(engine, now),
            What::StepEnds(..) => {}
            What::Crash(engine) => {
                self.lives[engine] += 1;
                self.engines[engine].stepping = false;
                for router in &mut self.routers {
                    router.restart(Slot(engine as u32));
                }
                for request in self.engines[engine].crash() {
                    self.route(request, now);
                }
            }
            What::Back(engine) => {
                self.engines[engine].up = true;
                for request in std::mem::take(&mut self.stranded) {
                    self.route(request, now);
                }
            }
        }
    }

    fn route(&mut self, at: usize, now: f64) {
        let request: &Request = &self.workload.requests[at];
        if Contender::bounds().contains(&self.contender) {
            return self.foresee(at, now);
        }
        let router = at % self.routers.len();
        self.report(router, now);
        let outline = Outline::of_units(request.blocks.iter().copied(), self.workload.block);
        let candidates: Vec<Candidate> = self
            .engines
            .iter()
            .enumerate()
            .map(|(slot, engine)| candidate(slot, engine, request, self.workload.block))
            .collect();
        let mut exclude = Vec::new();
        if self.contender == Contender::EvenSession
            && let Some(session) = request.session
        {
            let home = (session % self.engines.len() as u64) as usize;
            if self.engines[home].up {
                exclude.extend(
                    (0..self.engines.len()).filter(|other| *other != home).map(|other| Slot(other as u32)),
                );
            }
        }
        let ask = Ask {
            about: 0,
            prompt: request.prompt,
            outline: &outline,
            session: request.session,
            role: Role::Both,
            // Nobody knows how long an answer will be.
            output: 0,
            limit: 1,
            book: true,
            policy: None,
            exclude: &exclude,
        };
        let decision = self.routers[router].pick(&ask, &candidates, now);
        let Some(choice) = decision.order.first() else {
            self.stranded.push(at);
            return;
        };
        self.bookings[at] = decision.booking.map(|booking| (router, booking));
        let engine = choice.worker.0 as usize;
        self.engines[engine].send(at);
        self.step(engine, now);
    }

    /// Sends a request where its first token comes first.
    fn foresee(&mut self, at: usize, now: f64) {
        let requests = &self.workload.requests;
        let engines = self.engines.iter().enumerate().filter(|(_, engine)| engine.up);
        let first = engines.map(|(which, engine)| (engine.foresee(requests, at, now), which));
        let Some((_, engine)) = first.min_by(|one, other| one.0.total_cmp(&other.0)) else {
            self.stranded.push(at);
            return;
        };
        self.engines[engine].send(at);
        self.step(engine, now);
    }

    /// A router reads how busy engines are, if it is time. Routers do it at different moments.
    fn report(&mut self, router: usize, now: f64) {
        let round = (now / self.reports + router as f64 / self.routers.len() as f64).floor();
        if self.rounds[router] >= round {
            return;
        }
        self.rounds[router] = round;
        let until = now + 3.0 * self.reports + 2.0;
        for (slot, engine) in self.engines.iter().enumerate().filter(|(_, engine)| engine.up) {
            self.routers[router].report_load(Slot(slot as u32), engine.load(), now, until);
        }
    }

    /// Begins a step, unless one is under way or there is nothing to do.
    fn step(&mut self, engine: usize, now: f64) {
        if self.engines[engine].stepping {
            return;
        }
        if let Some(seconds) = self.engines[engine].begin(&self.workload.requests, now) {
            let life = self.lives[engine];
            self.push(now + seconds, What::StepEnds(engine, life));
        }
    }

    fn step_ended(&mut self, engine: usize, now: f64) {
        let brought = self.engines[engine].end(&self.workload.requests);
        for (request, cached) in brought.first {
            if let Some((router, booking)) = self.bookings[request] {
                self.routers[router].first_token(booking, now);
            }
            let first = now - self.arrived[request];
            let prompt = self.workload.requests[request].prompt;
            self.rows[request] = Row { first, whole: 0.0, prompt, cached };
        }
        for request in brought.finished {
            if let Some((router, booking)) = self.bookings[request].take() {
                self.routers[router].finish(booking);
            }
            self.rows[request].whole = now - self.arrived[request];
            for (next, seconds) in std::mem::take(&mut self.followers[request]) {
                self.push(now + seconds, What::Arrive(next));
            }
        }
        self.step(engine, now);
    }
}

fn candidate(slot: usize, engine: &Engine, request: &Request, block: u64) -> Candidate {
    let held = engine.cache.announced(&request.blocks) as u64 * block;
    let cached = held.min(request.prompt - 1);
    Candidate {
        worker: Slot(slot as u32),
        cached,
        tiers: [cached; 3],
        main: cached,
        trust: Trust::Exact,
        standing: if engine.up { Standing::Credited } else { Standing::Down },
        age: Some(0.0),
        ready: engine.up,
        role: Role::Both,
    }
}
