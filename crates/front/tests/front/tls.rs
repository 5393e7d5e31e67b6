//! An engine behind TLS.

use std::path::PathBuf;
use std::sync::Arc;

use kvplane_front::FrontOptions;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tonic::Code;

use crate::engine::{Engine, EngineOptions, message};
use crate::rig::{Client, Fronted, SERVICE};

/// An authority of our own, in a file, and an engine with its certificate for `localhost`.
async fn engine(file: &str) -> (Engine, PathBuf) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let path = std::env::temp_dir().join(format!("kvplane-{file}-{}.pem", std::process::id()));
    std::fs::write(&path, issuer.pem()).unwrap();
    let tls = Some(TlsAcceptor::from(Arc::new(config)));
    (Engine::start(EngineOptions { tls, ..EngineOptions::default() }).await, path)
}

fn options(engine: &Engine, ca: Option<PathBuf>) -> FrontOptions {
    let upstream = format!("https://localhost:{}", engine.addr.port()).parse().unwrap();
    FrontOptions { ca, ..FrontOptions::new(upstream, SERVICE) }
}

#[tokio::test]
async fn an_engine_of_a_known_authority() {
    let (mut engine, ca) = engine("known").await;
    let front = Fronted::with(options(&engine, Some(ca.clone()))).await;
    let answer = Client::to(front.addr).await.unary("/test.Engine/Echo", message(b"secret")).await;
    assert_eq!((answer.status().code(), answer.data), (Code::Ok, message(b"secret")));
    let (uri, _) = engine.head().await;
    assert_eq!(uri.scheme_str(), Some("https"));
    assert_eq!(uri.host(), Some("localhost"));
    std::fs::remove_file(ca).unwrap();
}

#[tokio::test]
async fn an_engine_of_an_unknown_authority_is_not_spoken_to() {
    let (engine, ca) = engine("unknown").await;
    std::fs::remove_file(ca).unwrap();
    let front = Fronted::with(options(&engine, None)).await;
    let answer = Client::to(front.addr).await.unary("/test.Engine/Echo", message(b"secret")).await;
    assert_eq!(answer.status().code(), Code::Unavailable);
    assert!(answer.status().message().contains("certificate"), "{}", answer.status());
    assert_eq!(front.counters.connect_failures(), 1);
}
