//! The dashboard: files that are part of the binary. They hold no data; what they show they ask for as any caller does.

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderValue, header};

use crate::error::ApiError;
use crate::service::Shared;

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
    file!("fleet.js", "text/javascript"),
    file!("timeline.js", "text/javascript"),
    file!("query.js", "text/javascript"),
    file!("engine.js", "text/javascript"),
    file!("plot.js", "text/javascript"),
    file!("words.js", "text/javascript"),
];

/// Nothing but these files is loaded, from nowhere else, and no other page can put them into a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/", get(page)).route("/dashboard/{file}", get(file))
}

async fn page() -> Response {
    served("text/html", PAGE)
}

async fn file(Path(name): Path<String>) -> Result<Response, ApiError> {
    let found = FILES.iter().find(|(file, ..)| *file == name);
    let (_, kind, text) = found.ok_or_else(|| super::no_such_path())?;
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
