//! The gate as a layer, before pages and before calls.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::HeaderValue;
use http::header::{AUTHORIZATION, HOST, WWW_AUTHENTICATE};
use kvplane_core::ErrorCode;
use tonic::Status;
use tonic::transport::server::TcpConnectInfo;

use super::access::Gate;
use super::keys::Caller;
use super::refusals::Refused;
use super::table;
use crate::error::ApiError;
use crate::listen::Peer;

/// Lets pages be asked for by those who may. Handlers find the [`Caller`] among the request's extensions.
pub async fn guard_pages(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let needs = table::page(request.method(), path);
    let gate = gate.open_to_networks(table::may_be_opened(path));
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| peer.clone());
    settle_host(&mut request);
    match gate.admit(needs, request.headers(), peer.as_ref()) {
        Ok(caller) => {
            introduce(&mut request, caller);
            if let Some(peer) = peer {
                request.extensions_mut().insert::<ConnectInfo<SocketAddr>>(ConnectInfo(peer.address));
            }
            next.run(request).await
        }
        Err(refused) => refused_page(refused),
    }
}

/// Lets methods be called by those who may. Handlers find the [`Caller`] among the request's extensions.
pub async fn guard_calls(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    let needs = table::call(request.uri().path());
    let peer = request.extensions().get::<Peer>().cloned();
    match gate.admit(needs, request.headers(), peer.as_ref()) {
        Ok(caller) => {
            introduce(&mut request, caller);
            if let Some(Peer { address, .. }) = peer {
                // Where tonic's own requests have it.
                let ends = TcpConnectInfo { local_addr: None, remote_addr: Some(address) };
                request.extensions_mut().insert(ends);
            }
            next.run(request).await
        }
        Err(refused) => refused_call(refused).into_http(),
    }
}

/// Where the request's target names the host, as it does over HTTP/2, a `Host` beside it says nothing.
fn settle_host(request: &mut Request) {
    let host = request.uri().authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(host)) = host {
        request.headers_mut().insert(HOST, host);
    }
}

/// Says who calls. What proved it goes no further, so that nothing behind can print it.
fn introduce(request: &mut Request, caller: Option<Caller>) {
    request.headers_mut().remove(AUTHORIZATION);
    if let Some(caller) = caller {
        request.extensions_mut().insert(caller);
    }
}

fn refused_page(refused: Refused) -> Response {
    let error = refused.public();
    // Where another key would help.
    let challenge = match refused {
        Refused::WrongRole(_) => Some("Bearer error=\"insufficient_scope\""),
        _ => (error.code == ErrorCode::Unauthenticated).then_some("Bearer"),
    };
    let mut response = ApiError(error).into_response();
    if let Some(challenge) = challenge {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    response
}

/// A refusal as gRPC has it.
pub fn refused_call(refused: Refused) -> Status {
    ApiError(refused.public()).into()
}
