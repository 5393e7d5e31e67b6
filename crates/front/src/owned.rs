//! The handler of the calls that a front answers itself.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use tonic::body::Body;
use tower_service::Service;

type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Answers the calls that are not forwarded.
#[derive(Clone)]
pub struct OwnedCalls(Arc<dyn Fn(Request<Incoming>) -> Answer + Send + Sync>);

impl OwnedCalls {
    /// Calls answered by a function.
    pub fn new<F, A>(answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        Self(Arc::new(move |request| Box::pin(answer(request))))
    }

    /// Calls answered by a generated tonic server, or any service of that shape.
    pub fn service<S>(service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        Self::new(move |request: Request<Incoming>| {
            // Generated servers are ready at any time: their `poll_ready` is a constant.
            let answer = service.clone().call(request.map(Body::new));
            async move {
                match answer.await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
        })
    }

    pub(super) fn call(&self, request: Request<Incoming>) -> Answer {
        (self.0)(request)
    }
}

impl fmt::Debug for OwnedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedCalls").finish_non_exhaustive()
    }
}
