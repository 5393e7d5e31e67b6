//! Questions to a plane: who holds a prompt.

use kvplane_core::Trust;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_sim::CompletionOptions;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::http::call;
use crate::rig::Rig;

impl Rig {
    /// Asks for every stream, unless the question says otherwise.
    pub async fn query(&self, question: &Value) -> Value {
        let mut question = question.clone();
        if question["limit"].is_null() && question["min_tokens"].is_null() && question["all"].is_null() {
            question["all"] = json!(true);
        }
        let question = &question;
        let (status, body) = call(self.http, "POST", "/v1/query", question).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    /// Asks over gRPC.
    pub async fn grpc_query(
        &self,
        request: proto::QueryRequest,
    ) -> Result<proto::QueryResponse, tonic::Status> {
        self.client().await.query(request).await.map(tonic::Response::into_inner)
    }

    /// Asks what the first engine holds of its next request, and runs that: tokens that were predicted, and
    /// those that the engine found.
    pub async fn predict_and_run(&self, engine: &mut Engine, options: &CompletionOptions) -> (u64, u64) {
        let turn = engine.next_turn();
        let items = options
            .images
            .iter()
            .map(|item| json!({"id": item.id, "offset": item.offset, "length": item.length}));
        let mut question = json!({"model": "sim", "token_ids": turn.prompt, "all": true});
        question["cache_salt"] = json!(options.cache_salt);
        question["lora_name"] = json!(options.lora);
        if !options.images.is_empty() {
            question["multimodal"] = items.collect();
        }
        let (code, answer) = call(self.http, "POST", "/v1/query", &question).await;
        assert_eq!(code, 200, "{answer}");
        let found = &answer["matches"][0];
        assert_eq!(found["engine"], "e0", "{answer}");
        let predicted = found["cached_tokens"].as_u64().unwrap();
        (predicted, engine.run(&turn, options).cached_tokens as u64)
    }

    /// Who holds a prompt, by (engine, tokens, trust).
    pub async fn ask(&self, prompt: &[u32]) -> Vec<(String, u64, Trust)> {
        let request = proto::QueryRequest {
            model: "sim".to_owned(),
            token_ids: prompt.to_vec(),
            all: true,
            ..proto::QueryRequest::default()
        };
        let answer = self.client().await.query(request).await.unwrap().into_inner();
        let level = |level: proto::TrustLevel| match level {
            proto::TrustLevel::Exact => Trust::Exact,
            proto::TrustLevel::Lower => Trust::Lower,
            other => panic!("{other:?}"),
        };
        answer
            .matches
            .iter()
            .map(|found| (found.engine.clone(), found.tokens, level(found.trust())))
            .collect()
    }
}
