//! Traces of requests, for a collector that speaks `OpenTelemetry`'s protocol over HTTP.
//!
//! ```text
//!  chat llama                (server)  head ───────────────────────────────────> end of the answer
//!   ├ tokenize                              ──>
//!   ├ decide                                    ─>
//!   ├ queue                            ───────────>   until the request was sent
//!   └ chat llama             (client)              ─────────────────────────────> what the engine's spans are below
//!      └ first_byte                                ──────────>
//! ```
//!
//! Attributes have the names of `OpenTelemetry`'s conventions for `GenAI`. No text, token or key is in any of them.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use kvplane_inference::Usage;
use kvplane_transport::{HttpClient, HttpQuestion, Sent};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::api::Api;
use crate::stats::{Exported, Stats};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Requests that wait to be exported. Beyond them they are counted, and not exported.
const QUEUE: usize = 2_048;
/// Requests in one export.
const BATCH: usize = 256;
/// How long the first of a batch waits for the others.
const EVERY: Duration = Duration::from_secs(1);
/// How long a collector may take, and how much it may answer.
const WITHIN: Duration = Duration::from_secs(10);
const MAX_ANSWER: usize = 64 << 10;

/// Where traces go.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceOptions {
    /// The collector's address, as `http://host:port`. Traces are posted to its `/v1/traces`.
    pub endpoint: String,
    /// The share of requests that are traced, of those whose callers do not say.
    pub sample: f64,
}

/// A trace, and the span in it that what follows is below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Context {
    trace: u128,
    span: u64,
    sampled: bool,
}

impl Context {
    /// As a caller says it.
    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all(TRACEPARENT).iter();
        let (text, None) = (given.next()?.to_str().ok()?, given.next()) else { return None };
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let is_hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        // Later versions may have more parts; the first has these.
        let known = is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
        if !(known && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2)) {
            return None;
        }
        let context = Self {
            trace: u128::from_str_radix(trace, 16).ok()?,
            span: u64::from_str_radix(span, 16).ok()?,
            sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
        };
        (context.trace != 0 && context.span != 0).then_some(context)
    }

    fn header(self) -> Option<HeaderValue> {
        let Self { trace, span, sampled } = self;
        HeaderValue::try_from(format!("00-{trace:032x}-{span:016x}-{:02x}", u8::from(sampled))).ok()
    }
}

/// Makes traces, and hands them to the exporter.
#[derive(Debug)]
pub(crate) struct Tracer {
    queue: mpsc::Sender<Trace>,
    sample: f64,
    random: RandomState,
    next: AtomicU64,
    stats: Arc<Stats>,
}

/// What is exported.
#[derive(Debug)]
pub(crate) struct Exporter {
    queue: mpsc::Receiver<Trace>,
    endpoint: String,
    stats: Arc<Stats>,
}

/// When what began and ended.
type Stretch = Option<(Instant, Instant)>;

/// One request, while it is under way.
#[derive(Debug)]
pub(crate) struct Spans {
    tracer: Arc<Tracer>,
    parent: Option<u64>,
    context: Context,
    client: u64,
    api: Api,
    begun: Instant,
    pub(crate) tokenize: Stretch,
    pub(crate) decide: Stretch,
    pub(crate) sent: Option<Instant>,
    pub(crate) first: Option<Instant>,
    pub(crate) model: String,
    pub(crate) engine: String,
    pub(crate) kind: &'static str,
    pub(crate) address: String,
    pub(crate) receipt: String,
    pub(crate) request: String,
    pub(crate) predicted: Option<u64>,
    pub(crate) attempts: u32,
    pub(crate) status: u16,
    pub(crate) usage: Usage,
    pub(crate) ended: Option<&'static str>,
}

/// One that is over.
#[derive(Debug)]
struct Trace {
    spans: Box<Spans>,
    end: Instant,
    /// The moment of both clocks at which it was over.
    now: (Instant, Duration),
}

/// A tracer, and what exports its traces.
pub(crate) fn tracing(options: &TraceOptions, stats: &Arc<Stats>) -> (Arc<Tracer>, Exporter) {
    let (sender, queue) = mpsc::channel(QUEUE);
    let tracer = Tracer {
        queue: sender,
        sample: options.sample,
        random: RandomState::new(),
        next: AtomicU64::new(1),
        stats: stats.clone(),
    };
    (Arc::new(tracer), Exporter { queue, endpoint: options.endpoint.clone(), stats: stats.clone() })
}

impl Tracer {
    /// A number that nobody guesses, and never 0.
    fn random(&self) -> u64 {
        self.random.hash_one(self.next.fetch_add(1, Ordering::Relaxed)).max(1)
    }

    /// Begins a request's trace, if it is to be traced.
    pub(crate) fn begin(
        self: &Arc<Self>,
        api: Api,
        headers: &HeaderMap,
        begun: Instant,
    ) -> Option<Box<Spans>> {
        let parent = Context::read(headers);
        let sampled = match parent {
            Some(parent) => parent.sampled,
            None => self.sample >= 1.0 || (self.random() as f64 / u64::MAX as f64) < self.sample,
        };
        if !sampled {
            return None;
        }
        let trace = parent.map_or_else(
            || (u128::from(self.random()) << 64) | u128::from(self.random()),
            |parent| parent.trace,
        );
        Some(Box::new(Spans {
            tracer: self.clone(),
            parent: parent.map(|parent| parent.span),
            context: Context { trace, span: self.random(), sampled },
            client: self.random(),
            api,
            begun,
            tokenize: None,
            decide: None,
            sent: None,
            first: None,
            model: String::new(),
            engine: String::new(),
            kind: "",
            address: String::new(),
            receipt: String::new(),
            request: String::new(),
            predicted: None,
            attempts: 0,
            status: 0,
            usage: Usage::default(),
            ended: None,
        }))
    }
}

impl Spans {
    /// What the engine is told: its spans are below the one of the request to it.
    pub(crate) fn traceparent(&self) -> Option<HeaderValue> {
        Context { span: self.client, ..self.context }.header()
    }

    /// The request is over.
    pub(crate) fn end(self: Box<Self>) {
        let tracer = self.tracer.clone();
        let end = kvplane_runtime::now();
        let trace = Trace { spans: self, end, now: (end, kvplane_runtime::unix_time()) };
        if tracer.queue.try_send(trace).is_err() {
            tracer.stats.exported(Exported::Dropped, 1);
        }
    }
}

impl Trace {
    fn nanos(&self, at: Instant) -> String {
        let (now, unix) = self.now;
        unix.saturating_sub(now.saturating_duration_since(at)).as_nanos().to_string()
    }

    fn span(
        &self,
        id: u64,
        parent: Option<u64>,
        name: &str,
        kind: u8,
        (from, to): (Instant, Instant),
    ) -> Value {
        let mut span = json!({
            "traceId": format!("{:032x}", self.spans.context.trace),
            "spanId": format!("{id:016x}"),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": self.nanos(from),
            "endTimeUnixNano": self.nanos(to),
        });
        if let Some(parent) = parent {
            span["parentSpanId"] = format!("{parent:016x}").into();
        }
        span
    }

    fn export(&self, spans: &mut Vec<Value>) {
        const INTERNAL: u8 = 1;
        const SERVER: u8 = 2;
        const CLIENT: u8 = 3;
        let one = &*self.spans;
        let root = one.context.span;
        let name = format!("{} {}", operation(one.api), one.model);
        let mut server = self.span(root, one.parent, name.trim_end(), SERVER, (one.begun, self.end));
        server["attributes"] = self.attributes();
        if one.status >= 500 || one.ended.is_some_and(|ended| matches!(ended, "broken" | "silent")) {
            server["status"] = json!({"code": 2});
        }
        spans.push(server);
        let stretches = [
            ("tokenize", one.tokenize),
            ("decide", one.decide),
            ("queue", one.sent.map(|sent| (one.begun, sent))),
        ];
        for (name, stretch) in stretches {
            if let Some(stretch) = stretch {
                spans.push(self.span(one.tracer.random(), Some(root), name, INTERNAL, stretch));
            }
        }
        let Some(sent) = one.sent else { return };
        let mut client = self.span(one.client, Some(root), name.trim_end(), CLIENT, (sent, self.end));
        client["attributes"] = self.attributes();
        spans.push(client);
        if let Some(first) = one.first {
            let id = one.tracer.random();
            spans.push(self.span(id, Some(one.client), "first_byte", INTERNAL, (sent, first)));
        }
    }

    fn attributes(&self) -> Value {
        let one = &*self.spans;
        let mut all = Vec::new();
        let mut text = |name: &str, value: &str| {
            if !value.is_empty() {
                all.push(json!({"key": name, "value": {"stringValue": value}}));
            }
        };
        text("gen_ai.operation.name", operation(one.api));
        text("gen_ai.provider.name", one.kind);
        text("gen_ai.request.model", &one.model);
        text("server.address", &one.address);
        text("kvplane.engine", &one.engine);
        text("kvplane.receipt", &one.receipt);
        text("kvplane.request_id", &one.request);
        text("kvplane.ended", one.ended.unwrap_or_default());
        if one.status >= 400 {
            text("error.type", &one.status.to_string());
        }
        let numbers = [
            ("http.response.status_code", Some(u64::from(one.status)).filter(|status| *status > 0)),
            ("gen_ai.usage.input_tokens", one.usage.prompt),
            ("gen_ai.usage.output_tokens", one.usage.output),
            ("gen_ai.usage.cache_read.input_tokens", one.usage.cached),
            ("kvplane.predicted_tokens", one.predicted),
            ("kvplane.attempts", Some(u64::from(one.attempts)).filter(|attempts| *attempts > 0)),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                // 64 bits are text in the protocol's JSON.
                all.push(json!({"key": name, "value": {"intValue": number.to_string()}}));
            }
        }
        Value::from(all)
    }
}

fn operation(api: Api) -> &'static str {
    match api {
        Api::Chat | Api::Messages | Api::Responses => "chat",
        Api::Completions => "text_completion",
        Api::Embeddings => "embeddings",
        other => other.as_str(),
    }
}

impl Exporter {
    /// Exports until nobody traces any more.
    pub(crate) async fn run(mut self) {
        let client = HttpClient::new();
        let (mut batch, mut failing) = (Vec::with_capacity(BATCH), false);
        while let Some(first) = self.queue.recv().await {
            batch.push(first);
            let until = tokio::time::Instant::now() + EVERY;
            while batch.len() < BATCH {
                match tokio::time::timeout_at(until, self.queue.recv()).await {
                    Ok(Some(next)) => batch.push(next),
                    Ok(None) | Err(_) => break,
                }
            }
            let count = batch.len() as u64;
            let sent = self.post(&client, &batch).await;
            batch.clear();
            self.stats.exported(if sent { Exported::Sent } else { Exported::Failed }, count);
            if sent == failing {
                failing = !sent;
                let endpoint = &self.endpoint;
                if failing {
                    tracing::warn!(endpoint, "traces not exported");
                } else {
                    tracing::info!(endpoint, "traces exported again");
                }
            }
        }
    }

    async fn post(&self, client: &HttpClient, batch: &[Trace]) -> bool {
        let mut spans = Vec::with_capacity(6 * batch.len());
        for trace in batch {
            trace.export(&mut spans);
        }
        let name = json!({"key": "service.name", "value": {"stringValue": "kvplane-gateway"}});
        let version = json!({"key": "service.version", "value": {"stringValue": env!("CARGO_PKG_VERSION")}});
        let body = json!({"resourceSpans": [{
            "resource": {"attributes": [name, version]},
            "scopeSpans": [{"scope": {"name": "kvplane.gateway"}, "spans": spans}],
        }]});
        let question = HttpQuestion {
            method: Method::POST,
            json: Some(body.to_string().into()),
            ..HttpQuestion::get(&self.endpoint, "/v1/traces")
        };
        let answer = client.ask(question, MAX_ANSWER, WITHIN, &Sent::default()).await;
        answer.is_ok_and(|(status, _)| status == StatusCode::OK || status.is_success())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(text: &str) -> Option<Context> {
        let value = HeaderValue::from_str(text).unwrap();
        Context::read(&HeaderMap::from_iter([(TRACEPARENT, value)]))
    }

    #[test]
    fn traceparents() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read = context(text).unwrap();
        assert_eq!((read.header().unwrap().to_str().unwrap(), read.sampled), (text, true));
        assert!(!context(&text.replace("-01", "-00")).unwrap().sampled);
        assert!(context("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more").is_some());
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        ] {
            assert!(context(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn who_is_traced() {
        let stats = Arc::new(Stats::default());
        let never = TraceOptions { endpoint: String::new(), sample: 0.0 };
        let (tracer, _exporter) = tracing(&never, &stats);
        let begin = |flags: &str| {
            let text = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
            let headers = HeaderMap::from_iter([(TRACEPARENT, HeaderValue::try_from(text).unwrap())]);
            tracer.begin(Api::Chat, &headers, kvplane_runtime::now())
        };
        let traced = begin("01").unwrap();
        assert_eq!((traced.parent, traced.context.trace >> 96), (Some(0x00f0_67aa_0ba9_02b7), 0x4bf9_2f35));
        assert_ne!(traced.traceparent().unwrap(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        assert!(begin("00").is_none());
        assert!(tracer.begin(Api::Chat, &HeaderMap::new(), kvplane_runtime::now()).is_none());
    }
}
