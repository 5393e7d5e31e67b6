//! Before every route of every engine: answers that do not come, come late or mean nothing.

use std::sync::Arc;

use axum::Extension;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use http_body_util::{BodyExt as _, Full};
use tonic::Status;

use super::Desk;
use super::conduct::{Question, Reply};
use crate::serve::Line;

/// What no reader takes for JSON, and no reader of gRPC for a message: a field that ends behind it.
const GARBAGE: [u8; 2] = [0x1a, 0x7f];

/// Puts the layer before a router's routes.
pub(crate) fn before_routes(router: Router, desk: &Arc<Desk>) -> Router {
    router.layer(from_fn_with_state(desk.clone(), answer))
}

async fn answer(
    State(desk): State<Arc<Desk>>,
    Extension(line): Extension<Line>,
    request: Request,
    next: Next,
) -> Response {
    let Some(question) = Question::of(request.uri().path()) else { return next.run(request).await };
    desk.note(format!(
        "{} {}",
        request.method(),
        request.uri().path_and_query().map_or("", |path| path.as_str())
    ));
    let is_grpc = is_grpc(request.headers());
    match desk.reply(question) {
        Reply::Usual => next.run(request).await,
        reply @ Reply::Hang => {
            desk.lifted(question, reply).await;
            next.run(request).await
        }
        Reply::Late => {
            let response = next.run(request).await;
            desk.due(question).await;
            response
        }
        Reply::Error if is_grpc => Status::internal("simulated").into_http(),
        Reply::Error => (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response(),
        Reply::Broken => {
            next.run(request).await;
            line.cut().await
        }
        Reply::Garbage => {
            next.run(request).await;
            if is_grpc { nonsense() } else { GARBAGE.into_response() }
        }
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/grpc"))
}

/// A call that ends well, with an invalid message.
fn nonsense() -> Response {
    // Not compressed, two bytes long.
    let mut frame = vec![0, 0, 0, 0, GARBAGE.len() as u8];
    frame.extend(GARBAGE);
    let ended_well = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
    let trailers = HeaderMap::from_iter([ended_well]);
    let body = Full::from(frame).with_trailers(std::future::ready(Some(Ok(trailers))));
    ([(header::CONTENT_TYPE, "application/grpc")], Body::new(body)).into_response()
}
