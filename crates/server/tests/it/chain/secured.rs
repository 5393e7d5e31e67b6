//! A plane that wants to know who calls, behind TLS.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kvplane_access::{Access, CertificateKey, Keys, Role, Subject, Tls, TlsFiles, TokenKey};
use kvplane_core::{EngineKind, LinkTrouble};
use kvplane_ingest::Origin;
use kvplane_report::{
    CALL_OUTCOMES, Credentials, ReplicaReport, ReportSpec, Reports, SAYINGS, ServerAddress, Token,
};
use kvplane_server::Options;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::rig::{Engine, Rig, config, until};

/// A directory that goes with the test, and an issuer of certificates.
struct Files {
    path: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("kvplane-chain-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        Self { path, issuer }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A certificate for a name, and its key.
    fn certificate(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// Servers with TLS, and these rules.
    fn guarded_by(&self, access: Arc<Access>) -> Options {
        let (certificate, key) = self.certificate("localhost");
        let tls = Tls::load(TlsFiles {
            cert: self.write("cert.pem", &certificate),
            key: self.write("key.pem", &key),
            client_ca: Some(self.write("ca.pem", &self.issuer.pem())),
        });
        Options { access, tls: Some(Arc::new(tls.unwrap())), ..Options::default() }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn token(role: Role, token: &str) -> TokenKey {
    TokenKey::new(role.as_str(), role, token).unwrap()
}

fn url(site: &Rig) -> String {
    format!("https://localhost:{}", site.grpc.port())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plane_is_followed_with_the_token_that_it_wants() {
    let files = Files::new();
    let keys = |read: &str| Keys::new(vec![token(Role::Read, read)], Vec::new()).unwrap();
    let access = Arc::new(Access::new(keys("right"), false));
    let mut engine = Engine::plain();
    engine.work(5);
    let a = Rig::guarded(&[&engine], files.guarded_by(access.clone())).await;
    let b = Rig::hasty(&[]).await;
    let mut link = config("a", EngineKind::Kvplane);
    link.grpc = Some(url(&a));
    link.grpc_ca = Some(files.path.join("ca.pem"));
    link.token_file = Some(files.write("token", "unknown\n"));
    b.fleet.add(vec![link.plan().unwrap()], Origin::Config).await.unwrap();
    until("refused", || b.link_status("a").trouble == Some(LinkTrouble::Refused)).await;
    assert!(b.member("a/e0").is_none());
    // The file is read again with every attempt.
    files.write("token", "right\n");
    b.equal("a/e0", &a, "e0", &engine).await;
    engine.work(5);
    b.equal("a/e0", &a, "e0", &engine).await;
    // Another token, while it follows.
    files.write("token", "other");
    access.replace(keys("other")).unwrap();
    engine.work(5);
    b.equal("a/e0", &a, "e0", &engine).await;

    // What cannot be used is found before anything is dialled.
    let mut link = config("c", EngineKind::Kvplane);
    link.grpc = Some("https://localhost:1".to_owned());
    link.token_file = Some(files.path.join("nowhere"));
    assert!(link.clone().plan().unwrap_err().to_string().contains("nowhere"));
    link.token_file = Some(files.write("empty", "\n"));
    assert!(link.plan().unwrap_err().to_string().contains("empty"));
}

/// The only replica that is reported.
async fn only(reports: &Reports) -> Arc<ReplicaReport> {
    until("reported", || !reports.replicas().is_empty()).await;
    reports.replicas().remove(0)
}

fn is_reported(report: &ReplicaReport) -> bool {
    let adds = SAYINGS.iter().position(|saying| *saying == "adds").unwrap();
    let taken = CALL_OUTCOMES.iter().position(|outcome| *outcome == "taken").unwrap();
    report.state() == "told" && report.calls(adds, taken) > 0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plane_is_reported_to_with_the_token_that_it_wants() {
    let files = Files::new();
    let keys = |report: &str| {
        let tokens = vec![token(Role::Report, report)];
        let certificate = CertificateKey {
            name: "r".into(),
            role: Role::Report,
            subject: Subject::San("reporter".to_owned()),
        };
        Keys::new(tokens, vec![certificate]).unwrap()
    };
    let access = Arc::new(Access::new(keys("first"), false));
    let a = Rig::guarded(&[], files.guarded_by(access.clone())).await;
    let mut engine = Engine::plain();
    engine.work(5);
    let b = Rig::hasty(&[&engine]).await;
    let trusting = || Credentials { ca: Some(files.issuer.pem().into_bytes()), ..Credentials::default() };
    let spec = |credentials| ReportSpec::new(ServerAddress::new(&url(&a), credentials).unwrap());

    let reports = Reports::default();
    let file = Token::File(files.write("token", "unknown"));
    reports.set(&b.plane, vec![spec(Credentials { token: file, ..trusting() })]);
    let report = only(&reports).await;
    until("an unknown token is not taken", || report.state() == "failing").await;
    files.write("token", "first\n");
    until("the file is read again", || is_reported(&report)).await;
    // Another one from the next call on, over the same connection.
    access.replace(keys("second")).unwrap();
    engine.work(5);
    until("the old one is not taken", || report.state() == "failing").await;
    files.write("token", "second");
    until("the file is read again", || is_reported(&report)).await;
    assert_eq!(report.link.connects(), 1);
    reports.shutdown().await;

    let (certificate, key) = files.certificate("reporter");
    let shown = Some((certificate.into_bytes(), key.into_bytes()));
    let reports = Reports::default();
    reports.set(&b.plane, vec![spec(Credentials { certificate: shown, ..trusting() })]);
    let report = only(&reports).await;
    until("a certificate is as good as a token", || is_reported(&report)).await;
    reports.shutdown().await;
}
