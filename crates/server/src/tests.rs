//! Every route and every method, with every kind of caller, over real sockets.

mod fronted;
mod rig;
mod secure;

use std::collections::BTreeSet;

use http::{Method, StatusCode};
use kvplane_access::{Needs, Role, Roles, table};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic::Code;

use self::rig::{Key, Served};

/// Every path that the router knows. The router tells them nowhere but in its debug form.
fn paths(served: &Served) -> BTreeSet<String> {
    let printed = format!("{:?}", crate::http::router(served.parts.clone()));
    let (_, known) = printed.split_once("paths: {").unwrap();
    let (known, _) = known.split_once("} }").unwrap();
    let paths = known.split('"').filter(|part| part.starts_with('/'));
    let paths: BTreeSet<String> = paths.map(str::to_owned).collect();
    for expected in ["/healthz", "/v1/query", "/v1/engines/{id}", "/register"] {
        assert!(paths.contains(expected), "{expected} is not in {printed}");
    }
    paths
}

/// Every method that the server describes.
fn methods() -> Vec<(String, String)> {
    let sets = [
        kvplane_proto::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
    ];
    let mut methods = Vec::new();
    for file in sets.into_iter().flat_map(|set| FileDescriptorSet::decode(set).unwrap().file) {
        for service in &file.service {
            let name = format!("{}.{}", file.package(), service.name());
            methods.extend(service.method.iter().map(|method| (name.clone(), method.name().to_owned())));
        }
    }
    methods
}

/// Whether a caller with this key is let in, and if not, whether it is not known at all.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    LetIn,
    Unknown,
    Forbidden,
}

fn expected(needs: Needs, key: Key) -> Outcome {
    match (needs, key.role()) {
        (Needs::Nothing, _) | (Needs::AnyRole, Some(_)) => Outcome::LetIn,
        (_, None) => Outcome::Unknown,
        (Needs::Role(needed), Some(role)) if Roles::from(role).include(needed) => Outcome::LetIn,
        (Needs::Role(_), Some(_)) => Outcome::Forbidden,
    }
}

fn page_outcome(status: StatusCode) -> Outcome {
    match status {
        StatusCode::UNAUTHORIZED => Outcome::Unknown,
        StatusCode::FORBIDDEN => Outcome::Forbidden,
        _ => Outcome::LetIn,
    }
}

const METHODS: [Method; 6] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_asks_for_the_role_of_its_row() {
    let served = Served::start().await;
    let mut rows_met = BTreeSet::new();
    for path in paths(&served) {
        let asked = path.replace("{id}", "nobody").replace("{file}", "main.js");
        for method in METHODS {
            let exists = served.page(Key::Token(Role::Admin), &method, &asked).await.status
                != StatusCode::METHOD_NOT_ALLOWED;
            let named = if method == Method::HEAD { "GET" } else { method.as_str() };
            let row = table::PAGES.iter().find(|(row, of, _)| *row == named && *of == path);
            assert!(!exists || row.is_some(), "{method} {path} has no row in the table of roles");
            if exists {
                rows_met.extend(row.map(|(method, path, _)| (*method, *path)));
            }
            let needs = row.map_or(Needs::AnyRole, |(.., needs)| *needs);
            for key in Key::ALL {
                let answer = served.page(key, &method, &asked).await;
                let outcome = page_outcome(answer.status);
                assert_eq!(outcome, expected(needs, key), "{method} {path} with {key:?}: {answer:?}");
                let challenge = answer.headers.get("www-authenticate").map(|how| how.to_str().unwrap());
                let wanted = match outcome {
                    Outcome::Unknown => Some("Bearer"),
                    Outcome::Forbidden => Some("Bearer error=\"insufficient_scope\""),
                    Outcome::LetIn => None,
                };
                assert_eq!(challenge, wanted, "{method} {path} with {key:?}");
            }
        }
    }
    for (method, path, _) in table::PAGES {
        assert!(rows_met.contains(&(*method, *path)), "{method} {path} has a row, and is not there");
    }
    for key in Key::ALL {
        let status = served.page(key, &Method::GET, "/no/such/path").await.status;
        let wanted = if key.role().is_some() { StatusCode::NOT_FOUND } else { StatusCode::UNAUTHORIZED };
        assert_eq!(status, wanted, "{key:?}");
    }
    // What is wrong is named.
    for (method, path, message) in [
        (Method::GET, "/no/such/path", "there is no path \"/no/such/path\""),
        (Method::PUT, "/v1/engines", "/v1/engines takes GET and POST, not PUT"),
    ] {
        let body = served.page(Key::Token(Role::Admin), &method, path).await.body;
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["message"], message);
    }
}

fn row(service: &str, method: &str) -> Option<Needs> {
    if table::ENGINE_SERVICES.contains(&service) {
        return table::ENGINE_CALLS.iter().find(|(name, _)| *name == method).map(|(_, needs)| *needs);
    }
    let row = table::CALLS.iter().find(|(of, name, _)| *of == service && *name == method);
    row.map(|(.., needs)| *needs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_asks_for_the_role_of_its_row() {
    let served = Served::start().await;
    let methods = methods();
    assert!(methods.iter().any(|(service, _)| service == "grpc.health.v1.Health"));
    for (service, method, _) in table::CALLS {
        let described = methods.iter().any(|(of, name)| of == service && name == method);
        assert!(described, "{service}/{method} has a row, and is not there");
    }
    for (service, method) in methods {
        let needs = row(&service, &method);
        let needs = needs.unwrap_or_else(|| panic!("{service}/{method} has no row in the table of roles"));
        for key in Key::ALL {
            let code = served.call(key, &format!("/{service}/{method}")).await;
            let is_there = code != Some(Code::Unimplemented) || !service.starts_with("kvplane.");
            assert!(is_there, "{service}/{method} is described, and not there");
            let outcome = match code {
                Some(Code::Unauthenticated) => Outcome::Unknown,
                Some(Code::PermissionDenied) => Outcome::Forbidden,
                _ => Outcome::LetIn,
            };
            assert_eq!(outcome, expected(needs, key), "{service}/{method} with {key:?}");
        }
    }
    for key in Key::ALL {
        let code = served.call(key, "/no.such.Service/Method").await;
        let wanted = if key.role().is_some() { Code::Unimplemented } else { Code::Unauthenticated };
        assert_eq!(code, Some(wanted), "{key:?}");
    }
}
