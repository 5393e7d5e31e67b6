//! Synthetic populations, each with the thing that breaks some policy.

use crate::random::Random;
use crate::run::{Fault, Fleet};
use crate::trace::{Request, Start, Workload};

/// Tokens of a block.
const BLOCK: u64 = 128;

/// Who asks for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Population {
    /// Even multi-turn sessions with room for all: session affinity is optimal.
    Sessions,
    /// Sessions of very different size and haste.
    HotSessions,
    /// Agents that ask many things at once: a session is more than an engine.
    Agents,
    /// Documents of Zipf popularity, asked about by many users.
    Documents,
    /// One prefix in most prompts.
    HotPrefix,
    /// The same prompt many times at once.
    Bursts,
    /// Sessions over documents, and an engine restarts in the middle.
    Restart,
    /// Documents, through eight routers that share their bookings.
    SharedRouters,
    /// Documents, through eight routers that do not.
    SeparateRouters,
}

impl Population {
    /// Every population.
    pub const ALL: [Self; 9] = [
        Self::Sessions,
        Self::HotSessions,
        Self::Agents,
        Self::Documents,
        Self::HotPrefix,
        Self::Bursts,
        Self::Restart,
        Self::SharedRouters,
        Self::SeparateRouters,
    ];

    /// Its name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::HotSessions => "hot_sessions",
            Self::Agents => "agents",
            Self::Documents => "documents",
            Self::HotPrefix => "hot_prefix",
            Self::Bursts => "bursts",
            Self::Restart => "restart",
            Self::SharedRouters => "documents_8_routers_shared",
            Self::SeparateRouters => "documents_8_routers_separate",
        }
    }

    /// What it assumes, in a sentence.
    pub fn assumes(self) -> &'static str {
        match self {
            Self::Sessions => {
                "192 sessions of 10 turns, 2,000 tokens at first, 200 to 600 more and 100 to 300 generated per turn, 4 s between turns; all fit"
            }
            Self::HotSessions => {
                "sessions of 2 to 40 turns, 500 to 24,000 tokens at first, 0.2 to 8 s between turns; two thirds fit"
            }
            Self::Agents => {
                "sessions of 4 to 12 rounds over a context of 3,000 to 12,000 tokens; each round asks 2 to 24 things at once, of 100 to 600 tokens each, and adds 300 to 1,000 to the context; a new one every 1.2 s"
            }
            Self::Documents => {
                "96 documents of 4,000 tokens, Zipf 1.0, questions of 60 to 200 tokens, 50 to 150 generated; caches hold all documents about twice over all engines"
            }
            Self::HotPrefix => {
                "a prefix of 6,000 tokens in four of five prompts, 200 to 1,500 tokens of their own; the others 3,000 tokens of their own"
            }
            Self::Bursts => "prompts of 3,000 to 6,000 tokens, each 8 to 16 times within 50 ms",
            Self::Restart => {
                "sessions that begin with one of 64 documents; engine 3 is away for 20 s in the middle"
            }
            Self::SharedRouters => "as documents; 8 routers, one book of bookings",
            Self::SeparateRouters => "as documents; 8 routers, a book each",
        }
    }

    /// The fleet it is served by.
    pub fn fleet(self, seed: u64, scale: f64) -> Fleet {
        let usual = Fleet { seed, ..Fleet::default() };
        match self {
            Self::Sessions => Fleet { capacity: 600_000, ..usual },
            Self::HotSessions | Self::Agents => Fleet { capacity: 300_000, ..usual },
            Self::Documents => Fleet { capacity: 110_000, ..usual },
            Self::HotPrefix | Self::Bursts => Fleet { capacity: 200_000, ..usual },
            Self::Restart => {
                let fault = Fault { engine: 3, at: 60.0 * scale, seconds: 20.0 };
                Fleet { capacity: 250_000, fault: Some(fault), ..usual }
            }
            Self::SharedRouters => Fleet { capacity: 110_000, routers: 8, ..usual },
            Self::SeparateRouters => Fleet { capacity: 110_000, routers: 8, shared: false, ..usual },
        }
    }

    /// Its requests: about two minutes of them at `scale` 1.
    pub fn workload(self, seed: u64, scale: f64) -> Workload {
        let mut maker = Maker::new(seed, self.as_str());
        let seconds = 120.0 * scale;
        match self {
            Self::Sessions => maker.sessions(seconds),
            Self::HotSessions => maker.hot_sessions(seconds),
            Self::Agents => maker.agents(seconds),
            Self::Documents | Self::SharedRouters | Self::SeparateRouters => maker.documents(seconds),
            Self::HotPrefix => maker.hot_prefix(seconds),
            Self::Bursts => maker.bursts(seconds),
            Self::Restart => maker.restart(seconds),
        }
        maker.workload
    }
}

struct Maker {
    random: Random,
    workload: Workload,
    sessions: u64,
}

/// A text that grows: its blocks are named by all that comes before them.
#[derive(Clone, Default)]
struct Text {
    tokens: u64,
    blocks: Vec<u64>,
}

impl Maker {
    fn new(seed: u64, name: &str) -> Self {
        let workload = Workload { name: name.to_owned(), block: BLOCK, requests: Vec::new() };
        Self { random: Random::new(seed), workload, sessions: 0 }
    }

    fn grow(&mut self, text: &mut Text, tokens: u64) {
        text.tokens += tokens;
        while (text.blocks.len() as u64 + 1) * BLOCK <= text.tokens {
            text.blocks.push(self.random.next());
        }
    }

    fn text(&mut self, tokens: u64) -> Text {
        let mut text = Text::default();
        self.grow(&mut text, tokens);
        text
    }

    /// A request with this text; the text has the answer too afterwards.
    fn ask(&mut self, start: Start, session: Option<u64>, text: &mut Text, output: u64) -> usize {
        let (prompt, blocks) = (text.tokens, text.blocks.clone());
        self.grow(text, output);
        let filled = text.blocks[blocks.len()..].to_vec();
        self.workload.requests.push(Request { start, session, prompt, output, blocks, filled });
        self.workload.requests.len() - 1
    }

    fn session(&mut self) -> u64 {
        self.sessions += 1;
        self.sessions - 1
    }

    fn sessions(&mut self, seconds: f64) {
        let turns = (seconds / 12.0).max(2.0) as u64;
        for _ in 0..192 {
            let session = self.session();
            let mut text = self.text(2_000);
            let mut start = Start::At(self.random.unit() * 10.0);
            for _ in 0..turns {
                let (more, output) = (self.random.between(200, 600), self.random.between(100, 300));
                self.grow(&mut text, more);
                let last = self.ask(start, Some(session), &mut text, output);
                start = Start::After(last, self.random.wait(4.0));
            }
        }
    }

    fn hot_sessions(&mut self, seconds: f64) {
        let mut at = 0.0;
        while at < seconds {
            at += self.random.wait(0.6);
            let session = self.session();
            let size = 500.0 * 48f64.powf(self.random.unit());
            let think = 0.2 * 40f64.powf(self.random.unit());
            let turns = (2.0 * 20f64.powf(self.random.unit())) as u64;
            let mut text = self.text(size as u64);
            let mut start = Start::At(at);
            for _ in 0..turns {
                let (more, output) = (self.random.between(50, 800), self.random.between(30, 300));
                self.grow(&mut text, more);
                let last = self.ask(start, Some(session), &mut text, output);
                start = Start::After(last, self.random.wait(think));
            }
        }
    }

    fn agents(&mut self, seconds: f64) {
        let mut at = 0.0;
        while at < seconds {
            at += self.random.wait(1.2);
            let session = self.session();
            let size = self.random.between(3_000, 12_000);
            let mut context = self.text(size);
            let mut start = Start::At(at);
            for _ in 0..self.random.between(4, 12) {
                let mut last = 0;
                for _ in 0..self.random.between(2, 24) {
                    let mut text = context.clone();
                    let (more, output) = (self.random.between(100, 600), self.random.between(50, 300));
                    self.grow(&mut text, more);
                    last = self.ask(start, Some(session), &mut text, output);
                }
                let more = self.random.between(300, 1_000);
                self.grow(&mut context, more);
                start = Start::After(last, self.random.wait(1.0));
            }
        }
    }

    fn documents(&mut self, seconds: f64) {
        let documents: Vec<Text> = (0..96).map(|_| self.text(4_000)).collect();
        let mut at = 0.0;
        while at < seconds {
            at += self.random.wait(1.0 / 70.0);
            let mut text = documents[self.random.zipf(documents.len(), 1.0)].clone();
            let (more, output) = (self.random.between(60, 200), self.random.between(50, 150));
            self.grow(&mut text, more);
            let session = self.random.between(0, 255);
            self.ask(Start::At(at), Some(session), &mut text, output);
        }
    }

    fn hot_prefix(&mut self, seconds: f64) {
        let prefix = self.text(6_000);
        let mut at = 0.0;
        while at < seconds {
            at += self.random.wait(1.0 / 60.0);
            let hot = self.random.unit() < 0.8;
            let mut text = if hot { prefix.clone() } else { Text::default() };
            let more = if hot { self.random.between(200, 1_500) } else { 3_000 };
            let output = self.random.between(50, 200);
            self.grow(&mut text, more);
            let session = self.session();
            self.ask(Start::At(at), Some(session), &mut text, output);
        }
    }

    fn bursts(&mut self, seconds: f64) {
        let mut at = 0.0;
        while at < seconds {
            at += self.random.wait(0.12);
            let size = self.random.between(3_000, 6_000);
            let text = self.text(size);
            for _ in 0..self.random.between(8, 16) {
                let (late, output) = (self.random.unit() * 0.05, self.random.between(50, 200));
                let session = self.session();
                self.ask(Start::At(at + late), Some(session), &mut text.clone(), output);
            }
        }
    }

    fn restart(&mut self, seconds: f64) {
        let documents: Vec<Text> = (0..64).map(|_| self.text(5_000)).collect();
        let mut at = 0.0;
        while at < seconds {
            at += self.random.wait(0.11);
            let session = self.session();
            let mut text = documents[self.random.zipf(documents.len(), 0.9)].clone();
            let mut start = Start::At(at);
            for _ in 0..self.random.between(2, 6) {
                let (more, output) = (self.random.between(50, 300), self.random.between(50, 200));
                self.grow(&mut text, more);
                let last = self.ask(start, Some(session), &mut text, output);
                start = Start::After(last, self.random.wait(3.0));
            }
        }
    }
}
