//! A plane with keys and TLS, and callers of every kind.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvplane_access::{Access, CertificateKey, Keys, Role, Subject, Tls, TlsFiles, TokenKey};
use kvplane_ingest::{Plane, PlaneOptions};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Code;

use crate::parts::Parts;
use crate::service::{Options, Service};

/// Far beyond anything that should take: only a hang reaches it.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);

/// What a caller has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    None,
    WrongToken,
    /// A token, and a character that no token has.
    NotAscii,
    /// A token under another scheme.
    NotBearer,
    /// The scheme alone.
    Nothing,
    /// Two headers, with one token.
    Twice,
    Token(Role),
    Certificate(Role),
    /// Of an issuer that is trusted, for a name that has no role.
    OtherCertificate,
    /// A wrong token is wrong whatever else there is.
    WrongTokenWithCertificate,
}

impl Key {
    pub(super) const ALL: [Self; 16] = [
        Self::None,
        Self::WrongToken,
        Self::NotAscii,
        Self::NotBearer,
        Self::Nothing,
        Self::Twice,
        Self::Token(Role::Read),
        Self::Token(Role::Report),
        Self::Token(Role::Infer),
        Self::Token(Role::Admin),
        Self::Certificate(Role::Read),
        Self::Certificate(Role::Report),
        Self::Certificate(Role::Infer),
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

    fn headers(self) -> Vec<String> {
        match self {
            Self::WrongToken | Self::WrongTokenWithCertificate => vec!["Bearer nobody-s-token".to_owned()],
            Self::NotAscii => vec![format!("Bearer {}ä", token(Role::Admin))],
            Self::NotBearer => vec![format!("basic {}", token(Role::Admin))],
            Self::Nothing => vec!["Bearer ".to_owned()],
            Self::Twice => vec![format!("Bearer {}", token(Role::Admin)); 2],
            // In every way that it may be written.
            Self::Token(Role::Read) => vec![format!("Bearer {}", token(Role::Read))],
            Self::Token(Role::Report) => vec![format!("bearer {}", token(Role::Report))],
            Self::Token(Role::Infer) => vec![format!("Bearer {}", token(Role::Infer))],
            Self::Token(Role::Admin) => vec![format!("BEARER  {}", token(Role::Admin))],
            Self::None | Self::Certificate(_) | Self::OtherCertificate => Vec::new(),
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

/// A certificate and its key, as a client has them.
pub(super) type Shown = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// A year that certificates of tests do not reach.
pub(super) const LATER: i32 = 4096;

/// An authority that makes certificates.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate for a DNS name, and its key. Its common name differs.
    fn certificate(&self, name: &str, until: i32) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, format!("{name}-common"));
        params.not_after = date_time_ymd(until, 1, 1);
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    /// A certificate that a client shows, valid until the beginning of a year.
    pub(super) fn shown(&self, name: &str, until: i32) -> Shown {
        let (certificate, key) = self.certificate(name, until);
        (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }

    /// Writes what a server needs.
    pub(super) fn write_server(&self, directory: &Directory, name: &str) -> TlsFiles {
        let (certificate, key) = self.certificate(name, LATER);
        let files = TlsFiles {
            cert: directory.file("cert.pem"),
            key: directory.file("key.pem"),
            client_ca: Some(directory.file("ca.pem")),
        };
        write(&files.cert, &certificate.pem());
        write(&files.key, &key.serialize_pem());
        write(&directory.file("ca.pem"), &self.0.pem());
        files
    }

    /// What a client needs, which shows a certificate or none.
    pub(super) fn connector(&self, protocol: &str, shown: Option<Shown>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let identity = shown.map(|(certificate, key)| (vec![certificate], key));
        kvplane_transport::tls::connector(roots, identity, protocol).unwrap()
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
    pub(super) parts: Parts,
    pub(super) http: SocketAddr,
    pub(super) grpc: SocketAddr,
    pub(super) authority: Authority,
    pub(super) directory: Directory,
    pub(super) tls: Arc<Tls>,
    _stop: DropGuard,
}

impl Served {
    pub(super) async fn start() -> Self {
        Self::with(keys(), true).await
    }

    /// A plane without TLS, for callers who speak it all the same.
    pub(super) async fn plain() -> Self {
        Self::with(keys(), false).await
    }

    /// A plane where it is the address that counts.
    pub(super) async fn without_keys() -> Self {
        Self::with(Keys::default(), false).await
    }

    async fn with(keys: Keys, secure: bool) -> Self {
        let (authority, directory) = (Authority::new(), Directory::new());
        let tls = Arc::new(Tls::load(authority.write_server(&directory, "localhost")).unwrap());
        let access = Arc::new(Access::new(keys, false));
        let options = Options { access, tls: secure.then(|| tls.clone()), ..Options::default() };
        let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
        let service = Service::new(plane, options);
        let parts = service.parts();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = (http.local_addr().unwrap(), grpc.local_addr().unwrap());
        let stop = CancellationToken::new();
        tokio::spawn(service.run(http, grpc, stop.clone()));
        let (http, grpc) = addresses;
        Self { parts, http, grpc, authority, directory, tls, _stop: stop.drop_guard() }
    }

    /// A TLS connection of a caller with this key.
    async fn connect(&self, address: SocketAddr, protocol: &str, key: Key) -> TlsStream<TcpStream> {
        let shown = key.certificate().map(|name| self.authority.shown(&name, LATER));
        let connector = self.authority.connector(protocol, shown);
        let stream = TcpStream::connect(address).await.unwrap();
        connector.connect("localhost".try_into().unwrap(), stream).await.unwrap()
    }

    /// Waits until this many connections have failed so.
    pub(super) async fn until_failed(&self, port: &str, why: &str, times: u64) {
        let deadline = kvplane_runtime::now() + DEADLINE;
        loop {
            let failed = self.tls.failed();
            if failed.iter().any(|(of, reason, count)| (*of, *reason, *count) == (port, why, times)) {
                return;
            }
            assert!(kvplane_runtime::now() < deadline, "not {times} of {why} at {port}: {failed:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Asks for a page.
    pub(super) async fn page(&self, key: Key, method: &Method, path: &str) -> Answer {
        let stream = self.connect(self.http, "http/1.1", key).await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = headed(request, key).body(Full::new(Bytes::new())).unwrap();
        let asked = async {
            let (head, body) = sender.send_request(request).await.unwrap().into_parts();
            // One that goes on for ever has no body to compare.
            let is_endless = head.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
            let body = if is_endless { Bytes::new() } else { body.collect().await.unwrap().to_bytes() };
            Answer { status: head.status, headers: head.headers, body }
        };
        timeout(DEADLINE, asked).await.expect("an answer")
    }

    /// Calls a method with an empty message, and returns its status if that comes before any answer.
    pub(super) async fn call(&self, key: Key, path: &str) -> Option<Code> {
        call_over(self.connect(self.grpc, "h2", key).await, key, path).await
    }
}

fn headed(mut request: http::request::Builder, key: Key) -> http::request::Builder {
    for header in key.headers() {
        request = request.header("authorization", header);
    }
    request
}

/// Calls a method over a connection, as [`Served::call`].
pub(super) async fn call_over<S>(stream: S, key: Key, path: &str) -> Option<Code>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("https://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let request = headed(request, key).body(Full::new(Bytes::from_static(&[0; 5]))).unwrap();
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
