//! A plane to follow.

use std::time::Duration;

use kvplane_proto::Bearer;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::admin_client::AdminClient;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use kvplane_proto::kvplane::v1::routing_client::RoutingClient;
use tonic::Code;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint, Identity};

use crate::error::ClientError;
use crate::following::Following;
use crate::options::{Options, Selection};

/// How often a quiet connection is tested, and how long the answer may take: a plane whose machine vanished
/// says nothing.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(5);

/// A connection that sends the token that the plane wants.
type Keyed = InterceptedService<Channel, Bearer>;

/// Calls to a plane, with the token that it wants.
pub type Calls = PlaneClient<Keyed>;

/// Operations on a plane's engines, with the token that it wants.
pub type Operations = AdminClient<Keyed>;

/// Decisions of a plane, and reports of what came of them, with the token that it wants.
pub type Routes = RoutingClient<Keyed>;

/// A client of one plane. Cheap to clone; all that it starts shares one connection.
#[derive(Debug, Clone)]
pub struct Client {
    plane: Calls,
    operations: Operations,
    routes: Routes,
    options: Options,
}

impl Client {
    /// Connects to a plane's gRPC address (`http://host:port` or `https://host:port`), and asks it something:
    /// an error says that nobody, or somebody else, answers there.
    pub async fn connect(url: &str, options: Options) -> Result<Self, ClientError> {
        let client = Self::lazy(url, options)?;
        let mut request = tonic::Request::new(proto::StatusRequest::default());
        request.set_timeout(client.options.answer_within);
        client.plane.clone().status(request).await.map_err(|status| {
            let (url, reason) = (url.to_owned(), reason(&status));
            match status.code() {
                Code::Unauthenticated | Code::PermissionDenied => ClientError::Refused { url, reason },
                _ => ClientError::Unreachable { url, reason },
            }
        })?;
        Ok(client)
    }

    /// A client of a plane that need not be there yet.
    pub fn lazy(url: &str, options: Options) -> Result<Self, ClientError> {
        let channel = endpoint(url, &options)?.connect_lazy();
        let keyed = InterceptedService::new(channel, options.bearer.clone());
        let plane = PlaneClient::new(keyed.clone()).max_decoding_message_size(options.message_bytes);
        let operations = AdminClient::new(keyed.clone()).max_decoding_message_size(options.message_bytes);
        let routes = RoutingClient::new(keyed).max_decoding_message_size(options.message_bytes);
        Ok(Self { plane, operations, routes, options })
    }

    /// Calls of one's own, over the same connection.
    pub fn calls(&self) -> Calls {
        self.plane.clone()
    }

    /// Operations on the plane's engines, over the same connection.
    pub fn operations(&self) -> Operations {
        self.operations.clone()
    }

    /// Decisions and reports, over the same connection.
    pub fn routes(&self) -> Routes {
        self.routes.clone()
    }

    /// Where a prompt should go: books the best endpoint, unless the request says otherwise.
    pub async fn pick(&self, request: proto::PickRequest) -> Result<proto::PickResponse, tonic::Status> {
        let mut request = tonic::Request::new(request);
        request.set_timeout(self.options.answer_within);
        Ok(self.routes.clone().pick(request).await?.into_inner())
    }

    /// How far a request is, or what was delivered.
    pub async fn report(
        &self,
        report: proto::DeliveryReport,
    ) -> Result<proto::DeliveryAccount, tonic::Status> {
        let mut request = tonic::Request::new(report);
        request.set_timeout(self.options.answer_within);
        Ok(self.routes.clone().report(request).await?.into_inner())
    }

    /// Follows streams until the result is closed or dropped. Needs a tokio runtime.
    pub fn follow(&self, selection: Selection) -> Following {
        Following::start(self.plane.clone(), selection, self.options.clone())
    }
}

/// A server's gRPC address with the bounds and the TLS of these options, to be connected to. A token is not
/// part of it.
pub fn endpoint(url: &str, options: &Options) -> Result<Endpoint, ClientError> {
    let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let wrong = |_| ClientError::Address { url: url.to_owned() };
    let endpoint = Endpoint::from_shared(with_scheme)
        .map_err(wrong)?
        .connect_timeout(options.answer_within)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_WITHIN)
        .keep_alive_while_idle(true);
    if !url.starts_with("https://") {
        return Ok(endpoint);
    }
    let refused = |error| ClientError::Tls { url: url.to_owned(), reason: format!("{error:?}") };
    endpoint.tls_config(tls(options)).map_err(refused)
}

fn tls(options: &Options) -> ClientTlsConfig {
    let config = kvplane_transport::grpc::tls(options.ca.as_deref());
    match &options.certificate {
        Some((certificate, key)) => config.identity(Identity::from_pem(certificate, key)),
        None => config,
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
    if text.contains("InvalidContentType") {
        // The TLS library's words for an answer that is not TLS.
        return "the server does not use TLS: use http".to_owned();
    }
    if text.is_empty() { status.code().to_string() } else { text }
}
