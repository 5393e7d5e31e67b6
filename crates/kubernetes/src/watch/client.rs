//! The connection to the API server, with bounds on what it may send and how often it is asked.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// A service account's files.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// One page of a list: 250 pods of 100 KiB.
const MAX_PAGE: usize = 32 << 20;
/// One line of a watch: etcd takes no object of more than 1.5 MiB.
const MAX_LINE: usize = 4 << 20;
/// A request is not sent sooner after the one before it: a server that ends every watch at once is not asked
/// without end.
const SPACING: Duration = Duration::from_millis(50);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How patient a source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The first pause after a failure. It doubles with each, up to fifty of them.
    pub pause: Duration,
    /// Seconds that one watch lasts.
    pub watch: u32,
    /// How long an answer may take to begin, and a watch to end after its time: then the server does not
    /// answer, or the connection died without a word.
    pub patience: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { pause: Duration::from_millis(400), watch: 60, patience: Duration::from_secs(15) }
    }
}

/// How the API server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// By the service account of the pod that this runs in: `https://host:port`.
    InCluster {
        /// The API server.
        server: String,
    },
    /// By a file such as `~/.kube/config`.
    Kubeconfig {
        /// The file.
        file: PathBuf,
        /// The context in it; the current one when absent.
        context: Option<String>,
    },
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}")]
pub struct ClientError {
    what: String,
    error: String,
}

impl ClientError {
    fn new(what: impl Into<String>, error: &impl ToString) -> Self {
        Self { what: what.into(), error: error.to_string() }
    }
}

/// How the last watch request went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pulse {
    /// Watches that were accepted.
    pub(crate) accepted: u64,
}

/// A client, and how its watches go.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) client: Client,
    pub(crate) pulse: watch::Receiver<Pulse>,
    pub(crate) namespace: String,
    pub(crate) pace: Pace,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InCluster { server } => f.write_str(server),
            Self::Kubeconfig { file, .. } => write!(f, "{}", file.display()),
        }
    }
}

impl Way {
    /// A client as the files say now: certificates and kubeconfig are read, a token again every minute.
    pub(crate) async fn connect(&self, pace: Pace) -> Result<Api, ClientError> {
        let mut config = match self {
            Self::InCluster { server } => in_cluster(server).await?,
            Self::Kubeconfig { file, context } => {
                let read = Kubeconfig::read_from(file);
                let kubeconfig =
                    read.map_err(|error| ClientError::new(file.display().to_string(), &error))?;
                let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
                let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
                config.map_err(|error| ClientError::new(file.display().to_string(), &error))?
            }
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(Duration::from_secs(pace.watch.into()) + pace.patience);
        // It would try again for minutes on 429, 503 and 504, and nobody would know that the server is away.
        config.default_retry = false;
        let namespace = config.default_namespace.clone();
        let builder = ClientBuilder::try_from(config).map_err(|error| ClientError::new("client", &error))?;
        let (pulse, beats) = watch::channel(Pulse::default());
        let pulse = Arc::new(pulse);
        let next = Arc::new(Mutex::new(Instant::now()));
        let patience = pace.patience;
        let layer = tower::layer::layer_fn(move |inner| Bounded {
            inner,
            pulse: pulse.clone(),
            next: next.clone(),
            patience,
        });
        Ok(Api { client: builder.with_layer(&layer).build(), pulse: beats, namespace, pace })
    }
}

/// The pod's own account. Its token is not kept: the file is read again.
async fn in_cluster(server: &str) -> Result<Config, ClientError> {
    let uri = server.parse().map_err(|error: http::uri::InvalidUri| ClientError::new(server, &error))?;
    let mut config = Config::new(uri);
    // Read again, too: an authority may be replaced.
    config.root_cert_file = Some(PathBuf::from(ACCOUNT).join("ca.crt"));
    config.auth_info.token_file = Some(format!("{ACCOUNT}/token"));
    let path = PathBuf::from(ACCOUNT).join("namespace");
    let named = path.display().to_string();
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await;
    let read = read.map_err(|error| ClientError::new(&named, &error))?;
    let namespace = read.map_err(|error| ClientError::new(named, &error))?;
    namespace.trim().clone_into(&mut config.default_namespace);
    Ok(config)
}

/// Bounds answers, spaces requests, and counts watches that were accepted.
#[derive(Clone)]
struct Bounded<S> {
    inner: S,
    pulse: Arc<watch::Sender<Pulse>>,
    next: Arc<Mutex<Instant>>,
    patience: Duration,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl<S, R, B> tower::Service<Request<R>> for Bounded<S>
where
    S: tower::Service<Request<R>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    R: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<BoundedBody<B>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let lines = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let pulse = self.pulse.clone();
        let at = {
            let mut next = self.next.lock();
            let at = (*next).max(Instant::now());
            *next = at + SPACING;
            at
        };
        let answer = self.inner.call(request);
        let patience = self.patience;
        Box::pin(async move {
            tokio::time::sleep_until(at).await;
            let response = tokio::time::timeout(patience, answer).await;
            let response =
                response.map_err(|_| format!("no answer within {patience:?}"))?.map_err(Into::into)?;
            if lines && response.status().is_success() {
                pulse.send_modify(|pulse| pulse.accepted += 1);
            }
            let limit = if lines { MAX_LINE } else { MAX_PAGE };
            Ok(response.map(|body| BoundedBody { body, lines, limit, taken: 0 }))
        })
    }
}

/// A body that ends with an error where an answer, or a line of a watch, is too long.
#[derive(Debug)]
struct BoundedBody<B> {
    body: B,
    lines: bool,
    limit: usize,
    taken: usize,
}

impl<B> Body for BoundedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => frame,
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => return Poll::Pending,
        };
        if let Some(data) = frame.data_ref() {
            self.taken = match data.iter().rposition(|byte| *byte == b'\n').filter(|_| self.lines) {
                Some(end) => data.len() - end - 1,
                None => self.taken + data.len(),
            };
            if self.taken > self.limit {
                let what = if self.lines { "a line" } else { "an answer" };
                let error = format!("the API server sent {what} of more than {} bytes", self.limit);
                return Poll::Ready(Some(Err(error.into())));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
