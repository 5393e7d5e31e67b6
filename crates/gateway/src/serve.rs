//! One request: checked, read, decided, sent, and passed back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use kvplane_access::{Caller, Needs, Peer};
use kvplane_core::ErrorCode;
use kvplane_transport::edge::InFlight;
use serde_json::json;
use tokio::time::timeout;

use crate::api::Api;
use crate::call::{self, Call};
use crate::gateway::Shared;
use crate::headers::{self, API_KEY, REQUEST_ID};
use crate::limits::Limits;
use crate::refusal::Refusal;
use crate::ticket::{Line, Ticket};
use crate::turn::Turn;

/// Answers a request.
pub(crate) async fn serve(
    shared: &Arc<Shared>,
    peer: Peer,
    request: Request<Body>,
    busy: Option<InFlight>,
) -> Response<Body> {
    let begun = kvplane_runtime::now();
    let (mut head, body) = request.into_parts();
    let api = Api::of(&head.method, head.uri.path());
    let id = headers::request_id(&head.headers, || shared.new_id());
    let mut ticket = Ticket::new(shared.stats.clone(), begun);
    if shared.options.access_log {
        let id = id.to_str().unwrap_or_default().to_owned();
        ticket.line = Some(Box::new(Line { id, api: api.as_str(), ..Line::default() }));
    }
    head.headers.insert(REQUEST_ID, id.clone());
    let mut ticket = Some(ticket);
    let answered = attempt(shared, &peer, api, head, body, &mut ticket, busy).await;
    let mut response = answered.unwrap_or_else(|refusal| {
        tracing::debug!(status = refusal.status.as_u16(), code = refusal.code, "request refused");
        refusal.response(api.dialect())
    });
    if let Some(line) = ticket.as_mut().and_then(|ticket| ticket.line.as_mut()) {
        line.status = response.status().as_u16();
    }
    shared.stats.answered(api, response.status().as_u16());
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

async fn attempt(
    shared: &Arc<Shared>,
    peer: &Peer,
    api: Api,
    head: Parts,
    body: Body,
    ticket: &mut Option<Ticket>,
    busy: Option<InFlight>,
) -> Result<Response<Body>, Refusal> {
    if api == Api::Health {
        return Ok(health(shared));
    }
    headers::check(&head.method, &head.headers)?;
    let caller = admit(shared, api, &head.headers, peer)?;
    let limits = shared.options.callers.get(&*caller.name);
    if let Some(line) = ticket.as_mut().and_then(|ticket| ticket.line.as_mut()) {
        line.caller = caller.name.clone();
    }
    if api == Api::Models {
        return Ok(models(shared, limits));
    }
    if shared.stats.in_flight.load(Ordering::Relaxed) > shared.options.max_requests {
        return Err(Refusal::saturated("the gateway has as many requests as it takes: send it again later"));
    }
    let (body, _held) = receive(shared, &head.headers, body).await?;
    let call = call::read(api, &body)?;
    let fleet = shared.fleet();
    let served = if let Some(model) = &call.model {
        if limits.is_some_and(|limits| !limits.allow(model)) {
            return Err(Refusal::forbidden_model());
        }
        fleet.find(model).ok_or_else(Refusal::unknown_model)?
    } else {
        let only = fleet.only().ok_or_else(|| match fleet.members.len() {
            0 => Refusal::unavailable("no engine is behind the gateway yet"),
            _ => Refusal::field("model", "is missing, and engines serve several"),
        })?;
        if limits.is_some_and(|limits| !limits.allow(&only.base)) {
            return Err(Refusal::forbidden_model());
        }
        only
    };
    let tenant = limits.and_then(|limits| limits.tenant.as_deref());
    if tenant.is_some() && !api.takes_salt() && !api.is_cacheless() {
        let message =
            format!("{} has no cache salt, and tenants never share a cache: use another API", api.as_str());
        return Err(Refusal::new(StatusCode::FORBIDDEN, "tenant_without_salt", message));
    }
    enter(shared, &caller, limits, &call, body.len(), ticket)?;
    if let Some(line) = ticket.as_mut().and_then(|ticket| ticket.line.as_mut()) {
        line.model.clone_from(&served.base);
    }
    let salt = salt(shared.options.has_tenants(), tenant, call.cache_salt.as_deref());
    let served = served.clone();
    let turn = Turn { shared, fleet, api, head, body, call, served, salt, busy };
    // It grows large, and most of the time it waits.
    Box::pin(turn.run(ticket)).await
}

/// Who calls. SDKs of Anthropic's API send the key by another name.
fn admit(shared: &Shared, api: Api, headers: &HeaderMap, peer: &Peer) -> Result<Caller, Refusal> {
    let needs = Needs::Role(api.needs());
    let named;
    let headers = match headers.get(API_KEY) {
        Some(key) if !headers.contains_key(AUTHORIZATION) => {
            let mut with = headers.clone();
            let bearer = [b"Bearer ", key.as_bytes()].concat();
            if let Ok(mut value) = HeaderValue::from_bytes(&bearer) {
                value.set_sensitive(true);
                with.insert(AUTHORIZATION, value);
            }
            named = with;
            &named
        }
        _ => headers,
    };
    let caller = shared.gate.admit(needs, headers, Some(peer)).map_err(|refused| {
        let public = refused.public();
        if public.code == ErrorCode::Unauthenticated {
            Refusal::new(StatusCode::UNAUTHORIZED, "invalid_api_key", public.message)
        } else {
            Refusal::new(StatusCode::FORBIDDEN, "forbidden", public.message)
        }
    })?;
    Ok(caller.unwrap_or_else(|| Caller::anyone(Some(peer.address))))
}

/// Counts the request for its caller, if it may have one more.
fn enter(
    shared: &Shared,
    caller: &Caller,
    limits: Option<&Limits>,
    call: &Call,
    bytes: usize,
    ticket: &mut Option<Ticket>,
) -> Result<(), Refusal> {
    let (Some(limits), Some(meter), Some(ticket)) = (limits, shared.meter(&caller.name), ticket.as_mut())
    else {
        return Ok(());
    };
    meter.lock().enter(limits, shared.now()).map_err(|over| {
        shared.stats.limited(over.as_str());
        let what = match over.as_str() {
            "in_flight" => "requests at the same time",
            "tokens" => "tokens in a minute",
            _ => "requests in a minute",
        };
        let message = format!("this key has used up its {what}: send the request again later");
        let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message);
        Refusal { retry_after: Some(over.retry_after()), ..refusal }
    })?;
    ticket.meter(meter.clone());
    // Until the engine says what it was: a token is about four bytes.
    ticket.tokens = bytes as u64 / 4 + if call.stream { 0 } else { call.output.min(1 << 20) / 2 };
    Ok(())
}

/// The salt of the prompt's blocks. A tenant's own is part of its tenant's: nobody can say another's.
fn salt(tenants: bool, tenant: Option<&str>, given: Option<&str>) -> Option<String> {
    match (tenant, given) {
        (Some(tenant), Some(given)) => Some(format!("{}:{tenant}:{given}", tenant.len())),
        (Some(tenant), None) => Some(format!("{}:{tenant}", tenant.len())),
        (None, Some(given)) if tenants => Some(format!("0::{given}")),
        (None, given) => given.map(str::to_owned),
    }
}

/// Bytes of a body that are held, until this is dropped.
struct Held<'s>(&'s Shared, usize);

impl Held<'_> {
    fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        let held = &self.0.stats.held_bytes;
        let before = held.fetch_add(bytes, Ordering::Relaxed);
        self.1 += bytes;
        if before + bytes > self.0.options.max_bodies {
            return Err(Refusal::saturated(
                "the gateway holds as many bytes of requests as it may: send it again later",
            ));
        }
        Ok(())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.stats.held_bytes.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// The whole body, within the bounds of bytes and time.
async fn receive<'s>(
    shared: &'s Shared,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, Held<'s>), Refusal> {
    let most = shared.options.max_body;
    let mut held = Held(shared, 0);
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(Refusal::too_large(most));
    }
    let receiving = async {
        let mut pieces = body.into_data_stream();
        let mut first = Bytes::new();
        let mut whole: Option<BytesMut> = None;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| Refusal::invalid("the body broke off"))?;
            let so_far = whole.as_ref().map_or(first.len(), BytesMut::len);
            if so_far + piece.len() > most {
                return Err(Refusal::too_large(most));
            }
            held.grow(piece.len())?;
            match &mut whole {
                Some(whole) => whole.extend_from_slice(&piece),
                // Most bodies come in one piece, which is kept as it is.
                None if first.is_empty() => first = piece,
                None => {
                    // Room is taken for what was announced, up to a bound; the rest as it comes.
                    let room = length.unwrap_or(0).clamp(first.len() + piece.len(), 1 << 20);
                    let mut begun = BytesMut::with_capacity(room.max(first.len() + piece.len()));
                    begun.extend_from_slice(&first);
                    begun.extend_from_slice(&piece);
                    whole = Some(begun);
                }
            }
        }
        Ok(whole.map_or(first, BytesMut::freeze))
    };
    let body = timeout(shared.options.body_timeout, receiving).await.unwrap_or_else(|_| {
        Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", "the body did not arrive in time"))
    })?;
    Ok((body, held))
}

/// Whether requests should come here.
fn health(shared: &Shared) -> Response<Body> {
    let fleet = shared.fleet();
    let now = shared.now();
    let takes = |member: &crate::fleet::Member| {
        use crate::health::Standing;
        matches!(member.state.standing(now), Standing::Up | Standing::Trial)
            && member.upstream.endpoint.takes_requests()
    };
    let (status, word) = if shared.stop.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else if fleet.members.iter().any(takes) {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no engine takes requests")
    };
    answer(status, &json!({"status": word}))
}

/// Models that the caller may ask for.
fn models(shared: &Shared, limits: Option<&Limits>) -> Response<Body> {
    let cards = shared.fleet().cards().into_iter();
    let allowed = cards.filter(|(name, _)| limits.is_none_or(|limits| limits.allow(name)));
    let data: Vec<_> = allowed.map(|(_, card)| card).collect();
    answer(StatusCode::OK, &json!({"object": "list", "data": data}))
}

fn answer(status: StatusCode, body: &serde_json::Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salts_of_tenants_are_apart() {
        let salts = [
            salt(true, Some("a"), None),
            salt(true, Some("a"), Some("b")),
            salt(true, Some("a:b"), None),
            salt(true, Some("a"), Some("a:b")),
            salt(true, None, Some("1:a")),
            salt(true, None, None),
        ];
        for (at, one) in salts.iter().enumerate() {
            assert!(!salts[..at].contains(one), "{one:?}");
        }
        assert_eq!(salt(false, None, Some("s")).as_deref(), Some("s"));
    }
}
