//! Prompts as text: over HTTP and gRPC, beside the same ids, and compared with the engine's own tokenizer.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json as Body, Router};
use kvplane_ingest::PlaneOptions;
use kvplane_prompt::{Json, ModelSpec, PromptInput, Prompts, Standing};
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use kvplane_proto::kvplane::v1::routing_client::RoutingClient;
use kvplane_server::Options;
use kvplane_sim::CompletionOptions;
use kvplane_testkit::model::{model_directory, write_model};
use serde_json::{Value, json};

use super::query::{ask, complete};
use crate::rig::{DEADLINE, Engine, Rig, call, text};

const TEXT: &str =
    "the end of the story, and another one: the user is waiting for an answer and a long one at that";

fn model(name: &str) -> (PathBuf, Prompts) {
    let directory = model_directory(name);
    let mut spec = ModelSpec::from_directory("sim", &directory);
    spec.adapters = vec!["sim-lora".to_owned()];
    (directory, Prompts::load(vec![spec]).unwrap())
}

fn messages() -> Value {
    json!([{"role": "system", "content": TEXT}, {"role": "user", "content": "and now?"}])
}

fn chat(messages: &Value) -> PromptInput {
    PromptInput::chat(Json::parse(messages.to_string().as_bytes()).unwrap(), None, None).unwrap()
}

async fn served(engine: &Engine, prompts: &Prompts, http: Option<String>) -> Rig {
    let mut spec = engine.spec("e0");
    spec.http = http;
    let options = Options { prompts: prompts.clone(), ..Options::default() };
    Rig::serving(vec![spec], PlaneOptions::default(), options).await
}

/// An answer without what changes from one to the next.
fn timeless(mut answer: Value) -> Value {
    for found in answer["matches"].as_array_mut().unwrap() {
        found.as_object_mut().unwrap().remove("age_ms");
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_answered_as_its_ids_are() {
    let (directory, prompts) = model("served");
    let engine = Engine::plain();
    let ids = prompts.tokenize("sim", &PromptInput::text(TEXT)).unwrap().ids;
    let chat_ids = prompts.tokenize("sim", &chat(&messages())).unwrap().ids;
    complete(&engine, &ids, &CompletionOptions::default());
    complete(&engine, &chat_ids, &CompletionOptions::default());
    let rig = served(&engine, &prompts, None).await;
    rig.exact(0, &engine).await;
    for (question, ids) in [
        (json!({"model": "sim", "prompt": TEXT}), &ids),
        (json!({"model": "sim", "messages": messages()}), &chat_ids),
    ] {
        let mut answer = timeless(rig.query(&question).await);
        let noted = answer.as_object_mut().unwrap().remove("tokenized").unwrap();
        assert_eq!(noted, json!({"tokens": ids.len(), "parity": "assumed"}));
        assert_eq!(answer, timeless(rig.query(&ask(ids)).await));
        assert!(answer["matches"][0]["tokens"].as_u64().unwrap() >= 32, "{answer}");
    }
    // A salt and an adapter lead to other blocks.
    for question in [
        json!({"model": "sim", "prompt": TEXT, "cache_salt": "s"}),
        json!({"model": "sim-lora", "prompt": TEXT}),
    ] {
        assert_eq!(rig.query(&question).await["counts"]["holders"], 0, "{question}");
    }
    // A long text is tokenized elsewhere.
    let long = TEXT.repeat(1000);
    assert!(
        rig.query(&json!({"model": "sim", "prompt": long})).await["tokenized"]["tokens"].as_u64().unwrap()
            > 10_000
    );

    let request = proto::QueryRequest {
        model: "sim".to_owned(),
        messages: Some(messages().to_string()),
        ..proto::QueryRequest::default()
    };
    let answer = rig.grpc_query(request).await.unwrap();
    assert_eq!(
        answer.tokenized.unwrap(),
        proto::Tokenized { tokens: chat_ids.len() as u64, parity: "assumed".to_owned() }
    );
    assert!(answer.matches[0].tokens >= 32);
    let (_, page) = text(rig.http, "GET", "/metrics", String::new()).await;
    assert!(page.contains("kvplane_prompts_tokenized_total"), "{page}");
    assert!(
        page.contains(r#"kvplane_prompt_parity{model="sim",engine="e0",state="contradicted"} 0"#),
        "{page}"
    );
    fs::remove_dir_all(directory).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_is_refused_names_its_field() {
    let (directory, prompts) = model("refused");
    let engine = Engine::plain();
    let rig = served(&engine, &prompts, None).await;
    let user = json!([{"role": "user", "content": "x"}]);
    for (question, field) in [
        (json!({"model": "other", "prompt": "x"}), "model"),
        (json!({"model": "sim", "prompt": 7}), "prompt"),
        (json!({"model": "sim", "prompt": "x", "token_ids": [1]}), "prompt"),
        (json!({"model": "sim", "prompt": "x", "messages": user}), "prompt"),
        (json!({"model": "sim", "prompt": "x", "tools": []}), "tools"),
        (json!({"model": "sim", "prompt": "x", "multimodal": []}), "multimodal"),
        (json!({"model": "sim", "messages": []}), "messages"),
        (json!({"model": "sim", "messages": "x"}), "messages"),
        (json!({"model": "sim", "messages": [{"role": "forbidden", "content": "x"}]}), "messages"),
        (json!({"model": "sim", "messages": user, "block_hashes": [1], "block_size": 16}), "messages"),
        (json!({"model": "sim", "messages": user, "chat_template_kwargs": []}), "chat_template_kwargs"),
        (json!({"model": "sim", "messages": user, "tools": [{}]}), "tools"),
        (
            json!({"model": "sim", "messages": user, "add_generation_prompt": true, "continue_final_message": true}),
            "continue_final_message",
        ),
    ] {
        let (status, body) = call(rig.http, "POST", "/v1/query", &question).await;
        assert_eq!((status, &body["error"]["field"]), (400, &json!(field)), "{question}: {body}");
    }
    let wrong = proto::QueryRequest {
        model: "sim".to_owned(),
        messages: Some("[".to_owned()),
        ..proto::QueryRequest::default()
    };
    assert_eq!(rig.grpc_query(wrong).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    fs::remove_dir_all(directory).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_text_are_given_to_whoever_gave_the_text() {
    let (directory, prompts) = model("ids");
    let engine = Engine::plain();
    let rig = served(&engine, &prompts, None).await;
    let mut client = PlaneClient::connect(format!("http://{}", rig.grpc)).await.unwrap();
    let request =
        |model: &str| proto::QueryRequest { model: model.to_owned(), ..proto::QueryRequest::default() };
    let by_text = proto::QueryRequest { prompt: Some(TEXT.to_owned()), ..request("sim-lora") };
    let reported = client.tokenize(by_text).await.unwrap().into_inner();
    assert_eq!(reported.token_ids, prompts.tokenize("sim", &PromptInput::text(TEXT)).unwrap().ids);
    assert_eq!((reported.model.as_str(), reported.lora_name.as_deref()), ("sim", Some("sim-lora")));
    assert_eq!(reported.tokenized.unwrap().parity, "assumed");
    let long = "and the ".repeat(20_000);
    let by_chat = json!([{"role": "user", "content": long}]);
    let by_chat = proto::QueryRequest { messages: Some(by_chat.to_string()), ..request("sim") };
    assert!(client.tokenize(by_chat).await.unwrap().into_inner().token_ids.len() > 10_000);
    for wrong in [
        request("sim"),
        proto::QueryRequest { token_ids: vec![1], ..request("sim") },
        proto::QueryRequest { prompt: Some("x".to_owned()), token_ids: vec![1], ..request("sim") },
        proto::QueryRequest { prompt: Some("x".to_owned()), ..request("nobody") },
    ] {
        assert_eq!(client.tokenize(wrong).await.unwrap_err().code(), tonic::Code::InvalidArgument);
    }
    fs::remove_dir_all(directory).unwrap();
}

/// A template that takes about a second in a build without optimisation.
const SLOW: &str = "{% for message in messages %}{{ message.content }}{% endfor %}{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}";

#[tokio::test(flavor = "multi_thread")]
async fn a_pick_does_not_wait_for_ids_beyond_the_deadline() {
    let directory = model_directory("slow");
    write_model(&directory, SLOW);
    let prompts = Prompts::load(vec![ModelSpec::from_directory("sim", &directory)]).unwrap();
    let engine = Engine::plain();
    let options = Options { prompts, tokenize_timeout: Duration::from_millis(1), ..Options::default() };
    let rig = Rig::serving(vec![engine.spec("e0")], PlaneOptions::default(), options).await;
    rig.live(0).await;
    let chat = json!([{"role": "user", "content": "a".repeat(2_000)}]);
    let body = json!({"model": "sim", "messages": chat});
    let (status, picked) = call(rig.http, "POST", "/v1/pick", &body).await;
    assert_eq!((status, &picked["why"]), (200, &json!("no_tokens")), "{picked}");
    assert_eq!(picked["endpoints"][0]["engine"], "e0");
    assert_eq!(
        (&picked["without_tokens"], &picked["prompt_tokens"]),
        (&json!("tokenizer_too_slow"), &json!(0))
    );
    assert!(picked["because"].as_str().unwrap().ends_with("not known: tokenizer_too_slow"), "{picked}");
    assert_eq!((&picked["booked"], &picked["tokenized"]), (&json!(true), &Value::Null));
    let (_, receipt) =
        call(rig.http, "GET", &format!("/v1/receipts/{}", picked["id"].as_str().unwrap()), &Value::Null)
            .await;
    assert_eq!(
        (&receipt["why"], &receipt["without_tokens"]),
        (&json!("no_tokens"), &json!("tokenizer_too_slow"))
    );
    let mut client = RoutingClient::connect(format!("http://{}", rig.grpc)).await.unwrap();
    let prompt = proto::QueryRequest {
        model: "sim".to_owned(),
        messages: Some(chat.to_string()),
        ..proto::QueryRequest::default()
    };
    let request = proto::PickRequest { prompt: Some(prompt), ..proto::PickRequest::default() };
    let picked = client.pick(request).await.unwrap().into_inner();
    assert_eq!(
        (picked.why.as_str(), picked.without_tokens.as_deref()),
        ("no_tokens", Some("tokenizer_too_slow"))
    );
    let (_, page) = text(rig.http, "GET", "/metrics", String::new()).await;
    for line in [
        "kvplane_prompts_without_tokens_total{reason=\"tokenizer_too_slow\"} 2",
        "kvplane_route_decisions_total{why=\"no_tokens\"} 2",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    // What is wrong is refused as ever.
    let unknown = json!({"model": "other", "messages": [{"role": "user", "content": "x"}]});
    let (status, refused) = call(rig.http, "POST", "/v1/pick", &unknown).await;
    assert_eq!((status, &refused["error"]["field"]), (400, &json!("model")), "{refused}");
    fs::remove_dir_all(directory).unwrap();
}

/// The engine's own `/tokenize`, which is wrong about tools when told to be.
async fn tokenizing(prompts: Prompts, wrong: Arc<AtomicBool>) -> String {
    let tokenize = move |body: Bytes| async move {
        // The order of keys is part of the prompt.
        let body = Json::parse(&body).unwrap();
        let field = |name: &str| body.get(name).cloned();
        let input = match body.get("prompt").and_then(Json::as_str) {
            Some(text) => PromptInput::text(text),
            None => PromptInput::chat(field("messages").unwrap(), field("tools"), None).unwrap(),
        };
        let mut ids = prompts.model("sim").unwrap().ids(&input, 0).unwrap();
        if wrong.load(Ordering::Relaxed) && body.get("tools").is_some() {
            ids.pop();
        }
        Body(json!({"count": ids.len(), "tokens": ids, "max_model_len": 4096}))
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let pages = Router::new().route("/tokenize", post(tokenize));
    tokio::spawn(async move { axum::serve(listener, pages).await });
    format!("http://{address}")
}

/// Asks until the answer is as wanted.
async fn until(rig: &Rig, question: &Value, wanted: impl Fn(u16, &Value) -> bool) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let (status, body) = call(rig.http, "POST", "/v1/query", question).await;
        if wanted(status, &body) {
            return;
        }
        assert!(Instant::now() < deadline, "{status} {body}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parity_is_proven_or_contradicted_by_the_engine() {
    let (directory, prompts) = model("compared");
    let engine = Engine::plain();
    let tools = json!([{"function": {"name": "f"}, "type": "function"}]);
    let plain = json!({"model": "sim", "prompt": "x"});
    let with_tools = json!({"model": "sim", "messages": messages(), "tools": tools});

    let right = tokenizing(prompts.clone(), Arc::default()).await;
    let rig = served(&engine, &prompts, Some(right)).await;
    until(&rig, &plain, |status, body| status == 200 && body["tokenized"]["parity"] == "proven").await;
    until(&rig, &with_tools, |status, body| status == 200 && body["tokenized"]["parity"] == "proven").await;
    drop(rig);

    let prompts = Prompts::load(vec![ModelSpec::from_directory("sim", &directory)]).unwrap();
    let wrong = tokenizing(prompts.clone(), Arc::new(AtomicBool::new(true))).await;
    let rig = served(&engine, &prompts, Some(wrong)).await;
    until(&rig, &with_tools, |status, _| status == 503).await;
    // What is right stays proven.
    until(&rig, &plain, |status, body| status == 200 && body["tokenized"]["parity"] == "proven").await;
    let (_, page) = text(rig.http, "GET", "/metrics", String::new()).await;
    assert!(
        page.contains(r#"kvplane_prompt_parity{model="sim",engine="e0",state="contradicted"} 1"#),
        "{page}"
    );
    let said = rig.plane.chronicle().after(0);
    assert!(said.iter().any(|remark| remark.said.topic == "tokenizer"), "{said:?}");
    fs::remove_dir_all(directory).unwrap();
}

/// An engine that renders if told to, and tokenizes; and how often it did each.
async fn rendering(prompts: Prompts, renders: bool) -> (String, Arc<[AtomicUsize; 2]>) {
    let counts: Arc<[AtomicUsize; 2]> = Arc::default();
    let ids = move |body: &Bytes| {
        let body = Json::parse(body).unwrap();
        let input = match body.get("prompt").and_then(Json::as_str) {
            Some(text) => PromptInput::text(text),
            None => PromptInput::chat(body.get("messages").cloned().unwrap(), None, None).unwrap(),
        };
        prompts.model("local").unwrap().ids(&input, 0)
    };
    let (rendered, tokenized, one, other) = (counts.clone(), counts.clone(), ids.clone(), ids);
    let render = move |body: Bytes| async move {
        rendered[0].fetch_add(1, Ordering::Relaxed);
        let ids = one(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
        Ok::<_, StatusCode>(Body(json!({"token_ids": ids, "sampling_params": {}})))
    };
    let tokenize = move |body: Bytes| async move {
        tokenized[1].fetch_add(1, Ordering::Relaxed);
        let ids = other(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
        Ok::<_, StatusCode>(Body(json!({"count": ids.len(), "tokens": ids})))
    };
    let mut pages = Router::new().route("/tokenize", post(tokenize));
    if renders {
        pages = pages.route("/v1/chat/completions/render", post(render));
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, pages).await });
    (format!("http://{address}"), counts)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_tokenizer_asks_its_engines() {
    let directory = model_directory("of_engine");
    let local = Prompts::load(vec![ModelSpec::from_directory("local", &directory)]).unwrap();
    let chat_ids = local.model("local").unwrap().ids(&chat(&messages()), 0).unwrap();
    for renders in [true, false] {
        let prompts = Prompts::load(vec![ModelSpec::from_directory("sim", "engine")]).unwrap();
        let engine = Engine::plain();
        complete(&engine, &chat_ids, &CompletionOptions::default());
        let (http, counts) = rendering(local.clone(), renders).await;
        let mut spec = engine.spec("e0");
        spec.http = Some(http);
        let options = Options { prompts, tokenize_timeout: DEADLINE, ..Options::default() };
        let rig = Rig::serving(vec![spec], PlaneOptions::default(), options).await;
        rig.exact(0, &engine).await;
        let question = json!({"model": "sim", "messages": messages()});
        let answer = rig.query(&question).await;
        assert_eq!(answer["tokenized"], json!({"tokens": chat_ids.len(), "parity": "proven"}), "{answer}");
        assert!(answer["matches"][0]["tokens"].as_u64().unwrap() >= 32, "{answer}");
        let (status, picked) = call(rig.http, "POST", "/v1/pick", &question).await;
        assert_eq!((status, &picked["why"]), (200, &json!("cached")), "{picked}");
        let request = proto::QueryRequest {
            model: "sim".to_owned(),
            messages: Some(messages().to_string()),
            ..proto::QueryRequest::default()
        };
        assert_eq!(rig.grpc_query(request).await.unwrap().tokenized.unwrap().parity, "proven");
        let asked = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        assert_eq!(asked, if renders { [3, 0] } else { [0, 3] });
        // What the engine refuses is refused, by its field.
        let refused = json!({"model": "sim", "messages": [{"role": "forbidden", "content": "x"}]});
        for path in ["/v1/query", "/v1/pick"] {
            let (status, body) = call(rig.http, "POST", path, &refused).await;
            assert_eq!((status, &body["error"]["field"]), (400, &json!("messages")), "{body}");
        }
    }
    fs::remove_dir_all(directory).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_give_no_ids_leave_the_decision_to_the_load() {
    let prompts = Prompts::load(vec![ModelSpec::from_directory("sim", "engine")]).unwrap();
    let engine = Engine::plain();
    let options = Options { prompts, tokenize_timeout: DEADLINE, ..Options::default() };
    // A server that knows neither way to ids.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut spec = engine.spec("e0");
    spec.http = Some(format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move { axum::serve(listener, axum::Router::new()).await });
    let rig = Rig::serving(vec![spec], PlaneOptions::default(), options).await;
    rig.live(0).await;
    let question = json!({"model": "sim", "prompt": TEXT});
    let (status, picked) = call(rig.http, "POST", "/v1/pick", &question).await;
    assert_eq!((status, &picked["why"]), (200, &json!("no_tokens")), "{picked}");
    assert_eq!(picked["without_tokens"], "engine_failed");
    let (status, body) = call(rig.http, "POST", "/v1/query", &question).await;
    assert_eq!((status, &body["error"]["code"]), (503, &json!("unavailable")), "{body}");
    let mixed = ModelSpec {
        default_kwargs: vec![("a".to_owned(), Json::Null)],
        ..ModelSpec::from_directory("m", "engine")
    };
    assert!(Prompts::load(vec![mixed]).unwrap_err().1.to_string().contains("default_kwargs"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_prompt_tokens_of_every_request_are_a_check() {
    let (directory, prompts) = model("counted");
    let engine = Engine::plain();
    let rig = served(&engine, &prompts, None).await;
    rig.live(0).await;
    let question = json!({"model": "sim", "messages": messages()});
    let pick = async || {
        let (status, picked) = call(rig.http, "POST", "/v1/pick", &question).await;
        assert_eq!(status, 200, "{picked}");
        (
            format!("/v1/receipts/{}", picked["id"].as_str().unwrap()),
            picked["prompt_tokens"].as_u64().unwrap(),
        )
    };
    // Until the engine is known to whoever compares tokenizers, its word says nothing.
    let deadline = Instant::now() + DEADLINE;
    let row = loop {
        let (receipt, tokens) = pick().await;
        let report = json!({"state": "finish", "cached_tokens": 0, "prompt_tokens": tokens});
        assert_eq!(call(rig.http, "POST", &receipt, &report).await.0, 200);
        if let Some(row) = prompts.parity().pop().filter(|row| row.agreed > 0) {
            break row;
        }
        assert!(Instant::now() < deadline);
    };
    assert_eq!(row.differed, 0);
    assert!(row.standings.iter().all(|(_, standing)| *standing == Standing::Assumed), "as many is no proof");
    // Whoever else served counted another prompt.
    let (receipt, tokens) = pick().await;
    let elsewhere =
        json!({"state": "finish", "cached_tokens": 0, "prompt_tokens": tokens + 1, "engine": "other"});
    assert_eq!(call(rig.http, "POST", &receipt, &elsewhere).await.0, 200);
    assert_eq!(call(rig.http, "POST", "/v1/query", &question).await.0, 200);
    let (receipt, tokens) = pick().await;
    let report = json!({"state": "finish", "cached_tokens": 0, "prompt_tokens": tokens + 1});
    let (status, settled) = call(rig.http, "POST", &receipt, &report).await;
    assert_eq!(status, 200, "{settled}");
    let (status, refused) = call(rig.http, "POST", "/v1/query", &question).await;
    assert_eq!(status, 503, "{refused}");
    let (status, picked) = call(rig.http, "POST", "/v1/pick", &question).await;
    assert_eq!((status, &picked["without_tokens"]), (200, &json!("contradicted")), "{picked}");
    assert!(rig.plane.chronicle().after(0).iter().any(|remark| remark.said.topic == "tokenizer"));
    // Text without a template was not part of it.
    assert_eq!(call(rig.http, "POST", "/v1/query", &json!({"model": "sim", "prompt": TEXT})).await.0, 200);
    fs::remove_dir_all(directory).unwrap();
}
