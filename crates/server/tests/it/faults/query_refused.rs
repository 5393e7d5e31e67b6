//! Questions that are refused, over HTTP and gRPC: which field, and why.

use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::rig::{Engine, Rig};

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_answered_is_refused_with_field_and_reason() {
    let engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    let long = "1,".repeat(1 << 20) + "1";
    let cases = [
        ("", "body", "is not a JSON object"),
        ("[]", "body", "is not a JSON object"),
        (r#"{"model":"sim","token_ids":[1]"#, "body", "is not JSON"),
        (r#"{"model":"sim","token_ids":[1]} x"#, "body", "is not JSON"),
        (r#"{"token_ids":[1]}"#, "model", "is missing"),
        (r#"{"model":null,"token_ids":[1]}"#, "model", "is missing"),
        (r#"{"model":7,"token_ids":[1]}"#, "model", "is not text"),
        (r#"{"model":"nope","token_ids":[1]}"#, "model", "is not known"),
        (r#"{"model":"sim"}"#, "token_ids", "is missing"),
        (r#"{"model":"sim","token_ids":null}"#, "token_ids", "is missing"),
        (r#"{"model":"sim","token_ids":5}"#, "token_ids", "is not a list"),
        (r#"{"model":"sim","token_ids":[4294967295,4294967296]}"#, "token_ids", "element 1 is not"),
        (r#"{"model":"sim","token_ids":[-1]}"#, "token_ids", "element 0 is not"),
        (r#"{"model":"sim","token_ids":[1,2.5]}"#, "token_ids", "element 1 is not"),
        (r#"{"model":"sim","token_ids":[1e3]}"#, "token_ids", "element 0 is not"),
        (r#"{"model":"sim","token_ids":[1,"x"]}"#, "token_ids", "element 1 is not"),
        (
            r#"{"model":"sim","token_ids":[1],"block_hashes":[1],"block_size":16}"#,
            "token_ids",
            "exclude each other",
        ),
        (r#"{"model":"sim","block_hashes":[1]}"#, "block_size", "is missing"),
        (r#"{"model":"sim","block_hashes":[1],"block_size":0}"#, "block_size", "must not be 0"),
        (r#"{"model":"sim","block_hashes":[1],"block_size":-4}"#, "block_size", "is not a whole number"),
        (
            r#"{"model":"sim","block_hashes":[18446744073709551616],"block_size":16}"#,
            "block_hashes",
            "element 0",
        ),
        (r#"{"model":"sim","token_ids":[1],"block_size":16}"#, "block_size", "goes with block_hashes"),
        (
            r#"{"model":"sim","block_hashes":[1],"block_size":16,"cache_salt":"s"}"#,
            "cache_salt",
            "is part of",
        ),
        (r#"{"model":"sim","block_hashes":[1],"block_size":16,"lora_name":"l"}"#, "lora_name", "is part of"),
        (r#"{"model":"sim","token_ids":[1],"chained":true}"#, "chained", "goes with block_hashes"),
        (r#"{"model":"sim","block_hashes":[1],"block_size":16,"lora_id":1}"#, "lora_id", "is part of"),
        (r#"{"model":"sim","block_hashes":[1],"block_size":16,"extra_keys":[]}"#, "extra_keys", "is part of"),
        (r#"{"model":"sim","block_hashes":[1],"block_size":16,"multimodal":[]}"#, "multimodal", "is part of"),
        (r#"{"model":"sim","token_ids":[1],"lora_id":"x"}"#, "lora_id", "is not a whole number"),
        (r#"{"model":"sim","token_ids":[1],"groups":1}"#, "groups", "is not true or false"),
        (r#"{"model":"sim","token_ids":[1],"limit":-1}"#, "limit", "is not a whole number"),
        (r#"{"model":"sim","token_ids":[1],"limit":4294967296}"#, "limit", "is not a whole number"),
        (r#"{"model":"sim","token_ids":[1],"min_tokens":"x"}"#, "min_tokens", "is not a whole number"),
        (r#"{"model":"sim","token_ids":[1],"all":1}"#, "all", "is not true or false"),
        (r#"{"model":"sim","token_ids":[1],"all":true,"limit":5}"#, "limit", "exclude each other"),
        (r#"{"model":"sim","token_ids":[1],"all":true,"min_tokens":5}"#, "min_tokens", "exclude each other"),
        (
            r#"{"model":"sim","token_ids":[1],"extra_keys":[null]}"#,
            "block_size",
            "is missing beside extra_keys",
        ),
        (
            r#"{"model":"sim","token_ids":[1],"extra_keys":[1],"block_size":1}"#,
            "extra_keys",
            "is not a list per",
        ),
        (r#"{"model":"sim","token_ids":[1],"extra_keys":[],"block_size":1}"#, "extra_keys", "has 0 lists"),
        (
            r#"{"model":"sim","token_ids":[1],"extra_keys":[null,null],"block_size":1}"#,
            "extra_keys",
            "has 2 lists",
        ),
        (
            r#"{"model":"sim","token_ids":[1],"extra_keys":[null],"block_size":1,"multimodal":[]}"#,
            "multimodal",
            "exclude each other",
        ),
        (
            r#"{"model":"sim","token_ids":[1],"multimodal":[{"id":"x"}]}"#,
            "multimodal",
            "is not a list of items",
        ),
        (
            r#"{"model":"sim","token_ids":[1,2],"multimodal":[{"id":"x","offset":0,"length":0}]}"#,
            "multimodal",
            "item 0 has no length",
        ),
        (
            r#"{"model":"sim","token_ids":[1,2],"multimodal":[{"id":"x","offset":1,"length":2}]}"#,
            "multimodal",
            "item 0 goes on behind",
        ),
        (
            r#"{"model":"sim","token_ids":[1,2],"multimodal":[{"id":"x","offset":0,"length":2},{"id":"x","offset":1,"length":1}]}"#,
            "multimodal",
            "item 1 begins before",
        ),
        (r#"{"model":"sim","token_ids":[1],"colour":"red"}"#, "body", "unknown field \"colour\""),
        (r#"{"model":"sim","model":"sim","token_ids":[1]}"#, "model", "is given twice"),
        (
            &format!(r#"{{"model":"sim","token_ids":[{long}]}}"#),
            "token_ids",
            "has more than 1048576 elements",
        ),
    ];
    for (body, field, reason) in cases {
        let (status, answer) = crate::rig::send(rig.http, "POST", "/v1/query", body.to_owned()).await;
        let error = &answer["error"];
        let shown = &body[..body.len().min(120)];
        assert_eq!((status, &error["code"]), (400, &json!("invalid_argument")), "{shown}: {answer}");
        assert_eq!(error["field"], field, "{shown}: {answer}");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{field}: ")) && message.contains(reason), "{shown}: {message}");
    }
    // Too large by what it says of itself: refused before anything of it is read.
    let mut socket = tokio::net::TcpStream::connect(rig.http).await.unwrap();
    socket
        .write_all(b"POST /v1/query HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\n\r\n")
        .await
        .unwrap();
    let mut answer = vec![0; 4096];
    let length = socket.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]);
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("body: has more than"), "{answer}");
    let (status, _) = crate::rig::send(rig.http, "GET", "/v1/query", String::new()).await;
    assert_eq!(status, 405);

    let query = |change: fn(&mut proto::QueryRequest)| {
        let mut request = proto::QueryRequest {
            model: "sim".to_owned(),
            token_ids: vec![1],
            ..proto::QueryRequest::default()
        };
        change(&mut request);
        request
    };
    let cases: [(proto::QueryRequest, &str); 6] = [
        (query(|request| request.model.clear()), "model: is missing; known models: sim"),
        (
            query(|request| request.model = "nope".to_owned()),
            "model: \"nope\" is not known; known models: sim",
        ),
        (query(|request| request.token_ids.clear()), "token_ids: is missing"),
        (query(|request| request.block_hashes.push(1)), "token_ids: and block_hashes exclude"),
        (query(|request| request.token_ids = vec![1; (1 << 20) + 1]), "token_ids: has more than 1048576"),
        (query(|request| request.block_size = Some(16)), "block_size: goes with block_hashes"),
    ];
    let mut client = PlaneClient::connect(format!("http://{}", rig.grpc)).await.unwrap();
    let mut batch = Vec::new();
    for (at, (request, reason)) in cases.iter().enumerate() {
        let status = rig.grpc_query(request.clone()).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().contains(reason), "{}", status.message());
        batch.push(proto::QueryRequest { id: at as u64, ..request.clone() });
    }
    // In a stream a refusal is a result among others.
    batch.push(query(|request| request.id = 99));
    let requests =
        futures::stream::iter([proto::QueryBatch { queries: batch }, proto::QueryBatch::default()]);
    let mut answers = client.query_stream(requests).await.unwrap().into_inner();
    let results = answers.message().await.unwrap().unwrap().results;
    for (at, (_, reason)) in cases.iter().enumerate() {
        let Some(proto::query_result::Outcome::Refusal(refusal)) = &results[at].outcome else {
            panic!("{results:?}")
        };
        assert_eq!((results[at].id, refusal.code.as_str()), (at as u64, "invalid_argument"));
        assert!(refusal.message.contains(reason) && refusal.message.starts_with(refusal.field()));
    }
    assert_eq!(results.last().unwrap().id, 99);
    assert!(matches!(results.last().unwrap().outcome, Some(proto::query_result::Outcome::Response(_))));
    assert_eq!(answers.message().await.unwrap(), Some(proto::QueryBatchResponse::default()));
    assert_eq!(answers.message().await.unwrap(), None);
}
