//! What can be said of a front without a socket.

use std::io::Write;
use std::path::Path;

use http::Request;
use http::header::{CONNECTION, HOST, TE};
use kvplane_access::{Access, Caller, Keys, Peer, Port, Proof, Refused};

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

/// What becomes of a call to a front where there are no keys.
fn called_without_keys(insecure: bool, open: bool, from: &str, method: &str) -> Result<Proof, Refused> {
    let access = Arc::new(Access::new(Keys::default(), insecure));
    let front = Front::new(FrontOptions::without_upstream("a.B")).unwrap().guarded(access.gate(Port::Front));
    let front = if open { front.opened() } else { front };
    let peer = Peer::new(from.parse().unwrap(), None);
    let mut request = Request::builder().uri(format!("/a.B/{method}")).body(()).unwrap();
    serve::admit(&front, &peer, &mut request)?;
    Ok(request.extensions().get::<Caller>().unwrap().proof)
}

#[test]
fn without_keys_engines_are_changed_from_this_machine_only() {
    let (here, elsewhere) = ("127.0.0.1:5", "10.0.0.1:5");
    for (insecure, open) in [(true, false), (false, true), (true, true)] {
        for method in ["FlushCache", "StartProfile", "StopProfile", "LoadLoRAAdapter"] {
            let called = |from| called_without_keys(insecure, open, from, method);
            assert_eq!(called(here), Ok(Proof::Loopback), "{method}");
            assert_eq!(called(elsewhere), Err(Refused::NotLoopback), "{method}");
        }
        for method in ["Generate", "Embed", "Abort", "GetLoads", "SubscribeKvEvents"] {
            for from in [here, elsewhere] {
                assert_eq!(called_without_keys(insecure, open, from, method), Ok(Proof::Nothing), "{method}");
            }
        }
    }
}
