//! Endpoints are asked how they are, and what they serve.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http::{Method, StatusCode};
use kvplane_inference::{Format, Scanner};
use kvplane_prompt::{Json, PromptInput};
use kvplane_transport::{HttpClient, HttpQuestion, Sent};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::fleet::{Card, Member, TakesIds};
use crate::gateway::Shared;
use crate::options::Forward;

/// Probes at the same time.
const AT_ONCE: usize = 32;
/// How long an answer may take, and how long it may be.
const WITHIN: Duration = Duration::from_secs(2);
const MAX_PAGE: usize = 1 << 20;
/// Models and adapters that one engine may have.
const MAX_CARDS: usize = 4_096;
/// Every how many probes the served models are listed: adapters come and go slowly.
const LOOK_EVERY: u32 = 4;

/// Probes until the gateway stops.
pub(crate) async fn run(shared: &Arc<Shared>) {
    let client = HttpClient::with_connect_timeout(shared.options.connect_timeout);
    let mut round = 0u32;
    let mut known: Vec<Arc<crate::fleet::State>> = Vec::new();
    loop {
        let fleet = shared.fleet();
        let is_new = |member: &Member| !known.iter().any(|state| Arc::ptr_eq(state, &member.state));
        let due = round.is_multiple_of(LOOK_EVERY);
        let members: Vec<(Member, bool)> =
            fleet.members.iter().map(|member| (member.clone(), due || is_new(member))).collect();
        let probes = members.into_iter().map(|(member, look)| {
            let (shared, client) = (shared.clone(), client.clone());
            async move { probe(&shared, &client, &member, look).await }
        });
        let changes: Vec<bool> = futures::stream::iter(probes).buffer_unordered(AT_ONCE).collect().await;
        if changes.into_iter().any(|changed| changed) {
            shared.refresh();
        }
        known = fleet.members.iter().map(|member| member.state.clone()).collect();
        round = round.wrapping_add(1);
        // A change of the engines is seen soon; each of them is asked as often as was said.
        let next = tokio::time::Instant::now() + shared.options.probe_every;
        while tokio::time::Instant::now() < next {
            let wait = Duration::from_millis(250).min(shared.options.probe_every);
            if shared.stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return;
            }
            let now = shared.fleet();
            if now.members.iter().any(|member| !known.iter().any(|state| Arc::ptr_eq(state, &member.state))) {
                break;
            }
        }
    }
}

/// Whether something new was learned.
async fn probe(shared: &Arc<Shared>, client: &HttpClient, member: &Member, look: bool) -> bool {
    member.state.connections.tidy();
    let well = ask(client, member, "/health").await.is_some_and(|(status, _)| status.is_success());
    let before = member.state.standing(shared.now());
    member.state.probed(&shared.options.health, well, shared.now());
    let after = member.state.standing(shared.now());
    if before != after {
        let engine = member.upstream.endpoint.engine.as_deref().unwrap_or_default();
        tracing::info!(engine, from = before.as_str(), to = after.as_str(), "endpoint changed");
    }
    if well && shared.options.forward == Forward::Auto && member.state.takes_ids() == TakesIds::Unknown {
        try_ids(shared, client, member).await;
    }
    if !(well && look) {
        return false;
    }
    let Some((StatusCode::OK, page)) = ask(client, member, "/v1/models").await else { return false };
    cards(&page).is_some_and(|cards| member.state.learn(cards))
}

async fn ask(client: &HttpClient, member: &Member, path: &str) -> Option<(StatusCode, bytes::Bytes)> {
    let base = format!("http://{}", member.upstream.endpoint.address);
    let question = HttpQuestion {
        method: Method::GET,
        authorization: member.upstream.authorization.clone(),
        ..HttpQuestion::get(&base, path)
    };
    client.ask(question, MAX_PAGE, WITHIN, &Sent::default()).await.ok()
}

/// How long an engine may take for one token.
const GENERATE_WITHIN: Duration = Duration::from_secs(10);

/// Sends an engine the ids of one chat with the text of a longer one: what it counts is what it took.
async fn try_ids(shared: &Arc<Shared>, client: &HttpClient, member: &Member) {
    const SHORT: &[u8] = br#"[{"role":"user","content":"Hi"}]"#;
    let (state, model) = (&member.state, &member.upstream.model);
    let short = Json::parse(SHORT).ok().and_then(|messages| PromptInput::chat(messages, None, None).ok());
    let Some(Ok(tokens)) = short.map(|prompt| shared.plane.tokenize(model, prompt)) else { return };
    let mut body = json!({
        "model": model, "max_tokens": 1,
        "messages": [{"role": "user", "content": "kvplane asks whether this engine takes token ids in the place of text"}],
    });
    match member.upstream.kind {
        "vllm" => body["kv_transfer_params"] = json!({"prompt_token_ids": tokens.ids}),
        "sglang" => body["input_ids"] = json!(tokens.ids),
        _ => return state.set_takes_ids(TakesIds::No),
    }
    let base = format!("http://{}", member.upstream.endpoint.address);
    let question = HttpQuestion {
        method: Method::POST,
        json: Some(body.to_string().into()),
        authorization: member.upstream.authorization.clone(),
        ..HttpQuestion::get(&base, "/v1/chat/completions")
    };
    // Without an answer it is tried again with the next probe.
    let Ok((status, page)) = client.ask(question, MAX_PAGE, GENERATE_WITHIN, &Sent::default()).await else {
        return;
    };
    if status.is_server_error() {
        return;
    }
    let mut scanner = Scanner::new(Format::Json);
    scanner.feed(&page);
    let taken = status.is_success() && scanner.usage().prompt == Some(tokens.ids.len() as u64);
    state.set_takes_ids(if taken { TakesIds::Yes } else { TakesIds::No });
    let engine = member.upstream.endpoint.engine.as_deref().unwrap_or_default();
    tracing::info!(engine, taken, "asked whether the engine takes token ids");
}

#[derive(Deserialize)]
struct Page {
    data: Vec<Value>,
}

/// The models of a page.
fn cards(page: &[u8]) -> Option<Vec<Card>> {
    let Page { data } = serde_json::from_slice(page).ok()?;
    let card = |card: Value| {
        let text = |name: &str| card.get(name).and_then(Value::as_str).map(str::to_owned);
        let (id, parent) = (text("id").filter(|id| !id.is_empty() && id.len() <= 1_024)?, text("parent"));
        Some(Card { id, parent, json: without_time(card) })
    };
    Some(data.into_iter().take(MAX_CARDS).filter_map(card).collect())
}

/// vLLM says when it was asked as when the model was made: then every answer would be a new one.
fn without_time(mut card: Value) -> Value {
    if let Some(card) = card.as_object_mut() {
        for name in ["created", "permission"] {
            if card.contains_key(name) {
                card.remove(name);
            }
        }
        card.insert("created".to_owned(), 0.into());
    }
    card
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_models() {
        let page = br#"{"data":[{"id":"m","created":7,"owned_by":"vllm"},{"id":"a","parent":"m"},{"id":7},{"id":""}]}"#;
        let cards = cards(page).unwrap();
        let names: Vec<_> = cards.iter().map(|card| (card.id.as_str(), card.parent.as_deref())).collect();
        assert_eq!(names, [("m", None), ("a", Some("m"))]);
        assert_eq!(cards[0].json, serde_json::json!({"id": "m", "created": 0, "owned_by": "vllm"}));
        assert!(super::cards(b"{}").is_none());
    }
}
