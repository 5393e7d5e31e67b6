//! One request: checked, read, decided, sent, and passed back.

use std::sync::Arc;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use kvplane_access::{Caller, Needs, Peer};
use kvplane_core::ErrorCode;
use kvplane_transport::edge::{Full, InFlight, Share};
use serde_json::json;
use tokio::time::timeout;

use crate::api::Api;
use crate::call::{self, Call};
use crate::gateway::Shared;
use crate::headers::{self, API_KEY, REQUEST_ID};
use crate::limits::Limits;
use crate::refusal::Refusal;
use crate::stats::Bound;
use crate::ticket::{Line, Ticket};
use crate::trace::TRACEPARENT;
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
    if let Some(tracer) = shared.tracer.as_ref().filter(|_| api != Api::Health) {
        ticket.spans = tracer.begin(api, &head.headers, begun);
        if let Some(spans) = &mut ticket.spans {
            id.to_str().unwrap_or_default().clone_into(&mut spans.request);
            if let Some(parent) = spans.traceparent() {
                head.headers.insert(TRACEPARENT, parent);
            }
        }
    }
    let mut ticket = Some(ticket);
    let answered = attempt(shared, &peer, api, head, body, &mut ticket, busy).await;
    let mut response = answered.unwrap_or_else(|refusal| {
        tracing::debug!(status = refusal.status.as_u16(), code = refusal.code, "request refused");
        refusal.response(api.dialect())
    });
    if let Some(ticket) = &mut ticket {
        ticket.answered(response.status().as_u16());
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
    headers::check_path(head.uri.path())?;
    headers::check(&head.method, &head.headers)?;
    let caller = admit(shared, api, &head.headers, peer)?;
    let limits = shared.options.callers.get(&*caller.name);
    if let Some(line) = ticket.as_mut().and_then(|ticket| ticket.line.as_mut()) {
        line.caller = caller.name.clone();
    }
    if api == Api::Models {
        return Ok(models(shared, limits));
    }
    let place = shared.places.take(peer.key(), 1).map_err(|full| {
        shared.stats.refused(if full == Full::Peer { Bound::RequestsOfPeer } else { Bound::Requests });
        Refusal::saturated("the gateway has as many requests as it takes: send it again later")
    })?;
    if let Some(ticket) = ticket.as_mut() {
        ticket.place = Some(place);
    }
    let (body, _held) = receive(shared, peer, &head.headers, body).await?;
    let call = call::read(api, &body)?;
    if limits.is_some_and(|limits| limits.models.is_some()) && call.places.is_none() && !body.is_empty() {
        let message =
            "this key may ask for some models only, and the model of this body cannot be read: send JSON";
        return Err(Refusal::new(StatusCode::FORBIDDEN, "model_forbidden", message));
    }
    let fleet = shared.fleet();
    let served = if let Some(model) = &call.model {
        if limits.is_some_and(|limits| !limits.allow(model)) {
            return Err(Refusal::forbidden_model());
        }
        fleet.find(model).ok_or_else(Refusal::unknown_model)?
    } else {
        let only = fleet.only().ok_or_else(|| match fleet.members.len() {
            0 => Refusal::unavailable("the gateway has no engine yet"),
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
    let reported = call.places.as_ref().is_some_and(|places| places.transfer.is_some() || places.bootstrap);
    if tenant.is_some() && reported {
        let message = "kv_transfer_params name blocks of any tenant: this key may not send them";
        return Err(Refusal::new(StatusCode::FORBIDDEN, "tenant_without_salt", message));
    }
    enter(shared, &caller, limits, &call, body.len(), ticket)?;
    if let Some(ticket) = ticket {
        ticket.of_model(&served.base);
    }
    let salt = salt(shared.options.has_tenants(), tenant, call.cache_salt.as_deref());
    let served = served.clone();
    let turn = Turn { shared, fleet, api, head, body, call, served, salt, busy, first: None };
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
            "in_flight" => "concurrent requests",
            "tokens" => "tokens per minute",
            _ => "requests per minute",
        };
        let message = format!("this key's limit is reached ({what}): retry later");
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

/// The whole body, within the bounds of bytes and time, and what it takes of the bytes that may be held.
async fn receive(
    shared: &Shared,
    peer: &Peer,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, Share), Refusal> {
    let most = shared.options.max_body;
    let too_many_bytes = |full: Full| {
        shared.stats.refused(if full == Full::Peer { Bound::BodyBytesOfPeer } else { Bound::BodyBytes });
        Refusal::saturated("the gateway holds as many bytes of requests as it may: send it again later")
    };
    let too_large = || {
        shared.stats.refused(Bound::BodySize);
        Refusal::too_large(most)
    };
    let mut held = shared.bodies.take(peer.key(), 0).map_err(too_many_bytes)?;
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(too_large());
    }
    let receiving = async {
        let mut pieces = body.into_data_stream();
        let mut first = Bytes::new();
        let mut whole: Option<BytesMut> = None;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| Refusal::invalid("the body broke off"))?;
            let so_far = whole.as_ref().map_or(first.len(), BytesMut::len);
            if so_far + piece.len() > most {
                return Err(too_large());
            }
            held.grow(piece.len()).map_err(too_many_bytes)?;
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
        shared.stats.refused(Bound::BodyTime);
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
        (StatusCode::SERVICE_UNAVAILABLE, "no engine accepts requests")
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
