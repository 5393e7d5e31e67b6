//! Answers in the shapes of the engines' APIs, whole and as events.

use serde_json::{Value, json};

/// Which answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    Chat,
    Responses,
    Messages,
}

/// What an answer says besides its tokens.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) shape: Shape,
    pub(super) model: String,
    pub(super) prompt_tokens: usize,
    pub(super) cached: usize,
    pub(super) include_usage: bool,
    pub(super) transfer: Option<Value>,
}

fn words(tokens: &[u32]) -> String {
    let words: Vec<String> = tokens.iter().map(u32::to_string).collect();
    words.join(" ")
}

/// An event with a name, as APIs have it that name theirs.
fn named(data: &Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default())
}

impl Answer {
    fn id(&self) -> String {
        let created = kvplane_runtime::unix_time().as_secs();
        match self.shape {
            Shape::Text => format!("cmpl-{created}"),
            Shape::Chat => format!("chatcmpl-{created}"),
            Shape::Responses => format!("resp_{created}"),
            Shape::Messages => format!("msg_{created}"),
        }
    }

    fn usage(&self, output: usize) -> Value {
        let (prompt, cached) = (self.prompt_tokens, self.cached);
        match self.shape {
            Shape::Text | Shape::Chat => json!({
                "prompt_tokens": prompt,
                "completion_tokens": output,
                "total_tokens": prompt + output,
                "prompt_tokens_details": {"cached_tokens": cached},
            }),
            Shape::Responses => json!({
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + output,
            }),
            Shape::Messages => json!({
                "input_tokens": prompt - cached,
                "cache_read_input_tokens": cached,
                "cache_creation_input_tokens": 0,
                "output_tokens": output,
            }),
        }
    }

    /// The answer in one piece.
    pub(super) fn whole(&self, tokens: &[u32]) -> Value {
        let created = kvplane_runtime::unix_time().as_secs();
        let (id, model, usage) = (self.id(), &self.model, self.usage(tokens.len()));
        let mut whole = match self.shape {
            Shape::Text => json!({
                "id": id, "object": "text_completion", "created": created, "model": model,
                "choices": [{
                    "index": 0, "text": words(tokens), "token_ids": tokens, "logprobs": null, "finish_reason": "length",
                }],
                "usage": usage,
            }),
            Shape::Chat => json!({
                "id": id, "object": "chat.completion", "created": created, "model": model,
                "choices": [{
                    "index": 0, "message": {"role": "assistant", "content": words(tokens)},
                    "token_ids": tokens, "finish_reason": "length",
                }],
                "usage": usage,
            }),
            Shape::Responses => self.response(Some(tokens)),
            Shape::Messages => json!({
                "id": id, "type": "message", "role": "assistant", "model": model,
                "content": [{"type": "text", "text": words(tokens)}],
                "stop_reason": "max_tokens", "stop_sequence": null, "usage": usage,
            }),
        };
        if let Some(transfer) = &self.transfer {
            whole["kv_transfer_params"] = transfer.clone();
        }
        whole
    }

    /// `OpenAI`'s response, with its output once there is some.
    fn response(&self, tokens: Option<&[u32]>) -> Value {
        let created = kvplane_runtime::unix_time().as_secs();
        json!({
            "id": self.id(), "object": "response", "created_at": created, "model": self.model,
            "status": if tokens.is_some() { "completed" } else { "in_progress" },
            "output": tokens.map(item).into_iter().collect::<Vec<_>>(),
            "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
            "usage": tokens.map(|tokens| self.usage(tokens.len())),
        })
    }

    fn chunk(&self, choices: &Value, usage: Option<Value>) -> String {
        let object = if self.shape == Shape::Chat { "chat.completion.chunk" } else { "text_completion" };
        let created = kvplane_runtime::unix_time().as_secs();
        let mut chunk = json!({"id": self.id(), "object": object, "created": created, "model": self.model, "choices": choices});
        if self.include_usage {
            chunk["usage"] = usage.unwrap_or_default();
        }
        format!("data: {chunk}\n\n")
    }

    /// What comes before the first token.
    pub(super) fn begins(&self) -> String {
        match self.shape {
            Shape::Text | Shape::Chat => String::new(),
            Shape::Responses => [
                json!({"type": "response.created", "sequence_number": 0, "response": self.response(None)}),
                json!({"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": {
                    "id": "item", "type": "message", "role": "assistant", "status": "in_progress", "content": [],
                }}),
                json!({"type": "response.content_part.added", "sequence_number": 2, "item_id": "item", "output_index": 0,
                    "content_index": 0, "part": {"type": "output_text", "text": "", "annotations": []}}),
            ]
            .iter()
            .map(named)
            .collect(),
            Shape::Messages => [
                json!({"type": "message_start", "message": {
                    "id": self.id(), "type": "message", "role": "assistant", "model": self.model, "content": [],
                    "stop_reason": null, "stop_sequence": null, "usage": self.usage(0),
                }}),
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            ]
            .iter()
            .map(named)
            .collect(),
        }
    }

    /// One token.
    pub(super) fn token(&self, token: u32) -> String {
        let text = format!("{token} ");
        match self.shape {
            Shape::Text => self.chunk(&json!([{"index": 0, "text": text, "finish_reason": null}]), None),
            Shape::Chat => {
                self.chunk(&json!([{"index": 0, "delta": {"content": text}, "finish_reason": null}]), None)
            }
            Shape::Responses => named(&json!({
                "type": "response.output_text.delta", "sequence_number": 3, "item_id": "item", "output_index": 0,
                "content_index": 0, "delta": text, "logprobs": [],
            })),
            Shape::Messages => named(&json!({
                "type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text},
            })),
        }
    }

    /// What comes behind the last token.
    pub(super) fn ends(&self, tokens: &[u32]) -> String {
        match self.shape {
            Shape::Text | Shape::Chat => {
                let usage = self.include_usage.then(|| self.chunk(&json!([]), Some(self.usage(tokens.len()))));
                usage.unwrap_or_default() + "data: [DONE]\n\n"
            }
            Shape::Responses => [
                json!({"type": "response.output_text.done", "sequence_number": 4, "item_id": "item", "output_index": 0,
                    "content_index": 0, "text": words(tokens), "logprobs": []}),
                json!({"type": "response.output_item.done", "sequence_number": 5, "output_index": 0, "item": item(tokens)}),
                json!({"type": "response.completed", "sequence_number": 6, "response": self.response(Some(tokens))}),
            ]
            .iter()
            .map(named)
            .collect(),
            Shape::Messages => [
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens", "stop_sequence": null},
                    "usage": self.usage(tokens.len())}),
                json!({"type": "message_stop"}),
            ]
            .iter()
            .map(named)
            .collect(),
        }
    }

    /// An error where others have tokens.
    pub(super) fn failed(message: &str) -> String {
        format!("data: {}\n\ndata: [DONE]\n\n", json!({"error": {"message": message, "code": 500}}))
    }
}

fn item(tokens: &[u32]) -> Value {
    json!({
        "id": "item", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": words(tokens), "annotations": []}],
    })
}
