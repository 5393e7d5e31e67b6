//! The front's own HTTP/2 server.

use std::pin::pin;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kvplane_access::{Caller, Gate, Needs, Peer, Proof, Refused, Role, refused_call, table};
use kvplane_transport::edge::{Accepting, Connections, Full, Guarded, Metered, Pulse, Shares, Speaks};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tracing::{debug, info};

use super::body::{ClientBody, Reply};
use super::counters::{InFlight, add};
use super::link::{FRAME_SIZE, HEADER_LIST, RESET_STREAMS, SEND_BUFFER, STREAM_WINDOW};
use super::upstream::UpstreamReset;
use super::{Front, OwnedCalls};

/// Calls on one client's connection. gRPC servers set no limit by default, and a client that meets one waits
/// silently, so this is beyond what an engine can run.
const STREAMS_MAX: u32 = 16_384;

/// What all calls of one client may have on their way to the engine unread.
const CLIENT_WINDOW: u32 = 32 << 20;

pub(super) async fn run(front: Front, listener: TcpListener, stop: CancellationToken, own: OwnedCalls) {
    let front = Arc::new(front);
    let accepting = Accepting::new(listener, "front");
    let places: &Arc<Connections> = front.counters.connections.get_or_init(|| front.bounds.front());
    let calls = Shares::new(front.bounds.calls, front.bounds.calls_per_peer);
    let connections = TaskTracker::new();
    loop {
        let (client, address) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepting.next() => accepted,
        };
        let Some(place) = places.admit(address, Speaks::Http2) else { continue };
        let (front, own, stop) = (front.clone(), own.clone(), stop.clone());
        let peer = Peer::new(address, Some(place.pulse().clone()));
        connections.spawn(serve(front, Guarded::new(client, place), peer, calls.clone(), stop, own));
    }
    drop(accepting);
    connections.close();
    info!(connections = connections.len(), "front stops");
    connections.wait().await;
}

async fn serve(
    front: Arc<Front>,
    mut client: Guarded<TcpStream>,
    peer: Peer,
    calls: Arc<Shares>,
    stop: CancellationToken,
    own: OwnedCalls,
) {
    // Until the client speaks there is nothing to finish.
    let heard = stop.run_until_cancelled(client.first_byte()).await;
    let Some(Ok(())) = heard else { return debug!(?heard, "connection of a silent client ended") };
    let (grace, pulse) = (front.grace, client.pulse().clone());
    // A client that does not answer a ping is gone, and its calls are cancelled.
    let (ping_every, ping_timeout) = (front.bounds.ping_every, front.bounds.front_ping_timeout);
    let service =
        service_fn(move |request| answer(front.clone(), own.clone(), peer.clone(), calls.clone(), request));
    let connection = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(ping_every)
        .keep_alive_timeout(ping_timeout)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CLIENT_WINDOW)
        .max_frame_size(FRAME_SIZE)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADER_LIST)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESET_STREAMS)
        .max_local_error_reset_streams(RESET_STREAMS)
        // A response has the headers that the engine gave it.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(Metered::new(client, pulse)), service);
    let mut connection = pin!(connection);
    let end = tokio::select! {
        end = connection.as_mut() => end,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match timeout(grace, connection).await {
                Ok(end) => end,
                Err(_) => return info!("client's calls cut off"),
            }
        }
    };
    if let Err(error) = end {
        debug!(%error, "connection of a client ended");
    }
}

async fn answer(
    front: Arc<Front>,
    own: OwnedCalls,
    peer: Peer,
    calls: Arc<Shares>,
    mut request: Request<Incoming>,
) -> Result<Response<Reply>, UpstreamReset> {
    let call = calls.take(peer.key(), 1);
    let busy = peer.pulse.as_ref().map(Pulse::enter);
    let refused = call.as_ref().err().copied();
    let in_flight = InFlight::new(front.counters.clone(), (call.ok(), busy));
    if let Some(full) = refused {
        front.counters.refuse(full);
        let whose = if full == Full::Peer { "from this address" } else { "in total" };
        let response = Status::resource_exhausted(format!("too many calls in progress {whose}")).into_http();
        return Ok(response.map(|body| Reply::own(body, in_flight)));
    }
    if !is_call(request.uri()) {
        let message = "the path is not /package.Service/Method";
        let response = Status::invalid_argument(message).into_http();
        return Ok(response.map(|body| Reply::own(body, in_flight)));
    }
    if let Err(refused) = admit(&front, &peer, &mut request) {
        let response = refused_call(refused).into_http();
        return Ok(response.map(|body| Reply::own(body, in_flight)));
    }
    if front.owned_paths.iter().any(|owned| owned == request.uri().path()) {
        add(&front.counters.own);
        let response = own.call(request).await;
        return Ok(response.map(|body| Reply::own(body, in_flight)));
    }
    let Some(upstream) = &front.upstream else {
        let response = Status::unimplemented("the engine has no gRPC server").into_http();
        return Ok(response.map(|body| Reply::own(body, in_flight)));
    };
    // Before the engine can know of the call: what it reports is about a moment after this.
    let tap = front.evidence.as_ref().and_then(|evidence| evidence.begin(request.uri().path()));
    add(&front.counters.forwarded);
    let response = upstream.call(request.map(|body| ClientBody::new(body, tap.clone()))).await?;
    Ok(response.map(|body| Reply::upstream(body, in_flight, tap)))
}

/// Whether a request names one method of one service, as gRPC does. Dot segments, escapes, queries and
/// further segments could mean another method to the engine than to us.
fn is_call(uri: &Uri) -> bool {
    let name = |text: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
        text.bytes().all(known) && text.bytes().any(|byte| byte.is_ascii_alphanumeric())
    };
    let parts = uri.path().strip_prefix('/').and_then(|path| path.split_once('/'));
    uri.query().is_none()
        && parts.is_some_and(|(service, method)| name(service) && name(method) && !method.contains('.'))
}

/// Lets a call through if its caller may make it. Without keys a front is as open as its address, which was
/// checked when it was bound; but open fronts, too, are open only for what does not change the engine.
pub(super) fn admit<B>(front: &Front, peer: &Peer, request: &mut Request<B>) -> Result<(), Refused> {
    let needs = table::front_call(request.uri().path());
    let asks = |gate: &&Gate| needs == Needs::Role(Role::Admin) || (gate.has_keys() && !front.open);
    let Some(gate) = front.gate.as_ref().filter(asks) else {
        if let Some(gate) = &front.gate {
            gate.strip_own_token(request.headers_mut());
        }
        request.extensions_mut().insert(Caller::anyone(Some(peer.address)));
        return Ok(());
    };
    if let Some(caller) = gate.admit(needs, request.headers(), Some(peer))? {
        if caller.proof == Proof::Token {
            // A token of ours is nobody else's business.
            request.headers_mut().remove(AUTHORIZATION);
        }
        request.extensions_mut().insert(caller);
    }
    Ok(())
}
