//! What can be said of a front without a socket.

use std::io::Write;
use std::path::Path;

use http::Request;
use http::header::{CONNECTION, HOST, TE};

use super::*;

fn target(uri: &str, ca: Option<&Path>) -> Result<Target, FrontError> {
    Target::new(&uri.parse().unwrap(), ca, Duration::from_secs(1))
}

#[test]
fn an_address_is_a_scheme_a_host_and_a_port() {
    let plain = target("http://[::1]:50051", None).unwrap();
    assert_eq!((plain.host.as_str(), plain.port, plain.tls.is_some()), ("::1", 50051, false));
    let secure = target("https://engine.example/", None).unwrap();
    assert_eq!((secure.host.as_str(), secure.port, secure.tls.is_some()), ("engine.example", 443, true));
    for wrong in ["grpc://host:1", "/path", "http://host:1/path", "http://user@host:1", "host:1"] {
        assert!(matches!(target(wrong, None), Err(FrontError::Upstream { .. })), "{wrong}");
    }
}

#[test]
fn certificates_that_are_none_are_refused_at_once() {
    let path = std::env::temp_dir().join(format!("kvplane-front-ca-{}", std::process::id()));
    writeln!(std::fs::File::create(&path).unwrap(), "not a certificate").unwrap();
    assert!(matches!(target("https://host:1", Some(&path)), Err(FrontError::Ca { .. })));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(target("https://host:1", Some(&path)), Err(FrontError::Ca { .. })));
    assert!(matches!(target("http://host:1", Some(&path)), Err(FrontError::Upstream { .. })));
}

#[test]
fn a_service_is_a_name() {
    for wrong in ["", "a/b"] {
        let options = FrontOptions::new("http://host:1".parse().unwrap(), wrong);
        assert!(matches!(Front::new(options), Err(FrontError::Service(_))));
    }
}

#[test]
fn only_what_belongs_to_the_hop_is_changed() {
    let request = Request::post("http://front:1/pkg.Service/Method?a=b")
        .header(HOST, "front:1")
        .header(CONNECTION, "close")
        .header(TE, "trailers")
        .header("grpc-timeout", "5S")
        .header("x-many", "1")
        .header("x-many", "2")
        .body(())
        .unwrap();
    let head = target("https://engine:2", None).unwrap().head(request.into_parts().0).unwrap();
    assert_eq!(head.uri(), "https://engine:2/pkg.Service/Method?a=b");
    let mut names: Vec<_> = head.headers().iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
    names.sort();
    assert_eq!(names, ["grpc-timeout: \"5S\"", "te: \"trailers\"", "x-many: \"1\"", "x-many: \"2\""]);

    let request = Request::post("/s/m").header(TE, "gzip").body(()).unwrap();
    let head = target("http://engine:2", None).unwrap().head(request.into_parts().0).unwrap();
    assert!(head.headers().is_empty());
}
