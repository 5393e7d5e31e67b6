//! A message that is too large, answered as gRPC wants it.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::TryFutureExt as _;
use futures::future::MapOk;
use http::{HeaderValue, Request, Response};
use kvplane_metrics::hint_counters::Refusal;
use tonic::body::Body;
use tonic::server::NamedService;
use tower_service::Service;

use super::Hints;

/// The header with the status of a call that was refused at once.
const STATUS: &str = "grpc-status";
/// What tonic says of a message above its limit; nothing else here does.
const OUT_OF_RANGE: &str = "11";
/// What gRPC says of it.
const RESOURCE_EXHAUSTED: &str = "8";

/// A service whose messages have a limit.
#[derive(Debug, Clone)]
pub(crate) struct Bounded<S> {
    service: S,
    hints: Arc<Hints>,
}

impl<S> Bounded<S> {
    pub(crate) fn new(service: S, hints: Arc<Hints>) -> Self {
        Self { service, hints }
    }
}

impl<S: NamedService> NamedService for Bounded<S> {
    const NAME: &'static str = S::NAME;
}

type Rewrite = Box<dyn FnOnce(Response<Body>) -> Response<Body> + Send>;

impl<S> Service<Request<Body>> for Bounded<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = MapOk<S::Future, Rewrite>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let hints = self.hints.clone();
        self.service.call(request).map_ok(Box::new(move |mut response| {
            if let Some(status) = response.headers_mut().get_mut(STATUS)
                && status.as_bytes() == OUT_OF_RANGE.as_bytes()
            {
                *status = HeaderValue::from_static(RESOURCE_EXHAUSTED);
                hints.counters.refused.count(Refusal::Oversized);
            }
            response
        }))
    }
}
