//! What a prompt is beside its tokens: asked under one identity, nobody answers with the blocks of another.
//!
//! Engines are sent the same tokens under every identity that they tell, each to another length, so that the
//! length of an answer says whose blocks it is of.

use std::time::{Duration, Instant};

use kvplane_ingest::PlaneOptions;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_sim::config::{HostEvents, SglangOptions};
use kvplane_sim::trtllm::{TrtConfig, TrtSim};
use kvplane_sim::{CompletionOptions, Image, Keys, SimConfig};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedExtraKey, OwnedHash, OwnedRemoved, OwnedStored};
use serde_json::{Value, json};

use crate::rig::{DEADLINE, Engine, Rig, call};

const BLOCK: u64 = 16;

/// What a request has beside its tokens, and the fields of a question that name it.
struct Identity {
    request: CompletionOptions,
    asks: Value,
}

fn none() -> Identity {
    Identity { request: CompletionOptions::default(), asks: json!({}) }
}

impl Identity {
    fn salt(mut self, salt: &str) -> Self {
        self.request.cache_salt = Some(salt.to_owned());
        self.asks["cache_salt"] = json!(salt);
        self
    }

    fn adapter(mut self, name: &str) -> Self {
        self.request.lora = Some(name.to_owned());
        self.asks["lora_name"] = json!(name);
        self
    }

    fn image(mut self, id: &str, offset: usize, length: usize) -> Self {
        self.request.images.push(Image { id: id.to_owned(), offset, length });
        let item = json!({ "id": id, "offset": offset, "length": length });
        match self.asks["multimodal"].as_array_mut() {
            Some(items) => items.push(item),
            None => self.asks["multimodal"] = json!([item]),
        }
        self
    }
}

fn named() -> Vec<Identity> {
    vec![
        none(),
        none().salt("tenant-a"),
        none().salt("tenant-b"),
        none().adapter("french"),
        none().adapter("german"),
        none().adapter("french").salt("tenant-a"),
        none().adapter("french").salt("french"),
    ]
}

fn pictured() -> Vec<Identity> {
    vec![
        none().image("x", 0, 20),
        none().image("x", 3, 20),
        none().image("x", 0, 36),
        none().image("y", 0, 20),
        none().image("x", 0, 3).image("y", 3, 17),
        none().image("x", 0, 20).salt("tenant-a"),
        none().image("x", 0, 20).adapter("french"),
    ]
}

/// Identities that nobody was sent.
fn unheard_of() -> Vec<Identity> {
    vec![
        none().salt("nobody"),
        none().adapter("tenant-a"),
        none().adapter("german").salt("tenant-a"),
        none().image("z", 0, 20),
        none().image("x", 0, 20).salt("nobody"),
        Identity { asks: json!({ "lora_id": 1 }), ..none() },
    ]
}

/// The prompt of the identity at a position: the same tokens, and a block more than the one before.
fn prompt(at: usize) -> Vec<u32> {
    (1_000..1_000 + (at as u32 + 3) * BLOCK as u32).collect()
}

/// The longest prompt that anybody is asked for.
fn whole() -> Vec<u32> {
    prompt(40)
}

async fn tokens(rig: &Rig, question: &Value) -> u64 {
    let (status, answer) = call(rig.http, "POST", "/v1/query", question).await;
    assert_eq!(status, 200, "{answer}");
    answer["matches"][0]["tokens"].as_u64().unwrap_or(0)
}

fn question(ids: &[u32], asks: &Value) -> Value {
    let mut question = json!({ "model": "sim", "token_ids": ids });
    question.as_object_mut().unwrap().extend(asks.as_object().unwrap().clone());
    question
}

/// Every identity finds its own blocks, all of them, and none of another's.
async fn each_finds_its_own(rig: &Rig, reported: &[Identity]) {
    for (at, identity) in reported.iter().enumerate() {
        let found = tokens(rig, &question(&whole(), &identity.asks)).await;
        assert_eq!(found, prompt(at).len() as u64, "{}", identity.asks);
    }
    let asked: Vec<&Value> = reported.iter().map(|identity| &identity.asks).collect();
    for identity in unheard_of().iter().filter(|identity| !asked.contains(&&identity.asks)) {
        assert_eq!(tokens(rig, &question(&whole(), &identity.asks)).await, 0, "{}", identity.asks);
    }
}

fn engine(profile: Profile, change: impl FnOnce(&mut SimConfig)) -> Engine {
    Engine::start(|config| {
        config.profile = profile;
        config.blocks = 600;
        config.loras = vec!["french".to_owned(), "german".to_owned()];
        change(config);
    })
}

/// The engine computes the same tokens under every identity.
fn serve(engine: &Engine, reported: &[Identity]) {
    for (at, identity) in reported.iter().enumerate() {
        engine.sim.complete(&prompt(at), 1, &identity.request).unwrap();
    }
    engine.sim.state();
}

#[tokio::test(flavor = "multi_thread")]
async fn vllm_and_what_follows_a_plane_over_it() {
    let reported: Vec<Identity> = named().into_iter().chain(pictured()).collect();
    let engine = engine(Profile::Vllm0_32, |_| {});
    serve(&engine, &reported);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    each_finds_its_own(&rig, &reported).await;
    // The same through SMG's contract, and as a copy of the plane.
    for spec in [
        json!({ "id": "r", "kind": "grpc", "model": "sim", "events": format!("grpc://{}", rig.grpc) }),
        json!({ "id": "m", "kind": "kvplane", "grpc": format!("http://{}", rig.grpc) }),
    ] {
        let behind = Rig::of_specs(Vec::new(), PlaneOptions::default()).await;
        let (status, answer) = crate::faults::members::ask(&behind, "POST", "/v1/engines", &spec).await;
        assert_eq!(status, 201, "{answer}");
        followed(&rig, &behind).await;
        each_finds_its_own(&behind, &reported).await;
    }
}

/// Waits until a plane has heard as many blocks as the one that it follows, and follows it.
async fn followed(rig: &Rig, behind: &Rig) {
    let deadline = Instant::now() + DEADLINE;
    let heard = || {
        let engines = behind.plane.engines();
        let streams = engines.iter().flat_map(|engine| &engine.streams);
        let live =
            |status: &kvplane_ingest::StreamStatus| status.continuity == kvplane_core::Continuity::Live;
        streams
            .map(|stream| stream.status())
            .any(|status| live(&status) && status.blocks == rig.status(0).blocks)
    };
    while !heard() {
        assert!(Instant::now() < deadline, "never followed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_tier_that_leaves_out_keys_holds_what_the_device_reported() {
    let reported: Vec<Identity> = named().into_iter().chain(pictured()).collect();
    let engine = engine(Profile::Vllm0_32, |config| {
        config.blocks = 40;
        config.vllm.host.blocks = 600;
        config.vllm.host.events = HostEvents::SelfDescribing;
    });
    serve(&engine, &reported);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    each_finds_its_own(&rig, &reported).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_on_the_host_of_which_the_device_reported_nothing_may_be_anybodys() {
    let engine = engine(Profile::Vllm0_32, |_| {});
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    let on = |medium: &str, keys: Option<Vec<OwnedExtraKey>>| {
        OwnedEvent::Stored(OwnedStored {
            block_hashes: vec![OwnedHash::Unsigned(7)],
            token_ids: (1..=BLOCK as u32).collect(),
            block_size: BLOCK as u32,
            medium: Some(medium.to_owned()),
            extra_keys: keys.map(|keys| vec![Some(keys)]),
            group: Some(0),
            spec_kind: Some("full_attention".to_owned()),
            ..OwnedStored::default()
        })
    };
    let publish = async |sequence: u64, event: OwnedEvent| {
        engine.sim.publish_raw(None, &encode_batch(Profile::Vllm0_32, sequence as f64, Some(0), &[event]));
        rig.until(0, "heard", |status| status.engine_sequence == Some(sequence)).await;
    };
    let ids: Vec<u32> = (1..=BLOCK as u32).collect();
    let plain = question(&ids, &json!({}));
    let salted = question(&ids, &json!({ "cache_salt": "tenant-a" }));
    publish(0, on("CPU", None)).await;
    assert_eq!((tokens(&rig, &plain).await, tokens(&rig, &salted).await), (0, 0));
    publish(1, on("GPU", Some(vec![OwnedExtraKey::Text("tenant-a".to_owned())]))).await;
    assert_eq!((tokens(&rig, &plain).await, tokens(&rig, &salted).await), (0, BLOCK));
}

#[tokio::test(flavor = "multi_thread")]
async fn vllm_that_numbers_its_adapters() {
    let engine = engine(Profile::Vllm0_10, |_| {});
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    let reported: Vec<Identity> = [None, Some(1), Some(2)]
        .map(|id| Identity { asks: json!({ "lora_id": id }), ..none() })
        .into_iter()
        .collect();
    for (at, identity) in reported.iter().enumerate() {
        let blocks = prompt(at).len() as u64 / BLOCK;
        let store = OwnedStored {
            block_hashes: (0..blocks).map(|block| OwnedHash::Unsigned(at as u64 * 100 + block)).collect(),
            token_ids: prompt(at),
            block_size: BLOCK as u32,
            lora_id: identity.asks["lora_id"].as_i64(),
            medium: Some("GPU".to_owned()),
            ..OwnedStored::default()
        };
        let events = [OwnedEvent::Stored(store)];
        engine.sim.publish_raw(None, &encode_batch(Profile::Vllm0_10, at as f64, Some(0), &events));
        rig.until(0, "heard", |status| status.engine_sequence == Some(at as u64)).await;
    }
    for (at, identity) in reported.iter().enumerate() {
        let found = tokens(&rig, &question(&whole(), &identity.asks)).await;
        assert_eq!(found, prompt(at).len() as u64, "{}", identity.asks);
    }
    // A name is what counts where there is one, as it is for blocks.
    let both = json!({ "lora_id": 1, "lora_name": "french" });
    assert_eq!(tokens(&rig, &question(&whole(), &both)).await, 0);
    assert_eq!(tokens(&rig, &question(&whole(), &json!({ "lora_id": 3 }))).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang() {
    let reported = named();
    let dynamo = SglangOptions { dynamo_format: true, ..SglangOptions::default() };
    let engine = engine(Profile::Sglang0_5_22, |config| config.sglang = dynamo);
    serve(&engine, &reported);
    // Images are values in the place of tokens.
    let picture = none().image("x", 0, 20);
    engine.sim.complete(&prompt(1), 1, &picture.request).unwrap();
    engine.sim.state();
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    each_finds_its_own(&rig, &reported).await;
    assert_eq!(tokens(&rig, &question(&whole(), &picture.asks)).await, 0, "nobody can know the values");
    let padded = |id: &str| {
        let images = vec![Image { id: id.to_owned(), offset: 0, length: 20 }];
        Keys { images, ..Keys::default() }.padded(&whole())
    };
    assert_eq!(tokens(&rig, &question(&padded("x"), &json!({}))).await, prompt(1).len() as u64);
    assert_eq!(tokens(&rig, &question(&padded("y"), &json!({}))).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokenspeed_tells_tokens_alone() {
    let reported = [none()];
    let engine = engine(Profile::Tokenspeed0_1_1, |_| {});
    serve(&engine, &reported);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    each_finds_its_own(&rig, &reported).await;
    for identity in named().iter().skip(1).chain(&pictured()) {
        assert_eq!(tokens(&rig, &question(&whole(), &identity.asks)).await, 0, "{}", identity.asks);
    }
}

/// TensorRT-LLM tells how much of an item lies before a block, and not where in a block it begins.
fn as_tensorrt_llm_tells(images: &[(&str, usize, usize)]) -> Identity {
    let images = images.iter().map(|&(id, offset, length)| Image { id: id.to_owned(), offset, length });
    let keys = Keys { images: images.collect(), ..Keys::default() };
    let block = |at: usize| -> Value {
        let items = keys.items_of_block(at * BLOCK as usize, (at + 1) * BLOCK as usize);
        let items = items.into_iter().map(|item| match item {
            OwnedExtraKey::Multimodal(id, before) => json!([id, before]),
            other => panic!("{other:?}"),
        });
        items.collect()
    };
    let lists: Vec<Value> = (0..whole().len() / BLOCK as usize).map(block).collect();
    let request = CompletionOptions { images: keys.images.clone(), ..CompletionOptions::default() };
    Identity { request, asks: json!({ "extra_keys": lists, "block_size": BLOCK }) }
}

#[tokio::test(flavor = "multi_thread")]
async fn tensorrt_llm_pushed() {
    let reported = [
        none(),
        as_tensorrt_llm_tells(&[("aa", 0, 20)]),
        as_tensorrt_llm_tells(&[("bb", 0, 20)]),
        as_tensorrt_llm_tells(&[("aa", 16, 20)]),
    ];
    let engine = engine(Profile::TrtllmZmq, |_| {});
    serve(&engine, &reported);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    // The first block of the last one has no image: a plain prompt has it too.
    each_finds_its_own(&rig, &reported).await;
    for identity in named().iter().skip(1).chain(&pictured()) {
        assert_eq!(tokens(&rig, &question(&whole(), &identity.asks)).await, 0, "{}", identity.asks);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tensorrt_llm_drained() {
    let mut reported = vec![none(), none().salt("tenant-a"), none().salt("tenant-b")];
    reported.push(as_tensorrt_llm_tells(&[("aa", 0, 20)]));
    reported.push(as_tensorrt_llm_tells(&[("bb", 0, 20)]));
    reported.push(as_tensorrt_llm_tells(&[("aa", 0, 20)]).salt("tenant-a"));
    let config = TrtConfig { levels: vec![600, 0], block_size: BLOCK as usize, ..TrtConfig::default() };
    let sim = TrtSim::start(config).unwrap();
    for (at, identity) in reported.iter().enumerate() {
        // Behind the prompt comes a block that is not full.
        sim.complete(&prompt(at), 1, &identity.request).unwrap();
    }
    let rig = Rig::of_specs(Vec::new(), PlaneOptions::default()).await;
    let spec = json!({
        "id": "e0", "kind": "trtllm", "model": "sim", "block_size": BLOCK,
        "events": format!("http://{}", sim.http_address()),
    });
    let (status, answer) = crate::faults::members::ask(&rig, "POST", "/v1/engines", &spec).await;
    assert_eq!(status, 201, "{answer}");
    let last = sim.state()[0].next_event_id.checked_sub(1);
    rig.until(0, "drained", |status| status.engine_sequence == last).await;
    each_finds_its_own(&rig, &reported).await;
    sim.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn extra_keys_name_what_an_event_does_and_items_what_a_prompt_has() {
    let engine = engine(Profile::Vllm0_32, |_| {});
    let digest = vec![0xab; 32];
    let mut reported: Vec<Identity> = named().into_iter().chain(pictured()).collect();
    let embeddings = CompletionOptions { embeddings: Some(digest), ..CompletionOptions::default() };
    reported.push(Identity { request: embeddings, asks: json!({}) });
    serve(&engine, &reported);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    let ids = whole();
    for (at, identity) in reported.iter().enumerate() {
        let CompletionOptions { cache_salt, lora, images, embeddings, .. } = identity.request.clone();
        let keys = Keys { lora: lora.clone(), salt: cache_salt.clone(), images, embeddings };
        let lists = ids
            .chunks(BLOCK as usize)
            .enumerate()
            .map(|(block, _)| keys.of_block(block * BLOCK as usize, (block + 1) * BLOCK as usize));
        let lists: Vec<Vec<OwnedExtraKey>> = lists.collect();
        // As an event has it: the adapter is named beside, the salt is among the keys of the first block.
        let json: Vec<Value> = lists.iter().map(|list| list.iter().map(key_json).collect()).collect();
        let asks = json!({ "lora_name": lora, "extra_keys": json, "block_size": BLOCK });
        assert_eq!(tokens(&rig, &question(&ids, &asks)).await, prompt(at).len() as u64, "{asks}");
        let mut request = proto::QueryRequest {
            model: "sim".to_owned(),
            token_ids: ids.clone(),
            block_size: Some(BLOCK as u32),
            lora_name: lora,
            extra_keys: lists.iter().map(|list| proto_keys(list)).collect(),
            ..proto::QueryRequest::default()
        };
        assert_eq!(over_grpc(&rig, request.clone()).await, prompt(at).len() as u64, "{asks}");
        // The salt may be named too; then it is the same one.
        request.cache_salt = cache_salt;
        assert_eq!(over_grpc(&rig, request.clone()).await, prompt(at).len() as u64, "{asks}");
        // As a prompt has it.
        if keys.embeddings.is_none() {
            request.block_size = None;
            request.extra_keys.clear();
            let item = |image: &Image| proto::MultimodalItem {
                id: image.id.clone(),
                offset: image.offset as u64,
                length: image.length as u64,
            };
            request.multimodal = keys.images.iter().map(item).collect();
            assert_eq!(over_grpc(&rig, request).await, prompt(at).len() as u64, "{asks}");
        }
    }
    // Keys are of blocks of one size: who has another cannot answer.
    let lists = vec![Value::Null; ids.len() / 8];
    let (_, answer) = call(
        rig.http,
        "POST",
        "/v1/query",
        &question(&ids, &json!({ "extra_keys": lists, "block_size": 8 })),
    )
    .await;
    assert_eq!((&answer["matches"], &answer["not_credited"]), (&json!([]), &json!([])));
}

async fn over_grpc(rig: &Rig, request: proto::QueryRequest) -> u64 {
    rig.grpc_query(request).await.unwrap().matches.first().map_or(0, |found| found.tokens)
}

fn key_json(key: &OwnedExtraKey) -> Value {
    match key {
        OwnedExtraKey::Text(text) => json!(text),
        OwnedExtraKey::Integer(number) => json!(number),
        OwnedExtraKey::Multimodal(id, offset) => json!([id, offset]),
        OwnedExtraKey::Bytes(bytes) => {
            json!({ "bytes": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() })
        }
    }
}

fn proto_keys(list: &[OwnedExtraKey]) -> proto::BlockKeys {
    use proto::extra_key::Key;
    let key = |key: &OwnedExtraKey| match key {
        OwnedExtraKey::Text(text) => Key::Text(text.clone()),
        OwnedExtraKey::Bytes(bytes) => Key::Blob(bytes.clone().into()),
        OwnedExtraKey::Integer(number) => Key::Number(*number),
        OwnedExtraKey::Multimodal(id, offset) => {
            Key::Multimodal(proto::MultimodalKey { id: id.clone(), offset: *offset })
        }
    };
    proto::BlockKeys { keys: list.iter().map(|one| proto::ExtraKey { key: Some(key(one)) }).collect() }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_hashes_of_two_engines_are_of_two_blocks() {
    let engines = [engine(Profile::Vllm0_32, |_| {}), engine(Profile::Vllm0_32, |_| {})];
    let rig = Rig::over(&[&engines[0], &engines[1]]).await;
    let prompts: [Vec<u32>; 2] = [(0..64).collect(), (500..564).collect()];
    let hashes = || (1..=4).map(OwnedHash::Unsigned).collect::<Vec<_>>();
    let publish = async |at: usize, sequence: u64, event: OwnedEvent| {
        engines[at]
            .sim
            .publish_raw(None, &encode_batch(Profile::Vllm0_32, sequence as f64, Some(0), &[event]));
        rig.until(at, "heard", |status| status.engine_sequence == Some(sequence)).await;
    };
    for (at, ids) in prompts.iter().enumerate() {
        rig.live(at).await;
        let store = OwnedStored {
            block_hashes: hashes(),
            token_ids: ids.clone(),
            block_size: BLOCK as u32,
            medium: Some("GPU".to_owned()),
            extra_keys: Some(vec![None; 4]),
            group: Some(0),
            spec_kind: Some("full_attention".to_owned()),
            ..OwnedStored::default()
        };
        publish(at, 0, OwnedEvent::Stored(store)).await;
    }
    let held = async |ids: &[u32]| {
        let (_, answer) = call(rig.http, "POST", "/v1/query", &question(ids, &json!({}))).await;
        let matches = answer["matches"].as_array().unwrap().clone();
        ["e0", "e1"].map(|engine| {
            let found = matches.iter().find(|found| found["engine"] == engine);
            found.map_or(0, |found| found["tokens"].as_u64().unwrap())
        })
    };
    assert_eq!(held(&prompts[0]).await, [64, 0]);
    assert_eq!(held(&prompts[1]).await, [0, 64]);
    // What one removes, the other keeps.
    let removed = OwnedRemoved {
        block_hashes: hashes().split_off(1),
        medium: Some("GPU".to_owned()),
        group: Some(0),
        ..OwnedRemoved::default()
    };
    publish(1, 1, OwnedEvent::Removed(removed)).await;
    assert_eq!(held(&prompts[0]).await, [64, 0]);
    assert_eq!(held(&prompts[1]).await, [0, 16]);
}
