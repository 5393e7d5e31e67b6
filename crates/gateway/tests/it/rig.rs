//! A gateway, its plane, and clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kvplane_access::{Access, Door, Edge, Keys, Peer, Port, Role, TokenKey};
use kvplane_gateway::{Gateway, Options, Upstream};
use kvplane_inference::{Ask, Chosen, Endpoint, Found, NoTokens, PickError, Plane, Report, Tokens};
use kvplane_prompt::PromptInput;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;

/// Far beyond anything that should take: only a hang reaches it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A plane that picks the first allowed endpoint, and records its calls.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) said: watch::Sender<Vec<String>>,
    pub(crate) reports: Mutex<Vec<(String, Report)>>,
    pub(crate) fails: Mutex<Option<PickError>>,
    pub(crate) rank: Mutex<Option<u32>>,
    pub(crate) salts: Mutex<Vec<Option<String>>>,
    pub(crate) adapters: Mutex<Vec<Option<String>>>,
    /// Picks in turn, and says nothing: for many requests.
    pub(crate) turns: AtomicBool,
    pub(crate) picks: AtomicUsize,
    pub(crate) ends: AtomicUsize,
}

impl Recording {
    fn say(&self, what: String) {
        self.said.send_modify(|said| said.push(what));
    }

    /// Waits until this was said.
    pub(crate) async fn heard(&self, what: &str) {
        let mut said = self.said.subscribe();
        let heard = said.wait_for(|said| said.iter().any(|one| one == what));
        let in_time = tokio::time::timeout(DEADLINE, heard).await.is_ok();
        assert!(in_time, "never heard {what:?}: {:?}", self.said.borrow());
    }

    pub(crate) fn said(&self) -> Vec<String> {
        self.said.borrow().clone()
    }
}

impl Plane for Recording {
    fn tokenize(&self, model: &str, _prompt: PromptInput) -> Result<Tokens, NoTokens> {
        Ok(Tokens {
            model: model.to_owned(),
            adapter: None,
            ids: (0..10).collect(),
            proven: true,
            ..Tokens::default()
        })
    }

    fn pick(&self, ask: &Ask<'_>) -> Result<Chosen, PickError> {
        if let Some(error) = self.fails.lock().clone() {
            return Err(error);
        }
        let turn = self.picks.fetch_add(1, Ordering::Relaxed);
        if self.turns.load(Ordering::Relaxed) {
            let count = ask.pool.endpoints().len();
            let place = (0..count).map(|at| (at + turn) % count).find(|place| ask.allows(*place));
            let place = place.ok_or_else(|| PickError::Nobody("nobody".to_owned()))?;
            let found = Found { place, rank: None, cached: 8, cost: 1.0, kind: "vllm" };
            return Ok(Chosen { endpoints: vec![found], receipt: format!("r{turn}-e{place}") });
        }
        self.salts.lock().push(ask.cache_salt.map(str::to_owned));
        self.adapters.lock().push(ask.tokens.ok().and_then(|tokens| tokens.adapter.clone()));
        let place = (0..ask.pool.endpoints().len()).find(|place| ask.allows(*place));
        let place = place.ok_or_else(|| PickError::Nobody("nobody".to_owned()))?;
        self.say(format!("pick e{place}"));
        let rank = *self.rank.lock();
        let found = Found { place, rank, cached: 8, cost: 1.0, kind: "vllm" };
        let number = self.said.borrow().len();
        Ok(Chosen { endpoints: vec![found], receipt: format!("r{number}-e{place}") })
    }

    fn first_byte(&self, receipt: &str) {
        if !self.turns.load(Ordering::Relaxed) {
            self.say(format!("first {}", of(receipt)));
        }
    }

    fn ended(&self, receipt: &str, report: Report) {
        self.ends.fetch_add(1, Ordering::Relaxed);
        if self.turns.load(Ordering::Relaxed) {
            return;
        }
        self.reports.lock().push((of(receipt).to_owned(), report.clone()));
        self.say(format!("ended {} {}", of(receipt), report.finished));
    }

    fn is_ready(&self) -> bool {
        true
    }
}

/// The engine of a receipt.
fn of(receipt: &str) -> &str {
    receipt.split_once('-').unwrap().1
}

pub(crate) struct Rig {
    pub(crate) plane: Arc<Recording>,
    pub(crate) engines: Vec<Arc<Engine>>,
    pub(crate) gateway: Gateway,
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) served: tokio::task::JoinHandle<()>,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub(crate) const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
pub(crate) const STREAM: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

impl Rig {
    pub(crate) async fn start(count: usize) -> Self {
        Self::with(count, Options::default(), &[]).await
    }

    pub(crate) async fn with(count: usize, options: Options, keys: &[&str]) -> Self {
        Self::shaped(count, options, keys, |_, upstream| upstream).await
    }

    /// With endpoints that are not like the others.
    pub(crate) async fn shaped(
        count: usize,
        options: Options,
        keys: &[&str],
        shape: impl Fn(usize, Upstream) -> Upstream,
    ) -> Self {
        let mut engines = Vec::new();
        for _ in 0..count {
            engines.push(Engine::start().await);
        }
        let tokens = keys
            .iter()
            .map(|name| TokenKey::new(name, Role::Infer, &format!("key-of-{name}")).unwrap())
            .collect();
        let access = Arc::new(Access::new(Keys::new(tokens, Vec::new()).unwrap(), false));
        let plane = Arc::new(Recording {
            said: watch::Sender::new(Vec::new()),
            reports: Mutex::default(),
            fails: Mutex::default(),
            rank: Mutex::default(),
            salts: Mutex::default(),
            adapters: Mutex::default(),
            turns: AtomicBool::new(false),
            picks: AtomicUsize::new(0),
            ends: AtomicUsize::new(0),
        });
        let stop = CancellationToken::new();
        let gateway = Gateway::new(plane.clone(), access.gate(Port::Http), options, stop.clone());
        gateway.set_upstreams(
            engines.iter().enumerate().map(|(at, engine)| shape(at, upstream(at, engine))).collect(),
        );
        let probing = gateway.clone();
        tokio::spawn(async move { probing.probe().await });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let door = Door::open(listener, Port::Http, None, Edge::new(kvplane_access::Bounds::default()).http);
        let service = gateway.router().into_make_service_with_connect_info::<Peer>();
        let serving = axum::serve(door, service).with_graceful_shutdown(stop.clone().cancelled_owned());
        let served = tokio::spawn(async move { serving.await.unwrap() });
        Self { plane, engines, gateway, address, stop, served }
    }

    pub(crate) fn request(&self, path: &str, body: &str) -> Request<Full<Bytes>> {
        Request::post(path)
            .header("host", self.address.to_string())
            .header("content-type", "application/json")
            .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
            .unwrap()
    }

    /// Sends a request, and has the head of its answer. Dropping the answer ends the connection.
    pub(crate) async fn open(
        &self,
        request: Request<Full<Bytes>>,
    ) -> (Response<Incoming>, impl Sized + use<>) {
        let socket = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
        let driving = AbortOnDrop(tokio::spawn(async move { drop(connection.await) }));
        let response = tokio::time::timeout(DEADLINE, sender.send_request(request)).await.unwrap().unwrap();
        (response, (driving, sender))
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let (response, _connection) = self.open(request).await;
        let (head, body) = response.into_parts();
        let body = tokio::time::timeout(DEADLINE, body.collect()).await.unwrap().unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, body }
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        self.send(self.request(path, body)).await
    }

    /// As somebody with a key.
    pub(crate) async fn post_as(&self, name: &str, path: &str, body: &str) -> Answer {
        let mut request = self.request(path, body);
        let key = HeaderValue::from_str(&format!("Bearer key-of-{name}")).unwrap();
        request.headers_mut().insert("authorization", key);
        self.send(request).await
    }

    pub(crate) fn contacted(&self) -> usize {
        self.engines.iter().map(|engine| engine.requests().len()).sum()
    }

    pub(crate) fn reports(&self) -> Vec<(String, Report)> {
        self.plane.reports.lock().clone()
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn upstream(at: usize, engine: &Engine) -> Upstream {
    let endpoint = Endpoint { engine: Some(format!("e{at}")), ..Endpoint::at(engine.address) };
    let mut authorization = HeaderValue::from_static("Bearer engine-key");
    authorization.set_sensitive(true);
    Upstream {
        endpoint,
        model: "m".to_owned(),
        host: HeaderValue::from_str(&engine.address.to_string()).unwrap(),
        authorization: Some(authorization),
        kind: "vllm",
        bootstrap_port: kvplane_gateway::BOOTSTRAP_PORT,
    }
}
