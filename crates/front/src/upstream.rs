//! The engine, as something to call: its connections, and one call from head to body.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Request, Response};
use http_body::Body;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tower_service::Service;
use tracing::{debug, info, warn};

use super::body::{Call, UpstreamBody};
use super::counters::{FrontCounters, add};
use super::link::{Link, Place};
use super::outage::Outage;
use super::pump::{BoxError, Pump};
use super::target::Target;

/// Connections to one engine. More than one is needed only where the engine limits the calls on each.
const LINKS_MAX: usize = 32;

/// A connection beyond the first is given up after this time without a call.
const LINK_IDLE_MAX: Duration = Duration::from_mins(1);

/// The engine's gRPC server. Clones share their connections.
///
/// It is a tower service, so a generated tonic client runs on it. It is always ready; an engine that is away
/// is a response with status `UNAVAILABLE`.
#[derive(Debug, Clone)]
pub struct Upstream(Arc<Inner>);

/// The engine reset the call, with the reason that is in the source.
#[derive(Debug, thiserror::Error)]
#[error("the engine reset the call")]
pub struct UpstreamReset(#[source] pub(super) h2::Error);

#[derive(Debug)]
struct Inner {
    target: Target,
    links: Mutex<Links>,
    counters: Arc<FrontCounters>,
}

#[derive(Debug, Default)]
struct Links {
    /// Filled from the front, so that the rest falls idle.
    open: Vec<Link>,
    /// The dial that is going on: at most one; calls that need a connection meanwhile wait for it.
    dial: Option<watch::Receiver<Dial>>,
    outage: Outage,
}

#[derive(Debug, Clone)]
enum Dial {
    Pending,
    Connected,
    Failed(Arc<str>),
}

type Entered = (SendRequest<Bytes>, Place);

// === impl Upstream ===

impl Upstream {
    pub(super) fn new(target: Target, counters: Arc<FrontCounters>) -> Self {
        Self(Arc::new(Inner { target, links: Mutex::default(), counters }))
    }

    /// Makes one call. The scheme and the host of the request do not matter.
    pub async fn call<B>(&self, request: Request<B>) -> Result<Response<UpstreamBody>, UpstreamReset>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let head = match self.0.target.head(parts) {
            Ok(head) => head,
            Err(error) => return Ok(Status::invalid_argument(format!("request: {error}")).into_http()),
        };
        let (mut send, place) = match self.enter().await {
            Ok(entered) => entered,
            Err(why) => return Ok(self.unavailable(&why)),
        };
        let end = body.is_end_stream();
        let (mut response, stream) = match send.send_request(head, end) {
            Ok(sent) => sent,
            Err(error) => {
                if error.is_io() || error.is_go_away() {
                    place.condemn();
                }
                return self.failed(error);
            }
        };
        // For a call whose request is sent before the response begins, which is most of them, this needs no
        // task.
        let mut pump = (!end).then(|| Pump::new(body, stream));
        let response = poll_fn(|cx| {
            if let Some(pumping) = &mut pump
                && Pin::new(pumping).poll(cx).is_ready()
            {
                pump = None;
            }
            Pin::new(&mut response).poll(cx)
        });
        match response.await {
            Ok(response) => {
                let (head, stream) = response.into_parts();
                // A task of its own, not a part of the response's body: a client that does not read yet may
                // send.
                let pump =
                    pump.map(|pump| AbortOnDropHandle::new(kvplane_runtime::spawn("front: upload", pump)));
                let call = Call::new(self.0.counters.clone(), place, pump);
                let body = UpstreamBody::new(&head.headers, stream, call);
                Ok(Response::from_parts(head, body))
            }
            Err(error) => self.failed(error),
        }
    }

    /// A place on a connection that is alive as far as anybody knows.
    async fn enter(&self) -> Result<Entered, Arc<str>> {
        let first = match self.try_enter()? {
            Ok(entered) => return Ok(entered),
            Err(dial) => dial,
        };
        // One dial is bounded by itself; this bounds a row of them.
        let limit = self.0.target.connect_timeout * 2;
        match timeout(limit, Box::pin(self.enter_after(first))).await {
            Ok(entered) => entered,
            Err(_) => Err(format!("no connection within {limit:?}").into()),
        }
    }

    async fn enter_after(&self, mut dial: watch::Receiver<Dial>) -> Result<Entered, Arc<str>> {
        loop {
            let end = dial.wait_for(|dial| !matches!(dial, Dial::Pending)).await.map(|end| end.clone());
            match end {
                Ok(Dial::Failed(why)) => return Err(why),
                Ok(_) => {}
                Err(_) => return Err("the dial was given up".into()),
            }
            match self.try_enter()? {
                Ok(entered) => return Ok(entered),
                Err(next) => dial = next,
            }
        }
    }

    /// A place, or the dial to wait for.
    fn try_enter(&self) -> Result<Result<Entered, watch::Receiver<Dial>>, Arc<str>> {
        let mut links = self.0.links.lock();
        let mut index = 0;
        links.open.retain(|link| {
            index += 1;
            !link.is_closed() && (index == 1 || !link.is_idle_for(LINK_IDLE_MAX))
        });
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        for link in &mut links.open {
            if let Some((mut send, place)) = link.enter() {
                // Known at once, since a clone has no call of its own that it would have to wait for.
                match send.poll_ready(cx) {
                    Poll::Ready(Err(_)) => place.condemn(),
                    _ => return Ok(Ok((send, place))),
                }
            }
        }
        if let Some(dial) = &links.dial {
            return Ok(Err(dial.clone()));
        }
        if links.open.len() >= LINKS_MAX {
            return Err("as many calls as the engine takes are going on".into());
        }
        let (done, dial) = watch::channel(Dial::Pending);
        links.dial = Some(dial.clone());
        // A task, since the call that needs it may be cancelled while others wait. Bounded by the connect
        // timeout.
        kvplane_runtime::spawn("front: connect", self.clone().dial(done));
        Ok(Err(dial))
    }

    async fn dial(self, done: watch::Sender<Dial>) {
        let Inner { target, links, counters } = &*self.0;
        let dialled = Link::dial(target).await;
        let mut links = links.lock();
        let end = match &dialled {
            Ok(_) => {
                add(&counters.connects);
                match links.outage.over() {
                    0 => debug!(host = target.host, port = target.port, "connected to the engine"),
                    failures => {
                        info!(host = target.host, port = target.port, failures, "engine reached again");
                    }
                }
                Dial::Connected
            }
            Err(error) => {
                add(&counters.connect_failures);
                if let Some(suppressed) = links.outage.failed(Instant::now()) {
                    warn!(host = target.host, port = target.port, %error, suppressed, "engine not reached");
                }
                Dial::Failed(format!("{error}").into())
            }
        };
        links.open.extend(dialled.ok());
        links.dial = None;
        drop(links);
        done.send_replace(end);
    }

    /// A call that ended without a response.
    fn failed(&self, error: h2::Error) -> Result<Response<UpstreamBody>, UpstreamReset> {
        if error.is_reset() { Err(UpstreamReset(error)) } else { Ok(self.unavailable(&error.to_string())) }
    }

    fn unavailable(&self, why: &str) -> Response<UpstreamBody> {
        add(&self.0.counters.unavailable);
        Status::unavailable(format!("the engine cannot be reached: {why}")).into_http()
    }
}

impl<B> Service<Request<B>> for Upstream
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<UpstreamBody>;
    type Error = UpstreamReset;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), UpstreamReset>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let upstream = self.clone();
        Box::pin(async move { Upstream::call(&upstream, request).await })
    }
}
