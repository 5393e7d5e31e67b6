//! A plane that wants a token, behind TLS.

use std::path::PathBuf;
use std::sync::Arc;

use kvplane_core::EngineKind;
use kvplane_ingest::Origin;
use kvplane_server::{Access, Keys, Options, Role, Tls, TlsFiles, TokenKey};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::planes::{Site, config, until};
use crate::rig::Engine;

/// A directory that goes with the test.
struct Directory(PathBuf);

impl Directory {
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plane_is_followed_with_the_token_that_it_wants() {
    let directory = Directory(std::env::temp_dir().join(format!("kvplane-chain-{}", std::process::id())));
    std::fs::create_dir_all(&directory.0).unwrap();
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let tls = Tls::load(TlsFiles {
        cert: directory.write("cert.pem", &certificate.pem()),
        key: directory.write("key.pem", &key.serialize_pem()),
        client_ca: None,
    });
    let tokens = vec![
        TokenKey::new("follower", Role::Read, "right").unwrap(),
        TokenKey::new("reporter", Role::Report, "wrong-role").unwrap(),
    ];
    let access = Arc::new(Access::new(Keys::new(tokens, Vec::new()).unwrap(), false));
    let served = Options { access, tls: Some(Arc::new(tls.unwrap())), ..Options::default() };

    let mut engine = Engine::plain();
    engine.work(5);
    let a = Site::guarded(&[&engine], served).await;
    let b = Site::over(&[]).await;
    let token = directory.write("token", "unknown\n");
    let mut link = config("a", EngineKind::Kvplane);
    link.grpc = Some(format!("https://localhost:{}", a.grpc.port()));
    link.grpc_ca = Some(directory.write("ca.pem", &issuer.pem()));
    link.token_file = Some(token.clone());
    b.fleet.add(vec![link.plan().unwrap()], Origin::Config).await.unwrap();
    until("refused", || b.link_status("a").trouble == Some("refused")).await;
    assert!(b.member("a/e0").is_none());
    // The file is read again with every attempt.
    directory.write("token", "right\n");
    b.equal("a/e0", &a, "e0", &engine).await;
    engine.work(5);
    b.equal("a/e0", &a, "e0", &engine).await;

    // What cannot be used is found before anything is dialled.
    let mut link = config("c", EngineKind::Kvplane);
    link.grpc = Some("https://localhost:1".to_owned());
    link.token_file = Some(directory.0.join("nowhere"));
    assert!(link.clone().plan().unwrap_err().to_string().contains("nowhere"));
    link.token_file = Some(directory.write("empty", "\n"));
    assert!(link.plan().unwrap_err().to_string().contains("empty"));
}
