//! TLS towards servers that are spoken to without tonic: one configuration for all of them.
//! [`grpc::tls`](crate::grpc::tls) is its twin for tonic's own connections.

use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, Error, RootCertStore};

/// A client's certificates, its own first, and the key of that one.
pub type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Connects to servers whose certificates one of `roots` signed, and speaks `protocol` (as ALPN names it).
pub fn connector(
    roots: RootCertStore,
    identity: Option<Identity>,
    protocol: &str,
) -> Result<TlsConnector, Error> {
    // Named here, not taken from the process: a library does not depend on what `main` installed.
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match identity {
        Some((certificates, key)) => builder.with_client_auth_cert(certificates, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The public authorities.
pub fn public_roots() -> RootCertStore {
    RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }
}
