//! A scripted engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode, Uri};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What it does with the next requests.
#[derive(Debug, Clone, Default)]
pub(crate) enum Conduct {
    /// Answers, with a usage.
    #[default]
    Well,
    /// This status.
    Status(u16),
    /// This many events, and the connection ends.
    DiesAfter(usize),
    /// One event, and nothing more.
    Hangs,
    /// Refuses token ids.
    NoIds,
    /// Refuses the rank.
    NoRank,
    /// Megabytes of events, as fast as they are taken.
    Floods,
    /// Says where the blocks of a prompt are, as vLLM's connectors do.
    Prefills,
    /// Answers once that engine was sent the prompt of the same room, as `SGLang`'s that decode do.
    DecodesOf(Arc<Engine>),
}

#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Got {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    pub(crate) conduct: Mutex<Conduct>,
    pub(crate) got: Mutex<Vec<Got>>,
    /// Answers that nobody waited for to their end.
    pub(crate) dropped: watch::Sender<usize>,
    /// Requests that came.
    pub(crate) seen: watch::Sender<usize>,
    /// Bytes that were taken of it.
    pub(crate) sent: watch::Sender<usize>,
    task: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

/// Counts an answer that is dropped before its end.
struct Watched(Arc<Engine>, bool);

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.1 {
            self.0.dropped.send_modify(|count| *count += 1);
        }
    }
}

impl Engine {
    pub(crate) async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let engine = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            conduct: Mutex::default(),
            got: Mutex::default(),
            dropped: watch::Sender::new(0),
            seen: watch::Sender::new(0),
            sent: watch::Sender::new(0),
            task: Mutex::default(),
        });
        let router = Router::new().fallback(answer).with_state(engine.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        *engine.task.lock() = Some(task);
        engine
    }

    pub(crate) fn set(&self, conduct: Conduct) {
        *self.conduct.lock() = conduct;
    }

    /// Requests but for probes.
    pub(crate) fn requests(&self) -> Vec<Got> {
        let is_probe =
            |got: &&Got| got.path == "/health" || (got.path == "/v1/models" && got.body.is_empty());
        self.got.lock().iter().filter(|got| !is_probe(got)).cloned().collect()
    }

    /// Waits until it was sent so many.
    pub(crate) async fn contacted(&self, count: usize) {
        let mut seen = self.seen.subscribe();
        let came = seen.wait_for(|_| self.requests().len() >= count);
        tokio::time::timeout(crate::rig::DEADLINE, came).await.unwrap().unwrap();
    }

    /// Waits until it was sent the prompt of a room, and takes it.
    async fn has_room(&self, room: &Value) {
        let mut seen = self.seen.subscribe();
        let is_here = |_: &usize| {
            let here = self.requests().iter().any(|got| got.json()["bootstrap_room"] == *room);
            here && matches!(*self.conduct.lock(), Conduct::Well)
        };
        let _ = seen.wait_for(is_here).await;
    }

    /// Its process is gone.
    pub(crate) fn kill(&self) {
        self.task.lock().take().unwrap().abort();
    }
}

const USAGE: &str = r#"{"prompt_tokens":10,"completion_tokens":3,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":8}}"#;

async fn answer(State(engine): State<Arc<Engine>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let path = uri.path().to_owned();
    let keep = engine.got.lock().len() < 10_000;
    if keep {
        engine.got.lock().push(Got { path: path.clone(), headers: headers.clone(), body: body.clone() });
    }
    engine.seen.send_modify(|seen| *seen += 1);
    if path == "/health" {
        return StatusCode::OK.into_response();
    }
    if path == "/v1/models" {
        let lora = json!({"id": "lora", "object": "model", "parent": "m"});
        return axum::Json(json!({"data": [{"id": "m", "object": "model", "max_model_len": 7}, lora]}))
            .into_response();
    }
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let marker = asked["marker"].as_str().unwrap_or_default().to_owned();
    let conduct = engine.conduct.lock().clone();
    let refuse = |what: &str| {
        let error = json!({"error": {"message": format!("engine: {what}")}});
        (StatusCode::BAD_REQUEST, axum::Json(error)).into_response()
    };
    match conduct {
        Conduct::Status(status) => {
            let error = json!({"error": {"message": "engine's own"}});
            return (StatusCode::from_u16(status).unwrap(), axum::Json(error)).into_response();
        }
        Conduct::NoIds if asked.get("kv_transfer_params").is_some() => return refuse("ids"),
        Conduct::DecodesOf(ref other) => {
            let mut waiting = Watched(engine.clone(), false);
            other.has_room(&asked["bootstrap_room"]).await;
            waiting.1 = true;
        }
        Conduct::NoRank if headers.contains_key("x-data-parallel-rank") => return refuse("rank"),
        _ => {}
    }
    if asked["stream"] != json!(true) {
        let usage: Value = serde_json::from_str(USAGE).unwrap();
        let engine = engine.address.to_string();
        let mut answer = json!({"object": "chat.completion", "choices": [{}], "usage": usage, "engine": engine, "marker": marker});
        if matches!(conduct, Conduct::Prefills) {
            answer["kv_transfer_params"] =
                json!({"do_remote_prefill": true, "remote_block_ids": [3, 1], "remote_engine_id": "p"});
        }
        return axum::Json(answer).into_response();
    }
    let include = asked["stream_options"]["include_usage"] == json!(true);
    let stream = futures::stream::unfold(
        (0usize, Watched(engine, false), conduct),
        move |(at, mut watched, conduct)| {
            let marker = marker.clone();
            async move {
                let event = |text: String| Some(Ok::<_, std::io::Error>(Bytes::from(text)));
                let next = match (&conduct, at) {
                    (Conduct::DiesAfter(most), at) if at >= *most => {
                        watched.1 = true;
                        Some(Err(std::io::Error::other("died")))
                    }
                    (Conduct::Hangs, 1..) => {
                        std::future::pending::<()>().await;
                        None
                    }
                    (Conduct::Floods, _) => {
                        let chunk =
                            format!("data: {{\"choices\":[{{\"x\":\"{}\"}}]}}\n\n", "x".repeat(64 << 10));
                        watched.0.sent.send_modify(|sent| *sent += chunk.len());
                        event(chunk)
                    }
                    (_, 0..3) => {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        let usage = if include { r#","usage":null"# } else { "" };
                        event(format!(
                            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{at}{marker}\"}}}}]{usage}}}\n\n"
                        ))
                    }
                    (_, 3) if include => event(format!("data: {{\"choices\":[],\"usage\":{USAGE}}}\n\n")),
                    (_, 3 | 4) if at == 4 || !include => event("data: [DONE]\n\n".to_owned()),
                    _ => {
                        watched.1 = true;
                        None
                    }
                };
                let at = if !include && at == 3 { 5 } else { at + 1 };
                next.map(|next| (next, (at, watched, conduct)))
            }
        },
    );
    ([("content-type", "text/event-stream; charset=utf-8")], Body::from_stream(stream)).into_response()
}
