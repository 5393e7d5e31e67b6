//! Asking an engine's own servers: pages that change nothing.

use std::time::Duration;

use http::StatusCode;
use http::header::HeaderValue;
use kvplane_core::EngineKind;
use kvplane_discovery::{
    DiscoverySpec, EngineWord, Overrides, Refusal, SGLANG_PAGES, TOKENSPEED_PAGES, ask_engine,
};
use kvplane_ingest::{EngineSpec, Source, samples};
use kvplane_transport::{HttpClient, HttpQuestion, MAX_PAGE, NoAnswer, Sent};
use serde_json::Value;

use crate::seen::Said;

/// `SGLang` asks its schedulers before it answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What the engine says of itself.
pub(super) async fn ask(spec: &EngineSpec) -> Said {
    let pages = Pages::new(spec);
    let (sources, mut said) = futures::join!(ask_sources(spec), pages.ask());
    said.sources = sources;
    said
}

/// Where the engine publishes, where it is of a kind that can tell.
async fn ask_sources(spec: &EngineSpec) -> Option<Result<EngineWord, Refusal>> {
    let discovery = match &spec.source {
        Source::Discovered(source) => source.spec.clone(),
        Source::Published(_)
            if can_tell(spec.kind) && (spec.http.is_some() || spec.control.grpc.is_some()) =>
        {
            DiscoverySpec {
                http: spec.http.clone(),
                grpc: spec.control.grpc.clone(),
                overrides: Overrides::default(),
                usual: None,
            }
        }
        _ => return None,
    };
    Some(ask_engine(spec.kind, &discovery).await)
}

fn can_tell(kind: EngineKind) -> bool {
    matches!(kind, EngineKind::Vllm | EngineKind::Sglang | EngineKind::Tokenspeed)
}

/// The pages of one engine's HTTP server.
struct Pages<'e> {
    kind: EngineKind,
    base: Option<&'e str>,
    key: Option<HeaderValue>,
    client: HttpClient,
}

impl<'e> Pages<'e> {
    fn new(spec: &'e EngineSpec) -> Self {
        let drained = match &spec.source {
            Source::Drained(drain) => Some(drain.url.as_str()),
            _ => None,
        };
        // A key that cannot be read is not sent: pages that want it are then not seen.
        let key = spec.control.api_key().ok().flatten();
        let key = key.and_then(|key| HeaderValue::from_str(&format!("Bearer {key}")).ok()).map(|mut key| {
            key.set_sensitive(true);
            key
        });
        Self { kind: spec.kind, base: spec.http.as_deref().or(drained), key, client: HttpClient::new() }
    }

    async fn ask(&self) -> Said {
        let mut said = Said::default();
        let (info, models, metrics) = futures::join!(self.info(), self.page("/v1/models"), self.metrics());
        if let Err(error @ (NoAnswer::Unreachable(_) | NoAnswer::Timeout)) = &info {
            said.unreachable = Some(error.to_string());
        }
        let json = |page: Result<Option<String>, NoAnswer>| -> Value {
            page.ok().flatten().and_then(|page| serde_json::from_str(&page).ok()).unwrap_or_default()
        };
        let (info, models) = (json(info), json(models));
        said.version = info["version"].as_str().map(str::to_owned);
        let off = ["disable_radix_cache", "disable_prefix_caching"]
            .iter()
            .any(|key| info[*key] == Value::Bool(true));
        let flag = info["enable_prefix_caching"].as_bool();
        said.prefix_caching = if off { Some(false) } else { flag };
        said.models = models["data"].as_array().map(|models| {
            models.iter().filter_map(|model| model["id"].as_str()).take(64).map(str::to_owned).collect()
        });
        let served = info["served_model_name"].as_str();
        said.models = said.models.or_else(|| served.map(|model| vec![model.to_owned()]));
        if let Ok(Some(page)) = &metrics
            && let Some(cache) = samples(page).find(|sample| sample.name == "vllm:cache_config_info")
        {
            said.block_size = cache.label("block_size").and_then(|size| size.parse().ok());
            if let Some(caching) = cache.label("enable_prefix_caching") {
                // A word that is neither says nothing.
                said.prefix_caching = ["True", "False"].contains(&caching).then(|| caching == "True");
            }
        }
        said
    }

    /// The page that tells the release; the next where one is missing.
    async fn info(&self) -> Result<Option<String>, NoAnswer> {
        let paths: &[&str] = match self.kind {
            EngineKind::Sglang => &SGLANG_PAGES,
            EngineKind::Tokenspeed => &TOKENSPEED_PAGES,
            _ => &["/version"],
        };
        for path in paths {
            if let Some(page) = self.page(path).await? {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    /// Of vLLM alone, which tells of its cache there. TensorRT-LLM's page has what it measured since the last
    /// reader, once.
    async fn metrics(&self) -> Result<Option<String>, NoAnswer> {
        if self.kind == EngineKind::Vllm { self.page("/metrics").await } else { Ok(None) }
    }

    /// A page's text; none where there is no such page, or it is not for us.
    async fn page(&self, path: &str) -> Result<Option<String>, NoAnswer> {
        let Some(base) = self.base else { return Ok(None) };
        let question = HttpQuestion { authorization: self.key.clone(), ..HttpQuestion::get(base, path) };
        let (status, body) = self.client.ask(question, MAX_PAGE, ANSWER_WITHIN, &Sent::default()).await?;
        Ok((status == StatusCode::OK).then(|| String::from_utf8_lossy(&body).into_owned()))
    }
}
