//! What the tour has shown, for people and as JSON.

use anyhow::bail;
use kvplane_core::EngineKind;
use serde::Serialize;

use super::plane::{Agreement, Comparison};
use super::routing::{Ledger, Reuse};
use super::view::Voice;
use crate::commands::page::aligned;

/// One step of the story.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    name: &'static str,
    title: String,
    /// What was done.
    done: Vec<String>,
    /// What a plain consumer believes then.
    plain: Vec<String>,
    /// What the plane says.
    kvplane: Vec<String>,
    /// What the comparison with the engines showed.
    checked: Vec<String>,
    /// Whether everything came as it should.
    pub(super) met: bool,
}

impl Step {
    pub(super) fn new(name: &'static str, title: &str) -> Self {
        let (done, plain, kvplane, checked) = Default::default();
        Self { name, title: title.to_owned(), done, plain, kvplane, checked, met: false }
    }

    pub(super) fn tell(&mut self, voice: Voice, words: String) {
        let lines = match voice {
            Voice::Done => &mut self.done,
            Voice::Plain => &mut self.plain,
            Voice::Plane => &mut self.kvplane,
            Voice::Checked => &mut self.checked,
        };
        lines.push(words);
    }
}

/// The whole tour.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    /// It went to its end.
    pub(super) complete: bool,
    /// What it was ended by, if something was not as it should be.
    pub(super) failure: Option<String>,
    /// Nobody has recorded its requests.
    #[serde(skip)]
    pub(super) made_up: bool,
    /// Where the plane was.
    pub(super) dashboard: String,
    #[serde(flatten)]
    pub(super) ledger: Ledger,
    pub(super) steps: Vec<Step>,
    pub(super) engines: Vec<EngineSummary>,
}

/// One engine at the end.
#[derive(Debug, Serialize)]
pub(super) struct EngineSummary {
    pub(super) kind: EngineKind,
    /// A step has shown that less is known of it than it holds.
    #[serde(skip)]
    pub(super) known_in_part: bool,
    /// How often it was restarted.
    #[serde(skip)]
    pub(super) restarted: u64,
    #[serde(flatten)]
    pub(super) compared: Comparison,
}

impl Summary {
    /// Whether the plane kept its promise, as far as the tour went.
    pub(super) fn verdict(&self) -> anyhow::Result<()> {
        if let Some(failure) = &self.failure {
            bail!("{failure}");
        }
        // A tour that was ended in the middle of a step has no result of it.
        let is_as_reported = |engine: &EngineSummary| match engine.compared.agreement {
            Agreement::Equal => true,
            Agreement::Lower => engine.known_in_part || !self.complete,
            Agreement::Different => false,
        };
        if let Some(EngineSummary { compared, .. }) =
            self.engines.iter().find(|engine| !is_as_reported(engine))
        {
            bail!("what kvplane holds of {} is wrong ({})", compared.engine, compared.trust);
        }
        self.ledger.verdict()?;
        if self.complete { self.shows_something() } else { Ok(()) }
    }

    /// Whether a whole tour has shown what it is there to show: nothing that is promised of nothing counts.
    fn shows_something(&self) -> anyhow::Result<()> {
        let Ledger { requests, routed, round_robin, exact, .. } = &self.ledger;
        if exact.answers == 0 {
            bail!("nothing was measured: of {requests} answers none was called exact");
        }
        let (routed, in_turn) = (routed.cached_tokens, round_robin.cached_tokens);
        if self.made_up && routed <= in_turn {
            bail!(
                "routed by kvplane {routed} tokens were cached, and {in_turn} round robin: nothing was gained"
            );
        }
        let miscounted = |engine: &&EngineSummary| engine.compared.restarts != engine.restarted;
        if let Some(EngineSummary { compared, restarted, .. }) = self.engines.iter().find(miscounted) {
            let Comparison { engine, restarts, .. } = compared;
            bail!("{engine} was restarted {restarted} times, and kvplane says {restarts}");
        }
        Ok(())
    }

    /// For people: ten lines, and the engines one by one where they are wanted.
    pub(super) fn text(&self, with_engines: bool) -> String {
        let Ledger {
            requests,
            prompt_tokens,
            routed,
            round_robin,
            plain,
            plain_false_hits,
            exact,
            not_exact,
            false_hits,
        } = &self.ledger;
        let share = |reuse: &Reuse| format!("{:.1} %  ({} tokens)", reuse.share * 100.0, reuse.cached_tokens);
        let equal =
            self.engines.iter().filter(|engine| engine.compared.agreement == Agreement::Equal).count();
        let ended = if self.complete { "completed" } else { "not completed" };
        let row = |name: &str, words: String| [name.to_owned(), words];
        let rows = [
            row("tour", ended.to_owned()),
            row("requests", format!("{requests}, {prompt_tokens} prompt tokens")),
            row("cached, round robin", share(round_robin)),
            row("cached, plain consumer", share(plain)),
            row("cached, kvplane", share(routed)),
            row(
                "predicted = delivered",
                format!(
                    "{} of {} exact answers; {} of {} answers marked as less than exact",
                    exact.equal, exact.answers, not_exact.equal, not_exact.answers
                ),
            ),
            row("false hits", format!("kvplane {false_hits}, plain consumer {plain_false_hits}")),
            row("survived", self.survived()),
            row("engines", format!("{equal} of {} equal block by block", self.engines.len())),
            row("dashboard", self.dashboard.clone()),
        ];
        let table = if with_engines { format!("\n{}", aligned(&self.table())) } else { String::new() };
        format!("{}{table}", aligned(&rows))
    }

    /// The steps that came out as they should.
    fn survived(&self) -> String {
        let met: Vec<&str> =
            self.steps.iter().filter(|step| step.met).map(|step| step.title.as_str()).collect();
        let met = if met.is_empty() { "nothing yet".to_owned() } else { met.join("; ") };
        format!("{} of {} steps: {met}", self.steps.iter().filter(|step| step.met).count(), self.steps.len())
    }

    fn table(&self) -> Vec<Vec<String>> {
        let head = [
            "ENGINE", "KIND", "REQUESTS", "TRUST", "BLOCKS", "OF", "AGREE", "RESTARTS", "GAPS", "UNFILLED",
            "CUTS",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for (at, EngineSummary { kind, compared, .. }) in self.engines.iter().enumerate() {
            let agree = match compared.agreement {
                Agreement::Equal => "equal",
                Agreement::Lower => "fewer, as reported",
                Agreement::Different => "DIFFERENT",
            };
            rows.push(vec![
                compared.engine.to_owned(),
                kind.to_string(),
                self.ledger.routed.requests.get(at).copied().unwrap_or(0).to_string(),
                compared.trust.to_owned(),
                compared.blocks.to_string(),
                compared.engine_blocks.to_string(),
                agree.to_owned(),
                compared.restarts.to_string(),
                compared.gaps.to_string(),
                compared.gaps_unfilled.to_string(),
                compared.disconnects.to_string(),
            ]);
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::super::plane::Prediction;
    use super::super::routing::Delivered;
    use super::*;

    /// A tour of one engine that was restarted once, and of one request.
    fn tour(exact: bool, in_turn: u64) -> Summary {
        let mut ledger = Ledger::new(1);
        let at = |tokens| Delivered { engine: 0, tokens };
        ledger.enter(100, &Prediction { tokens: 64, exact }, at(64), at(in_turn));
        let compared = Comparison {
            engine: "vllm-0",
            trust: "exact",
            blocks: 4,
            engine_blocks: 4,
            agreement: Agreement::Equal,
            restarts: 1,
            gaps: 0,
            gaps_unfilled: 0,
            disconnects: 1,
        };
        let engine = EngineSummary { kind: EngineKind::Vllm, known_in_part: false, restarted: 1, compared };
        Summary {
            complete: true,
            failure: None,
            made_up: true,
            dashboard: String::new(),
            ledger,
            steps: Vec::new(),
            engines: vec![engine],
        }
    }

    fn refused(tour: &Summary) -> String {
        tour.verdict().unwrap_err().to_string()
    }

    #[test]
    fn a_whole_tour_has_to_show_something() {
        assert!(tour(true, 32).verdict().is_ok());
        assert!(refused(&tour(false, 32)).contains("none was called exact"));
        assert!(refused(&tour(true, 64)).contains("nothing was gained"));
        let mut recorded = tour(true, 64);
        recorded.made_up = false;
        assert!(recorded.verdict().is_ok(), "a trace may have nothing to find");
        let mut unseen = tour(true, 32);
        unseen.engines[0].compared.restarts = 0;
        assert!(refused(&unseen).contains("restarted 1 times, and kvplane says 0"));
        // A tour that was ended early has not shown everything.
        unseen.complete = false;
        assert!(unseen.verdict().is_ok());
        unseen.engines[0].compared.agreement = Agreement::Lower;
        assert!(unseen.verdict().is_ok());
        unseen.complete = true;
        assert!(refused(&unseen).contains("is wrong"));
    }
}
