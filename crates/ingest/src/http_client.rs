//! Questions to engines' HTTP servers, each with a limit of time and size.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// A metrics page is some hundred kilobytes; what is larger is not one.
pub const MAX_PAGE: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// It was not asked.
    #[error("the address is none")]
    Address,
    /// There is no connection.
    #[error("nobody answers")]
    Unreachable,
    /// It takes too long.
    #[error("no answer in time")]
    Timeout,
    /// There is a part of it.
    #[error("the answer broke off, or is too large")]
    Body,
}

/// Asks engines. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HttpClient {
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Default for HttpClient {
    fn default() -> Self {
        Self::new()
    }
}

impl HttpClient {
    /// A client without connections.
    pub fn new() -> Self {
        // Engines close idle connections after 5 s: keep none that long.
        let client =
            Client::builder(TokioExecutor::new()).pool_idle_timeout(Duration::from_secs(4)).build_http();
        Self { client }
    }

    /// The status and at most `max` bytes of a page.
    pub async fn get(
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
