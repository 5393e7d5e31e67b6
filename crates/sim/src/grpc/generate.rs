//! Requests over gRPC: the model's cache runs them, and their last message says what was cached.

use std::sync::Arc;

use kvplane_proto::engines::vllm::generate_response::Response as Part;
use kvplane_proto::engines::vllm::{
    GenerateComplete, GenerateRequest, GenerateResponse, GenerateStreamChunk, SamplingParams, TokenizedInput,
};
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

use super::{Answered, Servant};

/// Tokens to generate where the request does not say.
const MAX_TOKENS: u32 = 16;

impl Servant {
    pub(super) fn generate_vllm(&self, request: GenerateRequest) -> Answered<BoxStream<GenerateResponse>> {
        let GenerateRequest { tokenized, sampling_params, stream, data_parallel_rank, .. } = request;
        let Some(TokenizedInput { input_ids, .. }) = tokenized else {
            return Err(Status::invalid_argument("only tokenized prompts are simulated"));
        };
        let SamplingParams { max_tokens, n } = sampling_params.unwrap_or_default();
        if n > 1 {
            return Err(Status::invalid_argument("only one output is simulated"));
        }
        let rank = data_parallel_rank.map(u32::try_from).transpose();
        let rank = rank.map_err(|_| Status::invalid_argument("data_parallel_rank must not be negative"))?;
        let max_tokens = max_tokens.unwrap_or(MAX_TOKENS) as usize;
        let Some(ran) = Arc::clone(&self.engine).generate(&input_ids, max_tokens, rank) else {
            return Err(Status::unimplemented("there is no model behind a relay"));
        };
        let ran = ran.map_err(|error| Status::internal(error.to_string()))?;
        let (prompt_tokens, cached_tokens) = (input_ids.len() as u32, ran.cached_tokens as u32);
        let chunk = |token: &u32| {
            Part::Chunk(GenerateStreamChunk {
                token_ids: vec![*token],
                prompt_tokens,
                completion_tokens: 1,
                cached_tokens,
                index: 0,
            })
        };
        let mut parts: Vec<Part> = ran.output.iter().filter(|_| stream).map(chunk).collect();
        parts.push(Part::Complete(GenerateComplete {
            completion_tokens: ran.output.len() as u32,
            output_ids: ran.output,
            finish_reason: "length".to_owned(),
            prompt_tokens,
            cached_tokens,
            index: 0,
        }));
        let messages = parts.into_iter().map(|part| Ok(GenerateResponse { response: Some(part) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }
}
