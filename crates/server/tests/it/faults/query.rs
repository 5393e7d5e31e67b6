//! Who holds a prompt: every field of the answers. Under faults: `query_faults`; what is refused:
//! `query_refused`.

use kvplane_core::Continuity;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_sim::{CompletionOptions, Fault, GroupSpec, ReplayMode};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedRemoved, OwnedStored};
use serde_json::{Value, json};

use crate::rig::{Engine, Rig, call};

pub fn prompt(first: u32, tokens: u32) -> Vec<u32> {
    (first..first + tokens).collect()
}

pub fn ask(ids: &[u32]) -> Value {
    json!({ "model": "sim", "token_ids": ids })
}

/// The engine computes a prompt and publishes it.
pub fn complete(engine: &Engine, ids: &[u32], options: &CompletionOptions) {
    engine.sim.complete(ids, 1, options).unwrap();
    engine.sim.state();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_an_answer() {
    let engines = [Engine::plain(), Engine::plain(), Engine::start(|config| config.block_size = 32)];
    let ids = prompt(1_000, 100);
    for engine in &engines[..2] {
        complete(engine, &ids, &CompletionOptions::default());
    }
    let rig = Rig::over(&[&engines[0], &engines[1], &engines[2]]).await;
    let mut epochs = Vec::new();
    for (at, engine) in engines.iter().enumerate() {
        epochs.push(rig.exact(at, engine).await.epoch.as_u64());
    }
    let full = |engine: &str, epoch: u64| {
        let tiers = json!({ "device": 96, "host": 96, "disk": 96, "remote": 96 });
        json!({
            "engine": engine, "rank": 0, "epoch": epoch, "trust": "exact", "reason": null,
            "block_size": 16, "blocks": 6, "tokens": 96, "tiers": tiers, "cached_tokens": 96,
        })
    };
    let nothing = json!({ "device": 0, "host": 0, "disk": 0, "remote": 0 });
    let expected = json!({
        "matches": [full("e0", epochs[0]), full("e1", epochs[1]), {
            "engine": "e2", "rank": 0, "epoch": epochs[2], "trust": "exact", "reason": null,
            "block_size": null, "blocks": 0, "tokens": 0, "tiers": nothing, "cached_tokens": 0,
        }],
        "best": [{ "engine": "e0", "rank": 0 }, { "engine": "e1", "rank": 0 }],
        "trust": "exact",
        "not_credited": [],
        "counts": {
            "holders": 2, "best": 2, "empty": 1, "not_credited": 0, "not_credited_by_reason": {}, "shorter_than_block": 0,
        },
    });
    let mut answer = rig.query(&ask(&ids)).await;
    for found in answer["matches"].as_array_mut().unwrap() {
        let age = found.as_object_mut().unwrap().remove("age_ms").unwrap();
        assert!(age.as_u64().unwrap() <= 2_000, "a credited stream is younger than max_silence: {age}");
    }
    assert_eq!(answer, expected);

    // A second block size: each stream answers in its own, and the longer prefix is the better one.
    let longer = prompt(1_000, 200);
    complete(&engines[2], &longer, &CompletionOptions::default());
    rig.exact(2, &engines[2]).await;
    let answer = rig.query(&ask(&longer)).await;
    let reported =
        |found: &Value| (found["engine"].clone(), found["block_size"].clone(), found["tokens"].clone());
    let found: Vec<_> = answer["matches"].as_array().unwrap().iter().map(reported).collect();
    let expected = [("e2", 32, 192), ("e0", 16, 96), ("e1", 16, 96)];
    assert_eq!(found, expected.map(|(engine, size, tokens)| (json!(engine), json!(size), json!(tokens))));
    assert_eq!(answer["best"], json!([{ "engine": "e2", "rank": 0 }]));

    // Nobody holds anything: everybody is listed, nobody is best.
    let answer = rig.query(&ask(&prompt(9_000, 64))).await;
    assert_eq!((answer["matches"].as_array().unwrap().len(), &answer["best"]), (3, &json!([])));
    let answer = rig.query(&ask(&[])).await;
    assert_eq!(answer["best"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_holders_are_listed_best_first_and_all_are_counted() {
    let engines = [Engine::plain(), Engine::plain(), Engine::plain(), Engine::plain()];
    let ids = prompt(1_000, 100);
    for (engine, tokens) in engines.iter().zip([32, 64, 64]) {
        complete(engine, &ids[..tokens], &CompletionOptions::default());
    }
    let rig = Rig::over(&[&engines[0], &engines[1], &engines[2], &engines[3]]).await;
    for (at, engine) in engines.iter().enumerate() {
        rig.exact(at, engine).await;
    }
    let with = |field: &str, value: u64| {
        let mut question = ask(&ids);
        question[field] = json!(value);
        question
    };
    let listed = |answer: &Value| -> Vec<String> {
        let matches = answer["matches"].as_array().unwrap().iter();
        matches.map(|found| found["engine"].as_str().unwrap().to_owned()).collect()
    };
    let counts = |best: u64| json!({ "holders": 3, "best": best, "empty": 1, "not_credited": 0, "not_credited_by_reason": {}, "shorter_than_block": 0 });
    let answer = call(rig.http, "POST", "/v1/query", &ask(&ids)).await.1;
    assert_eq!(listed(&answer), ["e1", "e2", "e0"]);
    assert_eq!(answer["counts"], counts(2));
    let answer = rig.query(&with("limit", 1)).await;
    assert_eq!((listed(&answer), &answer["counts"]), (vec!["e1".to_owned()], &counts(2)));
    assert_eq!(answer["best"], json!([{ "engine": "e1", "rank": 0 }]));
    assert_eq!(listed(&rig.query(&with("limit", 0)).await), [""; 0]);
    let answer = rig.query(&with("min_tokens", 33)).await;
    assert_eq!((listed(&answer).len(), &answer["counts"]), (2, &counts(2)));
    assert_eq!(listed(&rig.query(&ask(&ids)).await), ["e1", "e2", "e0", "e3"], "with all");

    let question = |limit, all| proto::QueryRequest {
        model: "sim".to_owned(),
        token_ids: ids.clone(),
        limit,
        all,
        ..proto::QueryRequest::default()
    };
    let response = rig.grpc_query(question(Some(2), false)).await.unwrap();
    let reported = response.counts.unwrap();
    assert_eq!((response.matches.len(), response.best.len()), (2, 2));
    assert_eq!((reported.holders, reported.best, reported.empty, reported.not_credited), (3, 2, 1, 0));
    assert_eq!(rig.grpc_query(question(None, true)).await.unwrap().matches.len(), 4);
    let refused = rig.grpc_query(question(Some(2), true)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);

    // A prompt that fills nobody's block.
    let answer = rig.query(&ask(&ids[..15])).await;
    assert_eq!(answer["counts"]["shorter_than_block"], 3, "e3 has not said how large its blocks are");
}

#[tokio::test(flavor = "multi_thread")]
async fn hashes_instead_of_tokens() {
    let engines = [Engine::plain(), Engine::start(|config| config.block_size = 32)];
    let ids = prompt(1, 80);
    for engine in &engines {
        complete(engine, &ids, &CompletionOptions::default());
    }
    let rig = Rig::over(&[&engines[0], &engines[1]]).await;
    for (at, engine) in engines.iter().enumerate() {
        rig.exact(at, engine).await;
    }
    let mut hasher = kvplane_core::ContentHasher::default();
    let plain = kvplane_core::Namespace::PLAIN;
    let hashes: Vec<u64> = ids.chunks_exact(16).map(|block| hasher.plain(block, plain)).collect();
    let words: Vec<String> = hashes.iter().map(u64::to_string).collect();
    let signed: Vec<i64> = hashes.iter().map(|hash| hash.cast_signed()).collect();
    for list in [json!(hashes), json!(words), json!(signed)] {
        let answer = rig.query(&json!({ "model": "sim", "block_hashes": list, "block_size": 16 })).await;
        let matches = answer["matches"].as_array().unwrap();
        assert_eq!(matches.len(), 1, "a stream of another block size cannot answer");
        assert_eq!((&matches[0]["engine"], &matches[0]["tokens"]), (&json!("e0"), &json!(80)));
    }
    let mut previous = None;
    let prefixes: Vec<u64> =
        hashes.iter().map(|hash| *previous.insert(kvplane_core::chain_hash(previous, *hash))).collect();
    let chained = json!({ "model": "sim", "block_hashes": prefixes, "block_size": 16, "chained": true });
    assert_eq!(rig.query(&chained).await["matches"][0]["tokens"], 80);
    let (status, answer) =
        call(rig.http, "POST", "/query_by_hash", &json!({ "model_name": "sim", "block_hashes": signed }))
            .await;
    assert_eq!((status, &answer["scores"]), (200, &json!({ "7": { "0": 80 } })));
    let request = proto::QueryRequest {
        model: "sim".to_owned(),
        block_hashes: hashes,
        block_size: Some(16),
        ..proto::QueryRequest::default()
    };
    let response = rig.grpc_query(request).await.unwrap();
    assert_eq!((response.matches.len(), response.matches[0].tokens), (1, 80));
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_and_salts_are_other_prompts() {
    let engine = Engine::start(|config| config.loras = vec!["french".to_owned()]);
    let ids = prompt(1, 64);
    let salted = CompletionOptions { cache_salt: Some("tenant".to_owned()), ..CompletionOptions::default() };
    let adapted = CompletionOptions { lora: Some("french".to_owned()), ..CompletionOptions::default() };
    complete(&engine, &ids, &CompletionOptions::default());
    complete(&engine, &ids[..48], &salted);
    complete(&engine, &ids[..32], &adapted);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    let cases = [
        (json!({ "lora_name": null, "cache_salt": null }), 64),
        (json!({ "cache_salt": "tenant" }), 48),
        (json!({ "lora_name": "french" }), 32),
        (json!({ "lora_name": "french", "cache_salt": "tenant" }), 0),
        (json!({ "cache_salt": "" }), 64),
    ];
    for (namespace, tokens) in cases {
        let mut question = ask(&ids);
        question.as_object_mut().unwrap().extend(namespace.as_object().unwrap().clone());
        assert_eq!(rig.query(&question).await["matches"][0]["tokens"], tokens, "{namespace}");
    }
}

fn on(medium: &str, hashes: std::ops::Range<u64>, parent: Option<u64>) -> OwnedEvent {
    OwnedEvent::Stored(OwnedStored {
        token_ids: prompt(hashes.start as u32 * 16, (hashes.end - hashes.start) as u32 * 16),
        extra_keys: Some(hashes.clone().map(|_| None).collect()),
        block_hashes: hashes.map(OwnedHash::Unsigned).collect(),
        parent: parent.map(OwnedHash::Unsigned),
        block_size: 16,
        medium: Some(medium.to_owned()),
        group: Some(0),
        spec_kind: Some("full_attention".to_owned()),
        ..OwnedStored::default()
    })
}

fn off(medium: &str, hash: u64) -> OwnedEvent {
    OwnedEvent::Removed(OwnedRemoved {
        block_hashes: vec![OwnedHash::Unsigned(hash)],
        medium: Some(medium.to_owned()),
        group: Some(0),
        ..OwnedRemoved::default()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn tiers_count_themselves_and_everything_warmer_and_holes_end_a_prefix() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    let publish = async |sequence: u64, events: &[OwnedEvent]| {
        engine.sim.publish_raw(None, &encode_batch(Profile::Vllm0_32, sequence as f64, Some(0), events));
        rig.until(0, "heard", |status| status.engine_sequence == Some(sequence)).await;
    };
    let tiers = async || {
        let answer = rig.query(&ask(&prompt(16, 96))).await;
        let found = answer["matches"][0].clone();
        let tokens = |tier: &str| found["tiers"][tier].as_u64().unwrap();
        let all = [tokens("device"), tokens("host"), tokens("disk"), tokens("remote")];
        assert_eq!(found["tokens"], all[2], "local tiers count");
        assert_eq!(found["blocks"], all[2] / 16);
        all
    };
    let events = [
        on("GPU", 1..3, None),
        on("CPU", 3..5, Some(2)),
        on("DISK", 5..6, Some(4)),
        on("OBJ", 6..7, Some(5)),
    ];
    publish(0, &events).await;
    assert_eq!(tiers().await, [32, 64, 80, 96]);
    // A copy on the host lets go of the device without a loss there.
    publish(1, &[on("CPU", 2..3, Some(1)), off("GPU", 2)]).await;
    assert_eq!(tiers().await, [16, 64, 80, 96]);
    // A hole ends every prefix; filling it brings the suffix back.
    publish(2, &[off("GPU", 1)]).await;
    assert_eq!(tiers().await, [0, 0, 0, 0]);
    publish(3, &[on("DISK", 1..2, None)]).await;
    assert_eq!(tiers().await, [0, 0, 80, 96]);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_beside_a_busy_engine_are_those_of_the_engine() {
    let mut engine = Engine::start(|config| config.blocks = 64);
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    for round in 0..30 {
        engine.work(3);
        let ids = prompt(round * 8, 96);
        complete(&engine, &ids, &CompletionOptions::default());
        rig.exact(0, &engine).await;
        // At most all but one token of a prompt are ever served.
        let hit = engine.sim.would_hit(&ids, &CompletionOptions::default()) as u64;
        let found = &rig.query(&ask(&ids)).await["matches"][0];
        assert_eq!(found["cached_tokens"].as_u64(), Some(hit), "round {round}: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_reported_on_request_and_the_main_one_where_it_holds_more() {
    let engine = Engine::start(|config| {
        config.vllm.groups = vec![GroupSpec::sliding(64), GroupSpec::FULL];
        config.blocks = 80;
    });
    let ids = prompt(1, 320);
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    let length = |tokens: u64| {
        let tiers = json!({ "device": tokens, "host": tokens, "disk": tokens, "remote": tokens });
        json!({ "blocks": tokens / 16, "tokens": tokens, "tiers": tiers })
    };
    // What is asked for is the last block but one at most.
    complete(&engine, &ids[..160], &CompletionOptions::default());
    complete(&engine, &ids, &CompletionOptions::default());
    rig.caught_up(0, &engine).await;
    let found = rig.query(&ask(&ids)).await["matches"][0].clone();
    assert_eq!(
        (&found["tokens"], &found["main"], &found["groups"]),
        (&json!(304), &length(320), &Value::Null)
    );
    // Another prompt takes the window's end: what is left of it is what the first request had.
    complete(&engine, &prompt(5_000, 401), &CompletionOptions::default());
    rig.caught_up(0, &engine).await;
    let mut question = ask(&ids);
    question["groups"] = json!(true);
    let found = rig.query(&question).await["matches"][0].clone();
    assert_eq!(found["tokens"], engine.sim.would_hit(&ids, &CompletionOptions::default()));
    assert_eq!((&found["tokens"], &found["main"]), (&json!(160), &length(320)));
    let mut sliding = length(160);
    (sliding["group"], sliding["kind"]) = (json!(0), json!("sliding"));
    assert_eq!(found["groups"], json!([sliding]));
    let request = proto::QueryRequest {
        model: "sim".to_owned(),
        token_ids: ids,
        groups: true,
        ..proto::QueryRequest::default()
    };
    let found = rig.grpc_query(request).await.unwrap().matches.remove(0);
    let main = found.main.unwrap();
    assert_eq!((found.tokens, main.tokens, main.blocks, main.tiers.unwrap().host), (160, 320, 20, 320));
    let group = &found.groups[0];
    assert_eq!((group.group, group.kind.as_str()), (Some(0), "sliding"));
    assert_eq!(group.length.as_ref().unwrap().tokens, 160);
    // Of a cache with one group there is nothing more to say.
    let plain = Engine::plain();
    complete(&plain, &prompt(1, 64), &CompletionOptions::default());
    let rig = Rig::over(&[&plain]).await;
    rig.exact(0, &plain).await;
    let found =
        rig.query(&json!({ "model": "sim", "token_ids": prompt(1, 64), "groups": true })).await["matches"][0]
            .clone();
    assert_eq!((&found["main"], &found["groups"]), (&length(64), &json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_peers_routes_answer_in_their_own_words() {
    let engine = Engine::plain();
    let ids = prompt(1, 100);
    complete(&engine, &ids, &CompletionOptions::default());
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    let question = json!({ "model_name": "sim", "token_ids": ids, "routing_group": "default", "tenant_id": "x", "z": {} });
    let (status, answer) = call(rig.http, "POST", "/query", &question).await;
    let instance = json!({ "longest_matched": 96, "gpu": 96, "dp": { "0": 96 }, "cpu": 96, "disk": 96 });
    let expected =
        json!({ "scores": { "7": { "0": 96 } }, "frequencies": [], "instances": { "7": instance } });
    assert_eq!((status, answer), (200, expected));
    let refused = [
        (
            "/query",
            json!({ "model_name": "nope", "token_ids": [] }),
            404,
            "no indexer for model=nope routing_group=default",
        ),
        (
            "/query",
            json!({ "model_name": "sim", "routing_group": "g", "token_ids": [] }),
            404,
            "routing_group=g",
        ),
        (
            "/query_by_hash",
            json!({ "model_name": "sim", "block_hashes": [], "cache_salt": "s" }),
            400,
            "cache_salt",
        ),
    ];
    for (path, body, expected, reason) in refused {
        let (status, answer) = call(rig.http, "POST", path, &body).await;
        assert_eq!(status, expected, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(reason), "{answer}");
    }
    // What cannot be read is refused in text.
    for (path, body, reason) in [
        ("/query", json!({ "token_ids": [1] }), "model_name"),
        ("/query", json!({ "model_name": "sim" }), "token_ids"),
        ("/query", json!({ "model_name": "sim", "token_ids": [-1] }), "line 1"),
        ("/query_by_hash", json!({ "model_name": "sim" }), "block_hashes"),
    ] {
        let (status, answer) = crate::rig::text(rig.http, "POST", path, body.to_string()).await;
        assert_eq!(status, 422, "{answer}");
        assert!(answer.contains(reason), "{answer}");
    }
    let (status, dump) = crate::rig::send(rig.http, "GET", "/dump", String::new()).await;
    assert_eq!((status, &dump["sim:default"]["block_size"]), (200, &json!(16)));
    let events = dump["sim:default"]["events"].as_array().unwrap();
    let blocks: usize =
        events.iter().map(|event| event["event"]["data"]["stored"]["blocks"].as_array().unwrap().len()).sum();
    assert_eq!(blocks, 6);
    assert_eq!((&events[0]["worker_id"], &events[0]["storage_tier"]), (&json!(7), &json!("device")));
    // Which batch it ends with, for a kvplane that recovers from this one.
    let reported = &dump["sim:default"]["streams"][0];
    assert_eq!(
        (&reported["worker_id"], &reported["dp_rank"], &reported["trust"]),
        (&json!(7), &json!(0), &json!("exact"))
    );
    assert_eq!(reported["sequence"], json!(rig.status(0).engine_sequence));
    assert_eq!(reported["digest"].as_str().map(str::len), Some(32));
    // A stream that is not credited is not in it, and its block size is.
    engine.sim.fault(None, Fault::Replay(ReplayMode::Off));
    engine.sim.fault(None, Fault::Disconnect);
    rig.until(0, "recovering", |status| status.continuity != Continuity::Live).await;
    let nothing = json!({ "sim:default": { "block_size": 16, "events": [], "streams": [] } });
    assert_eq!(crate::rig::send(rig.http, "GET", "/dump", String::new()).await.1, nothing);
    let (_, answer) = call(rig.http, "POST", "/query", &question).await;
    assert_eq!(answer, json!({ "scores": {}, "frequencies": [], "instances": {} }));
}
