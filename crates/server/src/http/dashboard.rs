//! The dashboard: files that are part of the binary. They hold no data; what they show they ask for as any
//! caller does.

use axum::Router;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderValue, Uri, header};
use kvplane_access::ApiError;

use crate::parts::Parts;

const PAGE: &str = include_str!("../../dashboard/index.html");

/// A file: name, type, text.
type File = (&'static str, &'static str, &'static str);

macro_rules! file {
    ($name:literal, $kind:literal) => {
        ($name, $kind, include_str!(concat!("../../dashboard/", $name)))
    };
}

const FILES: &[File] = &[
    file!("style.css", "text/css"),
    file!("icon.svg", "image/svg+xml"),
    file!("main.js", "text/javascript"),
    file!("live.js", "text/javascript"),
    file!("known.js", "text/javascript"),
    file!("kept.js", "text/javascript"),
    file!("history.js", "text/javascript"),
    file!("remarks.js", "text/javascript"),
    file!("keys.js", "text/javascript"),
    file!("fleet.js", "text/javascript"),
    file!("cells.js", "text/javascript"),
    file!("totals.js", "text/javascript"),
    file!("health.js", "text/javascript"),
    file!("value.js", "text/javascript"),
    file!("incidents.js", "text/javascript"),
    file!("ledger.js", "text/javascript"),
    file!("order.js", "text/javascript"),
    file!("shows.js", "text/javascript"),
    file!("timeline.js", "text/javascript"),
    file!("query.js", "text/javascript"),
    file!("routing.js", "text/javascript"),
    file!("engine.js", "text/javascript"),
    file!("plot.js", "text/javascript"),
    file!("words.js", "text/javascript"),
];

/// Nothing but these files is loaded, from nowhere else, and no other page can put them into a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) fn routes() -> Router<Parts> {
    Router::new().route("/", get(page)).route("/dashboard/{file}", get(file))
}

async fn page() -> Response {
    served("text/html", PAGE)
}

async fn file(name: Result<Path<String>, PathRejection>, uri: Uri) -> Result<Response, ApiError> {
    let found = name.ok().and_then(|Path(name)| FILES.iter().find(|(file, ..)| *file == name));
    let (_, kind, text) = found.ok_or_else(|| super::no_such_path(uri.path(), super::OPENAPI_LISTS))?;
    Ok(served(kind, text))
}

fn served(kind: &'static str, text: &'static str) -> Response {
    let kind = HeaderValue::try_from(format!("{kind}; charset=utf-8"));
    let headers = [
        (header::CONTENT_TYPE, kind.unwrap_or_else(|_| HeaderValue::from_static("text/plain"))),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // Another release has other files under the same names.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard");
        let there: BTreeSet<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "index.html")
            .collect();
        let served: BTreeSet<_> = FILES.iter().map(|(name, ..)| (*name).to_owned()).collect();
        assert_eq!(there, served);
    }

    /// What a policy against inline code and foreign addresses would refuse, and what it would not notice.
    #[test]
    fn files_need_nothing_from_elsewhere_and_hold_no_inline_code() {
        for (name, _, text) in FILES.iter().chain([&("index.html", "text/html", PAGE)]) {
            let foreign = text.replace("http://www.w3.org/2000/svg", "");
            for word in
                ["http://", "https://", "//cdn", "innerHTML", "eval(", " style=", " onclick=", "<style"]
            {
                assert!(!foreign.contains(word), "{name} has {word}");
            }
            let lines = text.lines().count();
            assert!(lines <= 150, "{name} has {lines} lines: split it");
        }
        assert!(!PAGE.contains("<script>"));
        for part in PAGE.split("dashboard/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(FILES.iter().any(|(file, ..)| *file == name), "{name} is asked for and not served");
        }
    }

    #[tokio::test]
    async fn answers_say_what_may_be_done_with_them() {
        let mut answers = vec![page().await];
        for (name, ..) in FILES {
            let answer = file(Ok(Path((*name).to_owned())), Uri::default()).await;
            answers.push(answer.unwrap_or_else(|_| panic!("{name}")));
        }
        for answer in answers {
            let header = |name| answer.headers().get(name).unwrap().to_str().unwrap().to_owned();
            let policy = header("content-security-policy");
            assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
            assert!(
                policy.contains("frame-ancestors 'none'") && policy.contains("connect-src 'self'"),
                "{policy}"
            );
            assert_eq!(header("x-content-type-options"), "nosniff");
            assert_eq!(header("referrer-policy"), "no-referrer");
            assert_eq!(header("cache-control"), "no-cache");
            assert!(header("content-type").ends_with("; charset=utf-8"));
        }
        assert!(file(Ok(Path("../Cargo.toml".to_owned())), Uri::default()).await.is_err());
    }
}
