//! An API server, as far as a watcher can tell: lists with pages, watches, selectors, bookmarks, versions
//! that are too old, and everything that goes wrong.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post};
use futures::{Stream, StreamExt as _};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{self, ServerConfig};

/// What the next request gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    Forbidden,
    Unauthorized,
    Error,
    /// No answer for a while.
    Hang,
    /// No answer at all, and no end.
    Silence,
    /// The body ends in the middle of a line.
    Cut,
    /// An invalid line.
    Garbage,
    /// These lines, and then the end.
    Lines(String),
}

#[derive(Debug, Default)]
struct World {
    version: u64,
    /// Watches from before this version are too old.
    compacted: u64,
    /// By plural, then by name.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    /// Version, plural, before, after.
    log: Vec<(u64, String, Option<Value>, Option<Value>)>,
    faults: VecDeque<Fault>,
    /// No request is answered.
    down: bool,
    /// Who is known; everybody when absent.
    token: Option<String>,
    /// Kinds that may not be read.
    forbidden: Vec<String>,
    /// Kinds that are not installed.
    absent: Vec<String>,
    requests: u64,
    /// Objects that were created over the API.
    made: u64,
}

/// The server. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ApiServer {
    world: Arc<Mutex<World>>,
    changed: watch::Sender<u64>,
    pub(crate) address: SocketAddr,
}

impl ApiServer {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self { world: Arc::default(), changed: watch::channel(0).0, address };
        let app = Router::new()
            .route("/api/v1/namespaces", post(created_namespace))
            .route("/api/v1/namespaces/{namespace}", delete(async || json!({}).to_string()))
            .route("/api/v1/namespaces/{namespace}/{plural}", get(core).post(created))
            .route("/api/v1/namespaces/{namespace}/{plural}/{name}", patch(patched).delete(deleted))
            .route("/api/v1/namespaces/{namespace}/{plural}/{name}/status", patch(patched_status))
            .route("/apis/{group}/{version}/namespaces/{namespace}/{plural}", get(other))
            .with_state(server.clone());
        kvplane_runtime::spawn("api server", async move {
            axum::serve(listener, app).await.unwrap();
        });
        server
    }

    /// A kubeconfig for it, in a file of its own.
    pub(crate) fn kubeconfig(&self, token_file: Option<&std::path::Path>) -> PathBuf {
        let user = token_file.map_or_else(|| json!({}), |file| json!({"tokenFile": file}));
        kubeconfig(self.address, &json!({"server": format!("http://{}", self.address)}), &user)
    }

    fn change(&self, change: impl FnOnce(&mut World)) {
        let version = {
            let mut world = self.world.lock();
            change(&mut world);
            world.version
        };
        self.changed.send_modify(|known| *known = version.max(*known + 1));
    }

    /// Creates or replaces an object.
    pub(crate) fn put(&self, plural: &str, mut object: Value) {
        self.change(|world| {
            world.version += 1;
            object["metadata"]["resourceVersion"] = world.version.to_string().into();
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let before = world.objects.entry(plural.to_owned()).or_default().insert(name, object.clone());
            world.log.push((world.version, plural.to_owned(), before, Some(object)));
        });
    }

    pub(crate) fn delete(&self, plural: &str, name: &str) {
        self.change(|world| {
            let Some(before) = world.objects.get_mut(plural).and_then(|all| all.remove(name)) else { return };
            world.version += 1;
            world.log.push((world.version, plural.to_owned(), Some(before), None));
        });
    }

    /// Forgets the past: watches end, and begin again with 410.
    pub(crate) fn compact(&self) {
        self.change(|world| {
            world.version += 1;
            world.compacted = world.version;
            world.log.clear();
        });
    }

    pub(crate) fn fail(&self, fault: Fault) {
        self.world.lock().faults.push_back(fault);
    }

    /// Nothing goes wrong any more.
    pub(crate) fn heal(&self) {
        self.change(|world| {
            world.faults.clear();
            world.forbidden.clear();
            world.down = false;
        });
    }

    /// Away, with every watch; or back.
    pub(crate) fn set_down(&self, down: bool) {
        self.change(|world| {
            world.down = down;
            if down {
                world.version += 1;
                world.compacted = world.version;
                world.log.clear();
            }
        });
    }

    pub(crate) fn forbid(&self, plural: &str) {
        self.world.lock().forbidden.push(plural.to_owned());
    }

    pub(crate) fn uninstall(&self, plural: &str) {
        self.world.lock().absent.push(plural.to_owned());
    }

    pub(crate) fn set_token(&self, token: &str) {
        self.world.lock().token = Some(token.to_owned());
    }

    pub(crate) fn requests(&self) -> u64 {
        self.world.lock().requests
    }
}

fn kubeconfig(address: SocketAddr, cluster: &Value, user: &Value) -> PathBuf {
    let file = std::env::temp_dir().join(format!("kubeconfig-{}-{}", std::process::id(), address.port()));
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
    });
    std::fs::write(&file, config.to_string()).unwrap();
    file
}

/// TLS in front of a server, with certificates for the years that a test chooses.
pub(crate) struct Front {
    issuer: CertifiedIssuer<'static, KeyPair>,
    accepting: Arc<Mutex<TlsAcceptor>>,
    cuts: watch::Sender<u64>,
    address: SocketAddr,
}

impl Front {
    pub(crate) async fn start(server: &ApiServer, years: std::ops::Range<i32>) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let accepting = Arc::new(Mutex::new(acceptor(&issuer, years)));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, behind) = (listener.local_addr().unwrap(), server.address);
        let acceptors = accepting.clone();
        let (cuts, cut) = watch::channel(0);
        kvplane_runtime::spawn("tls", async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptors.lock().clone();
                let mut cut = cut.clone();
                cut.mark_unchanged();
                kvplane_runtime::spawn("tls connection", async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut behind = tokio::net::TcpStream::connect(behind).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut stream, &mut behind) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { issuer, accepting, cuts, address }
    }

    /// Cuts every connection.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// A certificate for other years.
    pub(crate) fn renew(&self, years: std::ops::Range<i32>) {
        *self.accepting.lock() = acceptor(&self.issuer, years);
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        let ca = std::env::temp_dir().join(format!("ca-{}-{}.pem", std::process::id(), self.address.port()));
        std::fs::write(&ca, self.issuer.pem()).unwrap();
        let cluster = json!({"server": format!("https://{}", self.address), "certificate-authority": ca});
        kubeconfig(self.address, &cluster, &json!({}))
    }
}

fn acceptor(issuer: &CertifiedIssuer<'static, KeyPair>, years: std::ops::Range<i32>) -> TlsAcceptor {
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
    params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

fn answered(code: u16, object: &Value) -> Response {
    let header = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::from_u16(code).unwrap(), header, object.to_string()).into_response()
}

async fn created_namespace(body: Bytes) -> Response {
    answered(201, &serde_json::from_slice(&body).unwrap())
}

/// An object is created: the server gives it its uid and its time.
async fn created(
    server: State<ApiServer>,
    Path((namespace, plural)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let mut object: Value = serde_json::from_slice(&body).unwrap();
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let made = {
        let mut world = server.world.lock();
        if world.objects.get(&plural).is_some_and(|all| all.contains_key(&name)) {
            return refused(409, "AlreadyExists", &format!("{plural} {name:?} already exists"));
        }
        world.made += 1;
        world.made
    };
    object["metadata"]["namespace"] = namespace.into();
    object["metadata"]["uid"] = format!("uid-{made}").into();
    object["metadata"]["creationTimestamp"] = format!("2026-11-18T{:02}:00:00Z", made % 24).into();
    server.put(&plural, object.clone());
    answered(201, &object)
}

async fn patched(
    server: State<ApiServer>,
    Path((_, plural, name)): Path<(String, String, String)>,
    body: Bytes,
) -> Response {
    let change: Value = serde_json::from_slice(&body).unwrap();
    let known = server.world.lock().objects.get(&plural).and_then(|all| all.get(&name)).cloned();
    let Some(mut object) = known else {
        return refused(404, "NotFound", &format!("{plural} {name:?} not found"));
    };
    merge(&mut object, change);
    server.put(&plural, object.clone());
    answered(200, &object)
}

async fn patched_status(
    server: State<ApiServer>,
    path: Path<(String, String, String)>,
    body: Bytes,
) -> Response {
    patched(server, path, body).await
}

async fn deleted(
    server: State<ApiServer>,
    Path((_, plural, name)): Path<(String, String, String)>,
) -> Response {
    server.delete(&plural, &name);
    answered(200, &json!({"kind": "Status", "status": "Success"}))
}

/// RFC 7396.
fn merge(into: &mut Value, change: Value) {
    let Value::Object(change) = change else {
        *into = change;
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in change {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(&key);
        } else {
            merge(&mut into[&key], value);
        }
    }
}

type Asked = Query<BTreeMap<String, String>>;

async fn core(
    server: State<ApiServer>,
    path: Path<(String, String)>,
    query: Asked,
    headers: HeaderMap,
) -> Response {
    let Path((_, plural)) = path;
    answer(&server, &plural, &query, &headers).await
}

async fn other(
    server: State<ApiServer>,
    path: Path<(String, String, String, String)>,
    query: Asked,
    headers: HeaderMap,
) -> Response {
    let Path((group, _, _, plural)) = path;
    // Two groups have kinds of one name.
    let plural = if group == "llm-d.ai" { format!("llm-d.{plural}") } else { plural };
    answer(&server, &plural, &query, &headers).await
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code})
}

fn refused(code: u16, reason: &str, message: &str) -> Response {
    let body = status(code, reason, message).to_string();
    (StatusCode::from_u16(code).unwrap(), [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn answer(
    server: &ApiServer,
    plural: &str,
    query: &BTreeMap<String, String>,
    headers: &HeaderMap,
) -> Response {
    let watching = query.get("watch").is_some_and(|watch| watch == "true");
    let fault = {
        let mut world = server.world.lock();
        world.requests += 1;
        if world.down {
            return refused(503, "ServiceUnavailable", "down");
        }
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if world.token.as_ref().is_some_and(|token| given != Some(&format!("Bearer {token}"))) {
            return refused(401, "Unauthorized", "Unauthorized");
        }
        if world.forbidden.iter().any(|kind| kind == plural) {
            return refused(
                403,
                "Forbidden",
                &format!("{plural} is forbidden: User \"x\" cannot list resource"),
            );
        }
        if world.absent.iter().any(|kind| kind == plural) {
            return refused(404, "NotFound", "the server could not find the requested resource");
        }
        // Lines are for a watch.
        if watching || !matches!(world.faults.front(), Some(Fault::Lines(_))) {
            world.faults.pop_front()
        } else {
            None
        }
    };
    match &fault {
        Some(Fault::Forbidden) => return refused(403, "Forbidden", "forbidden: RBAC caches are cold"),
        Some(Fault::Unauthorized) => return refused(401, "Unauthorized", "Unauthorized"),
        Some(Fault::Error) => return refused(500, "InternalError", "etcd leader changed"),
        Some(Fault::Silence) => return std::future::pending().await,
        Some(Fault::Hang) => {
            tokio::time::sleep(Duration::from_millis(700)).await;
            return refused(504, "Timeout", "timed out");
        }
        Some(Fault::Lines(lines)) if watching => return Body::from(lines.clone()).into_response(),
        _ => {}
    }
    if watching {
        watched(server, plural, query, fault)
    } else {
        listed(server, plural, query, fault.as_ref())
    }
}

fn matches(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let labels = &object["metadata"]["labels"];
    let wanted = query.get("labelSelector").map(String::as_str).unwrap_or_default();
    let labelled = wanted.split(',').filter(|term| !term.is_empty()).all(|term| match term.split_once('=') {
        Some((key, value)) => labels[key] == value,
        None => !labels[term].is_null(),
    });
    let named = query.get("fieldSelector").and_then(|fields| fields.strip_prefix("metadata.name="));
    labelled && named.is_none_or(|name| object["metadata"]["name"] == name)
}

fn listed(
    server: &ApiServer,
    plural: &str,
    query: &BTreeMap<String, String>,
    fault: Option<&Fault>,
) -> Response {
    let world = server.world.lock();
    let all = world.objects.get(plural).into_iter().flat_map(BTreeMap::values);
    let matching: Vec<_> = all.filter(|object| matches(object, query)).collect();
    let from: usize = query.get("continue").and_then(|token| token.parse().ok()).unwrap_or(0);
    let limit: usize = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    let end = from.saturating_add(limit).min(matching.len());
    let mut metadata = json!({"resourceVersion": world.version.to_string()});
    if end < matching.len() {
        metadata["continue"] = end.to_string().into();
    }
    let page = json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": matching[from.min(end)..end]});
    let mut text = page.to_string();
    if matches!(fault, Some(Fault::Cut | Fault::Garbage)) {
        text.truncate(text.len() / 2);
    }
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

struct Watching {
    server: ApiServer,
    plural: String,
    query: BTreeMap<String, String>,
    version: u64,
    changed: watch::Receiver<u64>,
    fault: Option<Fault>,
    over: bool,
}

fn watched(
    server: &ApiServer,
    plural: &str,
    query: &BTreeMap<String, String>,
    fault: Option<Fault>,
) -> Response {
    let version = query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
    let watching = Watching {
        server: server.clone(),
        plural: plural.to_owned(),
        query: query.clone(),
        version,
        changed: server.changed.subscribe(),
        fault,
        over: false,
    };
    let seconds: u64 = query.get("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(60);
    let lines = watching.lines().map(Ok::<_, Infallible>);
    let lines = lines.take_until(tokio::time::sleep(Duration::from_secs(seconds)));
    Body::from_stream(lines).into_response()
}

impl Watching {
    fn lines(self) -> impl Stream<Item = Bytes> {
        futures::stream::unfold(self, |mut this| async move {
            loop {
                if this.over {
                    return None;
                }
                let lines = this.step();
                if let Some(lines) = lines {
                    return Some((Bytes::from(lines), this));
                }
                if this.changed.changed().await.is_err() {
                    return None;
                }
            }
        })
    }

    /// Lines that are due; nothing while nothing happened.
    fn step(&mut self) -> Option<String> {
        let world = self.server.world.lock();
        if world.down {
            self.over = true;
            return Some(String::new());
        }
        if self.version < world.compacted {
            self.over = true;
            let error = status(
                410,
                "Expired",
                &format!("too old resource version: {} ({})", self.version, world.version),
            );
            return Some(format!("{}\n", json!({"type": "ERROR", "object": error})));
        }
        let mut lines = String::new();
        for (version, plural, before, after) in
            world.log.iter().filter(|(version, ..)| *version > self.version)
        {
            let was = before.as_ref().is_some_and(|object| matches(object, &self.query));
            let is = after.as_ref().is_some_and(|object| matches(object, &self.query));
            let (word, object) = match (was, is) {
                _ if *plural != self.plural => continue,
                (false, true) => ("ADDED", after),
                (true, true) => ("MODIFIED", after),
                (true, false) => ("DELETED", if after.is_some() { after } else { before }),
                (false, false) => continue,
            };
            let mut object = object.clone().unwrap();
            object["metadata"]["resourceVersion"] = version.to_string().into();
            lines.push_str(&format!("{}\n", json!({"type": word, "object": object})));
        }
        self.version = world.version;
        if lines.is_empty() {
            return None;
        }
        match self.fault.take() {
            Some(Fault::Cut) => {
                self.over = true;
                lines.truncate(lines.len() / 2);
            }
            Some(Fault::Garbage) => {
                let at = lines.find('\n').unwrap();
                lines.replace_range(at / 2..at, "\u{fffd}}{");
            }
            _ => {}
        }
        let bookmark = json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": self.version.to_string()}}});
        if self.query.get("allowWatchBookmarks").is_some_and(|wanted| wanted == "true") && !self.over {
            lines.push_str(&format!("{bookmark}\n"));
        }
        Some(lines)
    }
}
