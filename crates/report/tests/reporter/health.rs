//! A health service whose streams end when a test says so, as a proxy ends those on which nothing is said.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

/// What tests see and say.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// How many were asked for.
    asked: watch::Sender<usize>,
    /// Those up to this number have ended.
    ended: watch::Sender<usize>,
    refused: AtomicBool,
}

impl Streams {
    pub(crate) fn asked(&self) -> usize {
        *self.asked.borrow()
    }

    pub(crate) async fn until_asked(&self, times: usize) {
        let mut asked = self.asked.subscribe();
        let wait = asked.wait_for(|asked| *asked >= times);
        tokio::time::timeout(crate::script::DEADLINE, wait).await.expect("never asked again").unwrap();
    }

    /// Ends those that there are.
    pub(crate) fn end(&self) {
        self.ended.send_replace(self.asked());
    }

    /// Whether there are to be no more.
    pub(crate) fn refuse(&self, refused: bool) {
        self.refused.store(refused, Ordering::SeqCst);
    }
}

#[derive(Debug, Clone)]
pub(crate) struct HealthScript(pub(crate) Arc<Streams>);

#[tonic::async_trait]
impl Health for HealthScript {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let refused = self.0.refused.load(Ordering::SeqCst);
        let mut number = 0;
        self.0.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        if refused {
            return Err(Status::unavailable("no server"));
        }
        let serving = HealthCheckResponse { status: ServingStatus::Serving.into() };
        let mut ended = self.0.ended.subscribe();
        let end = async move {
            // Nobody to end it is an end, too.
            let _ = ended.wait_for(|ended| *ended >= number).await;
        };
        // It is said at least once.
        let silence = stream::pending().take_until(end);
        Ok(Response::new(stream::iter([Ok(serving)]).chain(silence).boxed()))
    }
}
