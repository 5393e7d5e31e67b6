//! Where the engine is, and how to get there: everything that is known before the first dial.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Uri, Version, request};
use kvplane_access::pem;
use kvplane_transport::tls;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::ServerName;

/// Headers that are about one connection and not allowed in HTTP/2, besides `te`.
const HOP: [HeaderName; 5] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Why there is no front with these options.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The address is not one of a gRPC server.
    #[error("upstream {uri} is not http://host:port or https://host:port: {why}")]
    Upstream {
        /// What was given.
        uri: Uri,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The service cannot be one.
    #[error("service {0:?} is not the full name of a gRPC service, such as vllm.grpc.engine.VllmEngine")]
    Service(String),
    /// The certificates cannot be used.
    #[error("certificates of {path}: {why}")]
    Ca {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The TLS library refused its configuration.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// Whether a server can be dialled at an address. Reads certificates.
pub fn check_upstream(uri: &Uri, ca: Option<&Path>) -> Result<(), FrontError> {
    Target::new(uri, ca, Duration::ZERO).map(drop)
}

/// The engine's address, taken apart.
#[derive(Debug)]
pub(super) struct Target {
    scheme: Scheme,
    authority: Authority,
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: Option<Tls>,
    pub(super) connect_timeout: Duration,
}

/// What a TLS handshake needs.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) connector: TlsConnector,
    pub(super) name: ServerName<'static>,
}

// === impl Target ===

impl Target {
    pub(super) fn new(uri: &Uri, ca: Option<&Path>, connect_timeout: Duration) -> Result<Self, FrontError> {
        let wrong = |why| FrontError::Upstream { uri: uri.clone(), why };
        let scheme = uri.scheme().cloned().ok_or_else(|| wrong("no scheme"))?;
        let authority = uri.authority().cloned().ok_or_else(|| wrong("no host"))?;
        let secure = scheme == Scheme::HTTPS;
        if !secure && scheme != Scheme::HTTP {
            return Err(wrong("another scheme"));
        }
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(wrong("a path"));
        }
        if authority.as_str().contains('@') {
            return Err(wrong("a user"));
        }
        if ca.is_some() && !secure {
            return Err(wrong("certificates without https"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let tls = if secure {
            let name = ServerName::try_from(host.clone()).map_err(|_| wrong("no name for a certificate"))?;
            Some(Tls { connector: connector(ca)?, name })
        } else {
            None
        };
        Ok(Self { scheme, authority, host, port, tls, connect_timeout })
    }

    /// The head of the engine's request, made of the client's: all of its headers but those of the hop.
    pub(super) fn head(&self, client: request::Parts) -> Result<Request<()>, http::Error> {
        let path = client.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()?;
        let mut head = Request::new(());
        *head.method_mut() = client.method;
        *head.uri_mut() = uri;
        *head.version_mut() = Version::HTTP_2;
        *head.headers_mut() = client.headers;
        strip_hop(head.headers_mut());
        Ok(head)
    }
}

fn strip_hop(headers: &mut HeaderMap) {
    // The engine's own name is in `:authority`.
    headers.remove(HOST);
    for name in &HOP {
        headers.remove(name);
    }
    // The one value that HTTP/2 allows, and that gRPC servers ask for.
    if headers.get(TE).is_some_and(|te| te != "trailers") {
        headers.remove(TE);
    }
}

fn connector(ca: Option<&Path>) -> Result<TlsConnector, FrontError> {
    let roots = match ca {
        Some(path) => pem::roots(path).map_err(|why| FrontError::Ca { path: path.to_owned(), why })?,
        None => tls::public_roots(),
    };
    Ok(tls::connector(roots, None, "h2")?)
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}
