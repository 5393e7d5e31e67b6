//! Questions to engines' HTTP servers, each with a limit of time and size.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    #[error("the address is none")]
    Address,
    #[error("nobody answers")]
    Unreachable,
    #[error("no answer in time")]
    Timeout,
    #[error("the answer broke off, or is too large")]
    Body,
}

/// Asks engines. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl HttpClient {
    pub(crate) fn new() -> Self {
        // Engines close idle connections after 5 s: keep none that long.
        let client =
            Client::builder(TokioExecutor::new()).pool_idle_timeout(Duration::from_secs(4)).build_http();
        Self { client }
    }

    /// The status and at most `max` bytes of a page.
    pub(crate) async fn get(
        &self,
        base: &str,
        path: &str,
        max: usize,
        deadline: Duration,
    ) -> Result<(StatusCode, Bytes), NoAnswer> {
        let page = async {
            let address = format!("{}{path}", base.trim_end_matches('/'));
            let address = address.parse().map_err(|_| NoAnswer::Address)?;
            let response = self.client.get(address).await.map_err(|_| NoAnswer::Unreachable)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), max).collect().await.map_err(|_| NoAnswer::Body)?;
            Ok((status, body.to_bytes()))
        };
        tokio::time::timeout(deadline, page).await.unwrap_or(Err(NoAnswer::Timeout))
    }
}
