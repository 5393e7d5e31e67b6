//! A plane with keys and TLS, and callers of every kind.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvplane_ingest::{Plane, PlaneOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Code;

use crate::auth::{Access, CertificateKey, Keys, Role, Subject, TokenKey};
use crate::listen::{Tls, TlsFiles};
use crate::service::{Options, Service, Shared};

/// Far beyond anything that should take: only a hang reaches it.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);

/// What a caller has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    None,
    WrongToken,
    NotBearer,
    Token(Role),
    Certificate(Role),
    /// Of an issuer that is trusted, for a name that has no role.
    OtherCertificate,
    /// A wrong token is wrong whatever else there is.
    WrongTokenWithCertificate,
}

impl Key {
    pub(super) const ALL: [Self; 11] = [
        Self::None,
        Self::WrongToken,
        Self::NotBearer,
        Self::Token(Role::Read),
        Self::Token(Role::Report),
        Self::Token(Role::Admin),
        Self::Certificate(Role::Read),
        Self::Certificate(Role::Report),
        Self::Certificate(Role::Admin),
        Self::OtherCertificate,
        Self::WrongTokenWithCertificate,
    ];

    pub(super) fn role(self) -> Option<Role> {
        match self {
            Self::Token(role) | Self::Certificate(role) => Some(role),
            _ => None,
        }
    }

    fn header(self) -> Option<String> {
        match self {
            Self::WrongToken | Self::WrongTokenWithCertificate => Some("Bearer nobody-s-token".to_owned()),
            Self::NotBearer => Some("Basic YTpi".to_owned()),
            Self::Token(role) => Some(format!("bearer {}", token(role))),
            _ => None,
        }
    }

    /// The name on the certificate.
    fn certificate(self) -> Option<String> {
        match self {
            Self::Certificate(role) => Some(role.to_string()),
            Self::OtherCertificate => Some("other".to_owned()),
            Self::WrongTokenWithCertificate => Some("admin".to_owned()),
            _ => None,
        }
    }
}

pub(super) fn token(role: Role) -> String {
    format!("{role}-token-of-a-test")
}

/// A directory that goes with the test.
pub(super) struct Directory(pub(super) PathBuf);

impl Directory {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kvplane-auth-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An authority that makes certificates.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate for a DNS name, and its key. The name is also its common name.
    pub(super) fn certificate(&self, name: &str) -> (CertificateDer<'static>, String, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, format!("{name}-common"));
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.der().clone(), certificate.pem(), key)
    }

    /// Writes what a server needs.
    pub(super) fn write_server(&self, directory: &Directory, name: &str) -> TlsFiles {
        let (_, pem, key) = self.certificate(name);
        let files = TlsFiles {
            cert: directory.file("cert.pem"),
            key: directory.file("key.pem"),
            client_ca: Some(directory.file("ca.pem")),
        };
        write(&files.cert, &pem);
        write(&files.key, &key.serialize_pem());
        write(&directory.file("ca.pem"), &self.0.pem());
        files
    }

    /// What a client needs, which shows a certificate if it has a name.
    pub(super) fn connector(&self, protocol: &str, name: Option<&str>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let (certificate, _, key) = self.certificate(name);
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        TlsConnector::from(Arc::new(config))
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

/// What a page answers.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// A plane without engines, with a token and a certificate for every role, behind TLS.
pub(super) struct Served {
    pub(super) shared: Arc<Shared>,
    pub(super) http: SocketAddr,
    pub(super) grpc: SocketAddr,
    pub(super) authority: Authority,
    pub(super) directory: Directory,
    pub(super) tls: Arc<Tls>,
    _stop: DropGuard,
}

impl Served {
    pub(super) async fn start() -> Self {
        let (authority, directory) = (Authority::new(), Directory::new());
        let tls = Arc::new(Tls::load(authority.write_server(&directory, "localhost")).unwrap());
        let access = Arc::new(Access::new(keys(), false));
        let options = Options { access, tls: Some(tls.clone()), ..Options::default() };
        let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
        let service = Service::new(plane, options);
        let shared = service.shared();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = (http.local_addr().unwrap(), grpc.local_addr().unwrap());
        let stop = CancellationToken::new();
        tokio::spawn(service.run(http, grpc, stop.clone()));
        let (http, grpc) = addresses;
        Self { shared, http, grpc, authority, directory, tls, _stop: stop.drop_guard() }
    }

    /// A TLS connection of a caller with this key.
    async fn connect(&self, address: SocketAddr, protocol: &str, key: Key) -> TlsStream<TcpStream> {
        let connector = self.authority.connector(protocol, key.certificate().as_deref());
        let stream = TcpStream::connect(address).await.unwrap();
        connector.connect("localhost".try_into().unwrap(), stream).await.unwrap()
    }

    /// Asks for a page.
    pub(super) async fn page(&self, key: Key, method: &Method, path: &str) -> Answer {
        let stream = self.connect(self.http, "http/1.1", key).await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if let Some(header) = key.header() {
            request = request.header("authorization", header);
        }
        let request = request.body(Full::new(Bytes::new())).unwrap();
        let asked = async {
            let (head, body) = sender.send_request(request).await.unwrap().into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            Answer { status: head.status, headers: head.headers, body }
        };
        timeout(DEADLINE, asked).await.expect("an answer")
    }

    /// Calls a method with an empty message, and returns its status if that comes before any answer.
    pub(super) async fn call(&self, key: Key, path: &str) -> Option<Code> {
        call_over(self.connect(self.grpc, "h2", key).await, key, path).await
    }
}

/// Calls a method over a connection, as [`Served::call`].
pub(super) async fn call_over<S>(stream: S, key: Key, path: &str) -> Option<Code>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(format!("https://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(header) = key.header() {
        request = request.header("authorization", header);
    }
    let request = request.body(Full::new(Bytes::from_static(&[0; 5]))).unwrap();
    let response = timeout(DEADLINE, sender.send_request(request)).await.expect("an answer").unwrap();
    let status = response.headers().get("grpc-status")?.to_str().unwrap();
    Some(Code::from_i32(status.parse().unwrap()))
}

/// A token and a certificate for every role.
pub(super) fn keys() -> Keys {
    let tokens = Role::ALL.map(|role| TokenKey::new(role.as_str(), role, &token(role)).unwrap());
    let certificates = Role::ALL.map(|role| {
        let name = role.to_string();
        // One of them by its other name.
        let subject = if role == Role::Report {
            Subject::CommonName(format!("{name}-common"))
        } else {
            Subject::San(name)
        };
        CertificateKey { name: role.as_str().into(), role, subject }
    });
    Keys::new(tokens.into(), certificates.into()).unwrap()
}
