//! TLS of the listeners: certificates from files, which can be read again while running.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, ServerConfig};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::auth::{Identity, Port};
use crate::pem;

/// Where certificates are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Our certificate and those of its issuers (PEM).
    pub cert: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
    /// Issuers of clients' certificates (PEM). Clients may have one, and need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

/// Why there is no TLS with these files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be used.
    #[error("{key}: {path}: {why}")]
    File {
        /// Which key names it.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The TLS library refused the certificates.
    #[error("the certificate cannot be used: {0}")]
    Refused(#[from] rustls::Error),
    /// No certificate could be made.
    #[error("no certificate could be made: {0}")]
    NotMade(#[from] rcgen::Error),
}

/// TLS of all listeners of a plane.
pub struct Tls {
    /// Absent where the certificate was made here.
    files: Option<TlsFiles>,
    current: RwLock<Acceptors>,
    failures: [[AtomicU64; Failure::NAMES.len()]; Port::ALL.len()],
}

#[derive(Clone)]
struct Acceptors {
    http: TlsAcceptor,
    grpc: TlsAcceptor,
}

/// Certificates that were read and fit each other, and are not used yet.
pub struct TlsRead(Acceptors);

/// Why a connection did not become one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Failure {
    /// The client does not speak TLS.
    Plain,
    /// The client took too long.
    Timeout,
    /// The two do not agree: certificates, versions, or nonsense.
    Handshake,
    /// Too many were under way.
    TooMany,
}

impl Failure {
    const NAMES: [&str; 4] = ["plain", "timeout", "handshake", "too_many"];

    pub(super) fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl Tls {
    /// Reads the files.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(Acceptors::read(&files)?);
        Ok(Self { files: Some(files), current, failures: <[[AtomicU64; 4]; 3]>::default() })
    }

    /// A certificate that is made now and signed by nobody: for clients that check none.
    pub fn self_signed() -> Result<Self, TlsError> {
        let made = rcgen::generate_simple_self_signed(vec!["kvplane".to_owned(), "localhost".to_owned()])?;
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        let current = RwLock::new(Acceptors::of(&config));
        Ok(Self { files: None, current, failures: <[[AtomicU64; 4]; 3]>::default() })
    }

    /// Reads the files again, and uses nothing of them yet.
    pub fn read_again(&self) -> Result<TlsRead, TlsError> {
        match &self.files {
            Some(files) => Acceptors::read(files).map(TlsRead),
            None => Ok(TlsRead(self.current.read().clone())),
        }
    }

    /// From now on, new connections get these certificates.
    pub fn replace(&self, read: TlsRead) {
        *self.current.write() = read.0;
    }

    pub(super) fn acceptor(&self, port: Port) -> TlsAcceptor {
        let current = self.current.read();
        if port == Port::Http { current.http.clone() } else { current.grpc.clone() }
    }

    pub(super) fn count(&self, port: Port, failure: Failure) {
        self.failures[port as usize][failure as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Each listener, each reason why connections did not become any, and how often.
    pub fn failed(&self) -> Vec<(&'static str, &'static str, u64)> {
        let of = |port: Port| {
            let counts = self.failures[port as usize].iter().zip(Failure::NAMES);
            counts.map(move |(count, why)| (port.as_str(), why, count.load(Ordering::Relaxed)))
        };
        [Port::Http, Port::Grpc].into_iter().flat_map(of).collect()
    }

    /// The same of a listener that alone has these certificates.
    pub fn failed_at_all(&self, listener: &'static str) -> Vec<(&'static str, &'static str, u64)> {
        let of = |why: usize| self.failures.iter().map(|port| port[why].load(Ordering::Relaxed)).sum();
        Failure::NAMES.iter().enumerate().map(|(at, why)| (listener, *why, of(at))).collect()
    }
}

impl Acceptors {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let file = |key, path: &PathBuf, why| TlsError::File { key, path: path.clone(), why };
        let chain = pem::certificates(&files.cert).map_err(|why| file("cert", &files.cert, why))?;
        let key = pem::private_key(&files.key).map_err(|why| file("key", &files.key, why))?;
        // Named here, not taken from the process: a library does not depend on what `main` installed.
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = pem::roots(path).map_err(|why| file("client_ca", path, why))?;
                // Who has none may have a token, or ask for nothing that needs one.
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .allow_unauthenticated()
                    .build()
                    .map_err(|error| file("client_ca", path, error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        Ok(Self::of(&builder.with_single_cert(chain, key)?))
    }

    fn of(config: &ServerConfig) -> Self {
        let speaking = |protocol: &[u8]| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            TlsAcceptor::from(Arc::new(config))
        };
        Self { http: speaking(b"http/1.1"), grpc: speaking(b"h2") }
    }
}

/// What a certificate says of its owner. It was verified before.
pub(super) fn identity(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let mut common_names = certificate.subject().iter_common_name();
    let common_name = match (common_names.next(), common_names.next()) {
        (Some(only), None) => only.as_str().ok().map(str::to_owned),
        // Which of several is meant is not said.
        _ => None,
    };
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.iter().flat_map(|extension| &extension.value.general_names);
    Some(Identity { alternative_names: names.filter_map(alternative_name).collect(), common_name })
}

fn alternative_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) | GeneralName::RFC822Name(name) => {
            Some((*name).to_owned())
        }
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsRead").finish_non_exhaustive()
    }
}
