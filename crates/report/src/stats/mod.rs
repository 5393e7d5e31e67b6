//! What an engine says of its load and its cache, from its page of metrics.

mod profile;

use std::time::Duration;

use kvplane_core::EngineKind;
use kvplane_hints::Stats;
use kvplane_ingest::EngineSpec;
use kvplane_transport::{HttpClient, MAX_PAGE};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use profile::Reading;

/// After this many pages that could not be read the load is old news.
const STALE_AFTER: u32 = 3;
/// A front end that does not answer within this is too busy to be asked.
const DEADLINE: Duration = Duration::from_secs(5);

/// Which number says how full the cache is, where an engine has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UsageOf {
    /// The whole cache; where the engine does not say that, the fuller of device and host.
    #[default]
    Auto,
    /// The whole cache.
    Kv,
    /// The device.
    Gpu,
    /// The host.
    Cpu,
}

/// How an engine's statistics are read.
#[derive(Debug, Clone, PartialEq)]
pub struct StatsOptions {
    /// How often.
    pub interval: Duration,
    /// Bytes of the whole cache; 0 if nobody knows.
    pub cache_bytes: u64,
    /// This many requests are as busy as it gets.
    pub ceiling: u32,
    /// Which number says how full the cache is.
    pub usage: UsageOf,
    /// Only numbers of this model, where a page has several; all when empty.
    pub model_name: String,
}

impl Default for StatsOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(10),
            cache_bytes: 0,
            ceiling: 256,
            usage: UsageOf::Auto,
            model_name: String::new(),
        }
    }
}

/// Where an engine's statistics are, and of what kind it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatsSource {
    /// The engine's name, for the log.
    pub engine: String,
    /// Its software: the names of numbers differ.
    pub kind: EngineKind,
    /// The page.
    pub url: String,
}

impl StatsSource {
    /// Where an engine's statistics are: at the page that is given, or else at its HTTP server's. Nowhere, if
    /// there is neither, or nobody knows how such an engine calls its numbers.
    pub fn of(spec: &EngineSpec, page: Option<&str>) -> Option<Self> {
        let own = || spec.http.as_ref().map(|http| format!("{}/metrics", http.trim_end_matches('/')));
        let url = page.map(str::to_owned).or_else(own)?;
        let known = matches!(spec.kind, EngineKind::Vllm | EngineKind::Sglang);
        known.then(|| Self { engine: spec.id.to_string(), kind: spec.kind, url })
    }
}

/// What the reader of statistics tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StatsNews {
    /// They are these.
    Are(Stats),
    /// They are old: nobody knows how busy the engine is.
    Stale,
}

/// Reads an engine's statistics again and again, and tells them. Never ends.
pub async fn follow_stats(source: StatsSource, options: StatsOptions, mut tell: impl FnMut(StatsNews)) {
    let client = HttpClient::new();
    let mut reader = StatsReader::new(source.kind, options);
    let mut ticks = interval(reader.options.interval.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let page = match client.get(&source.url, "", MAX_PAGE, DEADLINE).await {
            Ok((status, page)) if status.is_success() => String::from_utf8(page.to_vec()).ok(),
            _ => None,
        };
        let was_stale = reader.is_stale();
        let stats = page.and_then(|page| reader.read(&page));
        if stats.is_none() {
            reader.failed();
        }
        match stats {
            Some(stats) => tell(StatsNews::Are(stats)),
            None if reader.is_stale() && !was_stale => tell(StatsNews::Stale),
            None => {}
        }
        match (was_stale, reader.is_stale()) {
            (false, true) => warn!(
                event = "load_signal_stale",
                engine = source.engine,
                url = source.url,
                "cannot read the engine's load; reported values are stale"
            ),
            (true, false) => info!(engine = source.engine, "engine load readable again"),
            _ => {}
        }
    }
}

/// Makes statistics of pages.
#[derive(Debug)]
struct StatsReader {
    kind: EngineKind,
    options: StatsOptions,
    /// Hits and queries of the last page.
    counted: (f64, f64),
    hit_rate: f32,
    failures: u32,
}

impl StatsReader {
    fn new(kind: EngineKind, options: StatsOptions) -> Self {
        Self { kind, options, counted: (0.0, 0.0), hit_rate: 0.0, failures: 0 }
    }

    fn is_stale(&self) -> bool {
        self.failures >= STALE_AFTER
    }

    fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Statistics, if the page says how busy the engine is.
    fn read(&mut self, page: &str) -> Option<Stats> {
        let reading = Reading::of(self.kind, page, &self.options)?;
        self.failures = 0;
        self.hit_rate = match (reading.hit_rate, reading.counted) {
            (Some(rate), _) => rate,
            (None, Some(counted)) => self.rate_since(counted),
            (None, None) => 0.0,
        };
        let usage = reading.usage.unwrap_or(0.0).clamp(0.0, 1.0);
        Some(Stats {
            cache_memory_bytes: (self.options.cache_bytes as f64 * usage) as i64,
            hit_rate: self.hit_rate,
            pressure: ((reading.requests / f64::from(self.options.ceiling.max(1))) as f32).clamp(0.0, 1.0),
            t2_hit_tokens: reading.behind.0 as i64,
            t2_query_tokens: reading.behind.1 as i64,
        })
    }

    /// Hits by queries since the last page. An engine that was asked nothing keeps its rate; one that
    /// restarted counts from 0 again.
    fn rate_since(&mut self, counted: (f64, f64)) -> f32 {
        let (mut hits, mut queries) = (counted.0 - self.counted.0, counted.1 - self.counted.1);
        if hits < 0.0 || queries < 0.0 {
            (hits, queries) = counted;
        }
        self.counted = counted;
        if queries > 0.0 { ((hits / queries) as f32).clamp(0.0, 1.0) } else { self.hit_rate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(kind: EngineKind) -> StatsReader {
        let options = StatsOptions { cache_bytes: 1_000, ceiling: 10, ..StatsOptions::default() };
        StatsReader::new(kind, options)
    }

    fn vllm(hits: u32, queries: u32) -> String {
        format!(
            "# TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} 2.0\n\
             vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} 1.0\n\
             vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} 0.25\n\
             vllm:prefix_cache_hits_total{{engine=\"0\",model_name=\"m\"}} {hits}\n\
             vllm:prefix_cache_queries_total{{engine=\"0\",model_name=\"m\"}} {queries}\n\
             vllm:external_prefix_cache_hits_total{{engine=\"0\",model_name=\"m\"}} 7\n\
             vllm:external_prefix_cache_queries_total{{engine=\"0\",model_name=\"m\"}} 9\n"
        )
    }

    #[test]
    fn vllm_counts_are_taken_since_the_last_page() {
        let mut reader = reader(EngineKind::Vllm);
        let first = reader.read(&vllm(50, 100)).unwrap();
        let expected = Stats {
            cache_memory_bytes: 250,
            hit_rate: 0.5,
            pressure: 0.3,
            t2_hit_tokens: 7,
            t2_query_tokens: 9,
        };
        assert_eq!(first, expected);
        let rate = |stats: Option<Stats>| (stats.unwrap().hit_rate * 100.0).round() as u32;
        assert_eq!(rate(reader.read(&vllm(60, 200))), 10);
        // Nothing was asked; then it restarted.
        assert_eq!(rate(reader.read(&vllm(60, 200))), 10);
        assert_eq!(rate(reader.read(&vllm(3, 4))), 75);
    }

    #[test]
    fn a_page_without_load_is_a_failure_and_three_are_stale() {
        let mut reader = reader(EngineKind::Vllm);
        assert!(reader.read("vllm:num_requests_running 3\n").is_none());
        for expected in [false, false, true, true] {
            reader.failed();
            assert_eq!(reader.is_stale(), expected);
        }
        assert!(reader.read(&vllm(0, 0)).is_some());
        assert!(!reader.is_stale());
    }

    #[test]
    fn sglang_says_its_rate_itself() {
        let page = "sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\"} 4.0\n\
            sglang:num_queue_reqs{model_name=\"m\",tp_rank=\"0\"} 40.0\n\
            sglang:token_usage{model_name=\"m\",tp_rank=\"0\"} 0.5\n\
            sglang:cache_hit_rate{model_name=\"m\",tp_rank=\"0\"} 0.25\n";
        let stats = reader(EngineKind::Sglang).read(page).unwrap();
        let expected = Stats { cache_memory_bytes: 500, hit_rate: 0.25, pressure: 1.0, ..Stats::default() };
        assert_eq!(stats, expected);
        assert!(reader(EngineKind::Vllm).read(page).is_none());
    }

    #[test]
    fn other_models_of_a_page_do_not_count() {
        let page = vllm(50, 100) + &vllm(1, 1).replace("\"m\"", "\"other\"");
        let mut of_m = reader(EngineKind::Vllm);
        of_m.options.model_name = "m".to_owned();
        assert!((of_m.read(&page).unwrap().pressure - 0.3).abs() < 1e-6);
        assert!((reader(EngineKind::Vllm).read(&page).unwrap().pressure - 0.6).abs() < 1e-6);
    }

    #[test]
    fn older_releases_have_two_caches() {
        let page = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n\
            vllm:gpu_cache_usage_perc 0.2\nvllm:cpu_cache_usage_perc 0.6\n";
        for (usage, bytes) in
            [(UsageOf::Auto, 600), (UsageOf::Kv, 600), (UsageOf::Gpu, 200), (UsageOf::Cpu, 600)]
        {
            let mut reader = reader(EngineKind::Vllm);
            reader.options.usage = usage;
            assert_eq!(reader.read(page).unwrap().cache_memory_bytes, bytes, "{usage:?}");
        }
    }
}
