//! The part of `/metrics` about what was asked for and what was found of it.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;

use crate::family::list::value;
use crate::gauge;

/// Tokens asked for and found.
#[derive(Debug)]
pub struct ValueRows {
    /// Questions, tokens asked for and tokens found, by protocol.
    pub protocols: Vec<(&'static str, [u64; 3])>,
    /// The prefixes that saved the most.
    pub prefixes: Vec<PrefixRow>,
}

/// A prefix that was found often.
#[derive(Debug)]
pub struct PrefixRow {
    /// Its keyed hash.
    pub prefix: String,
    /// The model that was asked for.
    pub model: String,
    /// Its length.
    pub tokens: u64,
    /// Questions that found it, times its length.
    pub tokens_found: u64,
}

impl Collector for ValueRows {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        for (at, family) in [value::PROMPTS, value::TOKENS_ASKED, value::TOKENS_FOUND].into_iter().enumerate()
        {
            let mut metric = family.begin(&mut encoder)?;
            for (protocol, counts) in &self.protocols {
                let labels = [("protocol", *protocol)];
                ConstCounter::new(counts[at]).encode(metric.encode_family(&labels)?)?;
            }
        }
        let mut metric = value::TOP_PREFIX_TOKENS.begin(&mut encoder)?;
        for PrefixRow { prefix, model, tokens, tokens_found } in &self.prefixes {
            let length = tokens.to_string();
            let labels = [("prefix", prefix.as_str()), ("model", model), ("length", &length)];
            gauge(*tokens_found, metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
