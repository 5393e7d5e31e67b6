//! One request: what was decided, and what came of it.

use kvplane_core::Trust;

use crate::account::Account;

/// The name of a receipt. Never used twice in one ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiptId(pub u64);

/// What a candidate was worth.
#[derive(Debug, Clone, PartialEq)]
pub struct CandidateNote {
    /// Engine.
    pub engine: Box<str>,
    /// Rank.
    pub rank: u32,
    /// Predicted cached tokens.
    pub cached: u64,
    /// Tokens of a prefix on its way there.
    pub in_flight: u64,
    /// What its word was worth.
    pub trust: Trust,
    /// By what the policy ordered.
    pub cost: f64,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Whose streams were asked.
    pub model: Box<str>,
    /// L: tokens of the prompt.
    pub prompt: u64,
    /// C: tokens of the longest prefix that was ever asked for here.
    pub ceiling: u64,
    /// Tokens that some engine's main group holds.
    pub fleet_main: u64,
    /// F: the most that any engine would report as cached.
    pub fleet: u64,
    /// E: the most among those who may be picked.
    pub eligible: u64,
    /// What a random pick among those would have delivered, on average.
    pub random: u64,
    /// S: predicted for the chosen one, by its exact state.
    pub predicted: u64,
    /// Tokens of a prefix on its way to the chosen one.
    pub in_flight: u64,
    /// What the prediction was worth.
    pub trust: Trust,
    /// The chosen one and those behind it, best first.
    pub candidates: Vec<CandidateNote>,
    /// Why it was chosen.
    pub why: &'static str,
    /// The policy that decided.
    pub policy: &'static str,
    /// Why the prompt's tokens were not known, where the load decided.
    pub without_tokens: Option<&'static str>,
    /// Of a prompt that was given as text: what it has in common with others, as a number that the ledger
    /// does not read.
    pub text: Option<u16>,
    /// How long the decision took.
    pub decide_us: u32,
    /// Where the chosen one's stream stood: its life, and its last entry.
    pub epoch: u64,
    /// The number of that entry.
    pub sequence: u64,
    /// Tokens of a block there; 0 where it is not known.
    pub block_size: u32,
    /// Hashes of the contents of the prompt's blocks, of that size. Dropped when the receipt is settled.
    pub contents: Box<[u64]>,
    /// What the router calls it, if it was booked.
    pub booking: Option<u64>,
}

impl Decided {
    /// What keeping it takes.
    pub(crate) fn bytes(&self) -> usize {
        let names: usize =
            self.candidates.iter().map(|note| note.engine.len() + size_of::<CandidateNote>()).sum();
        size_of::<Receipt>() + self.model.len() + names + 8 * self.contents.len()
    }
}

/// What came of it, as the router reports it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Delivered {
    /// D: cached tokens that the engine reported.
    pub cached: u64,
    /// Prompt tokens that it reported.
    pub prompt: Option<u64>,
    /// Who served, if not the chosen one.
    pub engine: Option<Box<str>>,
    /// Which rank, where that is known.
    pub rank: Option<u32>,
    /// Milliseconds to the first token.
    pub first_token_ms: Option<f64>,
    /// How often it was sent.
    pub attempts: u32,
}

/// A request's account, open or settled.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    /// Which.
    pub id: ReceiptId,
    /// What was decided.
    pub decided: Decided,
    /// What was delivered, and where the rest went; `None` while nobody said.
    pub settled: Option<(Delivered, Account)>,
    /// Nobody will say: the request was given up.
    pub aborted: bool,
}
