//! The names that engines have for their numbers.

use kvplane_core::EngineKind;
use kvplane_ingest::{Sample, samples};

use super::{StatsOptions, UsageOf};

/// What a page says. An engine with several ranks has a number for each: loads and counts are added up, of
/// shares the largest counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    /// Requests that run and that wait.
    pub(super) requests: f64,
    /// How full the cache is, 0 to 1.
    pub(super) usage: Option<f64>,
    /// Hits by queries, where the engine says so itself.
    pub(super) hit_rate: Option<f32>,
    /// Hits and queries since the engine started.
    pub(super) counted: Option<(f64, f64)>,
    /// The same for what lies behind the engine.
    pub(super) behind: (f64, f64),
}

impl Reading {
    /// Nothing if the page does not say how busy the engine is, or nobody knows how this software says it.
    pub(super) fn of(kind: EngineKind, page: &str, options: &StatsOptions) -> Option<Self> {
        let page = Page { text: page, model: &options.model_name };
        match kind {
            EngineKind::Vllm => vllm(&page, options.usage),
            EngineKind::Sglang => sglang(&page),
            _ => None,
        }
    }
}

fn vllm(page: &Page<'_>, usage: UsageOf) -> Option<Reading> {
    let requests = page.sum("vllm:num_requests_running")? + page.sum("vllm:num_requests_waiting")?;
    let (gpu, cpu) = (page.most("vllm:gpu_cache_usage_perc"), page.most("vllm:cpu_cache_usage_perc"));
    let usage = match usage {
        UsageOf::Auto | UsageOf::Kv => page.most("vllm:kv_cache_usage_perc").or_else(|| larger(gpu, cpu)),
        UsageOf::Gpu => gpu,
        UsageOf::Cpu => cpu,
    };
    // Until 0.10 the name had the device in it.
    let counted = page
        .pair("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
        .or_else(|| page.pair("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"));
    let behind =
        page.pair("vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total");
    Some(Reading { requests, usage, hit_rate: None, counted, behind: behind.unwrap_or_default() })
}

fn sglang(page: &Page<'_>) -> Option<Reading> {
    let requests = page.sum("sglang:num_running_reqs")? + page.sum("sglang:num_queue_reqs")?;
    let hit_rate = page.most("sglang:cache_hit_rate").map(|rate| (rate as f32).clamp(0.0, 1.0));
    let usage = page.most("sglang:token_usage");
    Some(Reading { requests, usage, hit_rate, counted: None, behind: (0.0, 0.0) })
}

fn larger(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    }
}

struct Page<'p> {
    text: &'p str,
    /// Of which model; all when empty.
    model: &'p str,
}

impl<'p> Page<'p> {
    fn numbers(&self, name: &'static str) -> impl Iterator<Item = f64> + use<'p> {
        let model = self.model;
        let ours = move |sample: &Sample<'_>| model.is_empty() || sample.label("model_name") == Some(model);
        samples(self.text)
            .filter(move |sample| sample.name == name && sample.value.is_finite() && ours(sample))
            .map(|sample| sample.value)
    }

    fn sum(&self, name: &'static str) -> Option<f64> {
        self.numbers(name).reduce(|one, other| one + other)
    }

    fn most(&self, name: &'static str) -> Option<f64> {
        self.numbers(name).reduce(f64::max)
    }

    fn pair(&self, one: &'static str, other: &'static str) -> Option<(f64, f64)> {
        Some((self.sum(one)?, self.sum(other)?))
    }
}
