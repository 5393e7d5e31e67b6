//! A plane to follow.

use std::time::Duration;

use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use tonic::transport::{Channel, Endpoint};

use crate::error::ClientError;
use crate::following::Following;
use crate::options::{Options, Selection};

/// How often a quiet connection is tested, and how long the answer may take: a plane whose machine vanished says nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(5);

/// A client of one plane. Cheap to clone; all that it starts shares one connection.
#[derive(Debug, Clone)]
pub struct Client {
    plane: PlaneClient<Channel>,
    options: Options,
}

impl Client {
    /// Connects to a plane's gRPC address (`http://host:port`), and asks it something: an error says that nobody, or
    /// somebody else, answers there.
    pub async fn connect(url: &str, options: Options) -> Result<Self, ClientError> {
        let client = Self::lazy(url, options)?;
        let mut request = tonic::Request::new(proto::StatusRequest::default());
        request.set_timeout(client.options.answer_within);
        client
            .plane
            .clone()
            .status(request)
            .await
            .map_err(|status| ClientError::Unreachable { url: url.to_owned(), reason: reason(&status) })?;
        Ok(client)
    }

    /// A client of a plane that need not be there yet.
    pub fn lazy(url: &str, options: Options) -> Result<Self, ClientError> {
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let endpoint = Endpoint::from_shared(with_scheme)
            .map_err(|_| ClientError::Address { url: url.to_owned() })?
            .connect_timeout(options.answer_within)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_WITHIN)
            .keep_alive_while_idle(true);
        let plane =
            PlaneClient::new(endpoint.connect_lazy()).max_decoding_message_size(options.message_bytes);
        Ok(Self { plane, options })
    }

    /// Follows streams until the result is closed or dropped. Needs a tokio runtime.
    pub fn follow(&self, selection: Selection) -> Following {
        Following::start(self.plane.clone(), selection, self.options.clone())
    }
}

/// What a status says, without the layers around it.
pub(crate) fn reason(status: &tonic::Status) -> String {
    let mut source = std::error::Error::source(status);
    let mut text = status.message().to_owned();
    while let Some(error) = source {
        text = error.to_string();
        source = error.source();
    }
    if text.is_empty() { status.code().to_string() } else { text }
}
