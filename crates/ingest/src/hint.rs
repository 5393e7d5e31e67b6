//! Hints from an engine's `/metrics`: when its process started, how many blocks it has.
//!
//! They support a verdict and never decide alone: with several API servers they are absent, and they name the
//! front end rather than the publisher.

use std::sync::Arc;
use std::time::Duration;

use kvplane_transport::{HttpClient, MAX_PAGE};

use crate::metrics_page::label;
use crate::provenance::Provenance;

/// What an engine says about itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Hint {
    pub(crate) start_time_ms: Option<u64>,
    /// Blocks that can hold something: one of them is the null block.
    pub(crate) usable_blocks: Option<u64>,
}

/// A front end that does not answer its metrics within this is no help.
const DEADLINE: Duration = Duration::from_secs(2);

/// Where hints about one engine come from.
#[derive(Debug, Clone, Default)]
pub(crate) struct HintSource {
    /// Its HTTP server.
    pub(crate) http: Option<String>,
    /// Who found it.
    pub(crate) provenance: Option<Arc<Provenance>>,
}

impl HintSource {
    /// The engine's own word; of one without an HTTP server, when its container started. Never one and then
    /// the other: they differ by the seconds that the engine takes.
    pub(crate) async fn fetch(&self, client: &HttpClient) -> Hint {
        if let Some(base) = &self.http {
            return fetch(client, base).await;
        }
        let started = self.provenance.as_ref().and_then(|provenance| provenance.started_ms());
        Hint { start_time_ms: started, usable_blocks: None }
    }
}

/// The engine's hint; empty if it has none or does not answer.
async fn fetch(client: &HttpClient, base: &str) -> Hint {
    match client.get(base, "/metrics", MAX_PAGE, DEADLINE).await {
        Ok((status, page)) if status.is_success() => {
            std::str::from_utf8(&page).map(parse).unwrap_or_default()
        }
        _ => Hint::default(),
    }
}

fn parse(page: &str) -> Hint {
    let mut hint = Hint::default();
    let mut ranks_differ = false;
    for line in page.lines() {
        if let Some(value) = line.strip_prefix("process_start_time_seconds ") {
            let seconds: Option<f64> = value.trim().parse().ok();
            hint.start_time_ms = seconds.filter(|s| s.is_finite() && *s > 0.0).map(|s| (s * 1000.0) as u64);
        } else if line.starts_with("vllm:cache_config_info{") {
            let blocks = label(line, "num_gpu_blocks").and_then(|text| text.parse::<u64>().ok());
            let usable = blocks.and_then(|blocks| blocks.checked_sub(1)).filter(|&blocks| blocks > 0);
            ranks_differ |= hint.usable_blocks.is_some_and(|other| usable != Some(other));
            hint.usable_blocks = usable;
        }
    }
    if ranks_differ {
        // Which of them is ours is not said.
        hint.usable_blocks = None;
    }
    hint
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_vllm_says() {
        let page = "# HELP x y\nprocess_start_time_seconds 1.79471155e+09\n\
            vllm:cache_config_info{block_size=\"32\",cpu_num_gpu_blocks=\"5\",num_gpu_blocks=\"96\",x=\"y\"} 1.0\n";
        let hint = parse(page);
        assert_eq!(hint, Hint { start_time_ms: Some(1_794_711_550_000), usable_blocks: Some(95) });
        assert_eq!(parse("nothing\nprocess_start_time_seconds NaN\n"), Hint::default());
        assert_eq!(parse("vllm:cache_config_info{num_gpu_blocks=\"None\"} 1"), Hint::default());
        let ranks = |other: u32| {
            parse(&format!(
                "vllm:cache_config_info{{engine=\"0\",num_gpu_blocks=\"96\"}} 1\n\
                 vllm:cache_config_info{{engine=\"1\",num_gpu_blocks=\"{other}\"}} 1\n"
            ))
        };
        assert_eq!((ranks(96).usable_blocks, ranks(95).usable_blocks), (Some(95), None));
    }
}
