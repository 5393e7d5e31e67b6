//! Who a command is, and whom it believes.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use kvplane_client::Bearer;
use kvplane_ingest::read_token;
use kvplane_report::{Credentials, Token};
use kvplane_transport::tls;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{
    WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::args::KeyArgs;
use crate::config::client_token;

impl KeyArgs {
    /// The token to send, if there is one.
    pub(crate) fn token(&self) -> anyhow::Result<Option<String>> {
        match &self.token_file {
            Some(path) => Ok(Some(read_token(path)?)),
            None => Ok(client_token()),
        }
    }

    /// How a client of the gRPC server behaves.
    pub(crate) fn client_options(&self) -> anyhow::Result<kvplane_client::Options> {
        let bearer = self.token()?.map(|token| Bearer::new(&token)).transpose()?;
        let certificate = match self.cert.as_deref().zip(self.key.as_deref()) {
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
            None => None,
        };
        Ok(kvplane_client::Options {
            bearer: bearer.unwrap_or_default(),
            ca: self.ca.as_deref().map(read).transpose()?,
            certificate,
            ..kvplane_client::Options::default()
        })
    }

    /// What a server is shown that is reported to.
    pub(crate) fn credentials(&self) -> anyhow::Result<Credentials> {
        let kvplane_client::Options { bearer, ca, certificate, .. } = self.client_options()?;
        let token = self.token_file.clone().map_or(Token::Given(bearer), Token::File);
        Ok(Credentials { ca, certificate, token })
    }

    /// TLS towards the HTTP server.
    pub(crate) fn connector(&self) -> anyhow::Result<TlsConnector> {
        let identity = match self.cert.as_deref().zip(self.key.as_deref()) {
            Some((certificate, key)) => {
                let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| {
                    anyhow!("--key {}: {error}: name a file with a private key as PEM", key.display())
                })?;
                Some((certificates(certificate)?, private))
            }
            None => None,
        };
        Ok(tls::connector(self.roots()?, identity, "http/1.1")?)
    }

    fn roots(&self) -> anyhow::Result<RootCertStore> {
        let Some(path) = &self.ca else {
            return Ok(tls::public_roots());
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(path)? {
            let unusable =
                || format!("--ca {}: name a file with certificates of authorities", path.display());
            roots.add(certificate).with_context(unusable)?;
        }
        Ok(roots)
    }
}

/// TLS that verifies no certificate. For addresses of this machine, and for nothing that is secret.
pub(crate) fn unchecked_connector() -> anyhow::Result<TlsConnector> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(Unchecked(provider.signature_verification_algorithms));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Takes any certificate whose key the other side has.
#[derive(Debug)]
struct Unchecked(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    let wrong = |what: &str| anyhow!("{}: {what}: name a file with certificates as PEM", path.display());
    let found = found.map_err(|error| wrong(&error.to_string()))?;
    if found.is_empty() {
        return Err(wrong("no certificate in it"));
    }
    Ok(found)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
