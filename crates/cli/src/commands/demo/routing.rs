//! Where a request goes, and what came of it.

use anyhow::bail;
use serde::Serialize;

use super::plane::Prediction;

/// Tokens that an engine has computed more than the one that has computed least weigh as one that is to be
/// computed now: a conversation stays where it is, and new ones go to where there is room.
const BALANCE: u64 = 8;

/// The engine that a prompt goes to: the one that has the least to do for it, with regard to what each has
/// done already. The first of equals.
pub(super) fn choose(prompt: u64, held: &[u64], computed: &[u64]) -> usize {
    let least = computed.iter().copied().min().unwrap_or(0);
    let cost = |at: usize| prompt.saturating_sub(held[at]) + (computed[at] - least) / BALANCE;
    (0..held.len()).min_by_key(|at| cost(*at)).unwrap_or(0)
}

/// What came of all requests.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct Ledger {
    pub(super) requests: u64,
    pub(super) prompt_tokens: u64,
    /// By asking the plane.
    pub(super) routed: Reuse,
    /// The same requests in turn, on a second fleet.
    pub(super) round_robin: Reuse,
    /// The same requests on a third fleet, by a plain consumer of events.
    pub(super) plain: Reuse,
    /// Requests of which the plain consumer promised more than was found.
    pub(super) plain_false_hits: u64,
    /// Predictions that were called exact.
    pub(super) exact: Predictions,
    /// Predictions that were said to be less than that.
    pub(super) not_exact: Predictions,
    /// Predictions of more than the engine then reused.
    pub(super) false_hits: u64,
}

/// Prompt tokens that were found in caches.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct Reuse {
    pub(super) cached_tokens: u64,
    /// Of all prompt tokens.
    pub(super) share: f64,
    /// Requests by engine, in the fleet's order.
    pub(super) requests: Vec<u64>,
}

/// Predictions, and those that came true to the token.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct Predictions {
    pub(super) answers: u64,
    pub(super) equal: u64,
}

/// Where a request went on one fleet, and how many of its tokens were found there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivered {
    pub(super) engine: usize,
    pub(super) tokens: u64,
}

impl Ledger {
    pub(super) fn new(engines: usize) -> Self {
        let reuse = Reuse { requests: vec![0; engines], ..Reuse::default() };
        Self { routed: reuse.clone(), plain: reuse.clone(), round_robin: reuse, ..Self::default() }
    }

    /// Enters a request that the plain consumer has routed. It counts with the next one that is entered.
    pub(super) fn enter_plain(&mut self, prompt: u64, predicted: u64, delivered: Delivered) {
        self.plain.enter(delivered, self.prompt_tokens + prompt);
        self.plain_false_hits += u64::from(predicted > delivered.tokens);
    }

    /// Enters a request that the other fleets have served.
    pub(super) fn enter(
        &mut self,
        prompt: u64,
        predicted: &Prediction,
        delivered: Delivered,
        in_turn: Delivered,
    ) {
        self.requests += 1;
        self.prompt_tokens += prompt;
        self.routed.enter(delivered, self.prompt_tokens);
        self.round_robin.enter(in_turn, self.prompt_tokens);
        let predictions = if predicted.exact { &mut self.exact } else { &mut self.not_exact };
        predictions.answers += 1;
        predictions.equal += u64::from(predicted.tokens == delivered.tokens);
        self.false_hits += u64::from(predicted.tokens > delivered.tokens);
    }

    /// Whether the plane's promise held: exact predictions came true, and nothing was promised that was not
    /// there.
    pub(super) fn verdict(&self) -> anyhow::Result<()> {
        if self.false_hits > 0 {
            bail!("{} of {} predictions were above what was delivered", self.false_hits, self.requests);
        }
        let Predictions { answers, equal } = self.exact;
        if equal < answers {
            bail!("{} of {answers} exact predictions were below what was delivered", answers - equal);
        }
        Ok(())
    }
}

impl Reuse {
    fn enter(&mut self, delivered: Delivered, prompt_tokens: u64) {
        self.cached_tokens += delivered.tokens;
        self.requests[delivered.engine] += 1;
        self.share = self.cached_tokens as f64 / prompt_tokens.max(1) as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_stays_and_a_new_one_goes_where_there_is_room() {
        assert_eq!(choose(1000, &[0, 900, 0], &[0, 500, 0]), 1);
        assert_eq!(choose(1000, &[0, 0, 0], &[300, 500, 200]), 2);
        // Somebody who knows only the beginning is not worth any queue.
        assert_eq!(choose(1000, &[0, 100, 0], &[0, 2000, 0]), 0);
        assert_eq!(choose(10, &[0, 0], &[0, 0]), 0);
    }

    #[test]
    fn the_ledger_knows_false_hits_from_unexpected_ones() {
        let mut ledger = Ledger::new(2);
        let at = |engine, tokens| Delivered { engine, tokens };
        let said = |tokens, exact| Prediction { tokens, exact };
        ledger.enter(100, &said(64, true), at(0, 64), at(1, 0));
        assert!(ledger.verdict().is_ok());
        ledger.enter(100, &said(32, false), at(1, 64), at(0, 32));
        assert!(ledger.verdict().is_ok() && ledger.false_hits == 0);
        assert_eq!((ledger.exact.equal, ledger.not_exact.equal, ledger.not_exact.answers), (1, 0, 1));
        assert_eq!((ledger.routed.cached_tokens, ledger.round_robin.cached_tokens), (128, 32));
        assert!((ledger.routed.share - 0.64).abs() < 1e-9, "{}", ledger.routed.share);
        let mut worse = ledger.clone();
        worse.enter(100, &said(32, true), at(0, 64), at(1, 0));
        assert!(worse.verdict().is_err() && worse.false_hits == 0);
        ledger.enter(100, &said(64, false), at(0, 32), at(1, 0));
        assert!(ledger.verdict().is_err() && ledger.false_hits == 1);
    }
}
