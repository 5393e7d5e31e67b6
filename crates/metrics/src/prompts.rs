//! The part of `/metrics` about prompts that are given as text.

use std::fmt::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use kvplane_prompt::{Prompts, Standing};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::family::list::prompts;

/// What is counted of prompts.
#[derive(Debug)]
pub struct PromptRows(pub Prompts);

impl Collector for PromptRows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let counters = self.0.counters();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (family, count) in [
            (prompts::TOKENIZED, read(&counters.tokenized)),
            (prompts::REFUSED, read(&counters.refused)),
            (prompts::TOKENS, read(&counters.tokens)),
            (prompts::CONTRADICTIONS, read(&counters.contradictions)),
        ] {
            ConstCounter::new(count).encode(family.begin(&mut encoder)?)?;
        }
        let mut metric = prompts::WITHOUT_TOKENS.begin(&mut encoder)?;
        for (reason, count) in
            [("tokenizer_too_slow", read(&counters.too_slow)), ("tokenizer_busy", read(&counters.busy))]
        {
            ConstCounter::new(count).encode(metric.encode_family(&[("reason", reason)])?)?;
        }
        let seconds = read(&counters.nanoseconds) as f64 / 1e9;
        ConstCounter::new(seconds).encode(prompts::SECONDS_SPENT.begin(&mut encoder)?)?;
        let rows = self.0.parity();
        let mut metric = prompts::PARITY.begin(&mut encoder)?;
        for row in &rows {
            for state in Standing::ALL {
                let count = row.standings.iter().filter(|(_, standing)| *standing == state).count();
                let labels =
                    [("model", row.model.as_str()), ("engine", &row.engine), ("state", state.as_str())];
                ConstGauge::new(count as u64).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut metric = prompts::COMPARED.begin(&mut encoder)?;
        for row in &rows {
            for (outcome, count) in [("equal", row.agreed), ("different", row.differed)] {
                let labels = [("model", row.model.as_str()), ("engine", &row.engine), ("outcome", outcome)];
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
