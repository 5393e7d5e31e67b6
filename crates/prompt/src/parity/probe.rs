//! Prompts that are compared with every engine when it starts: few, and together every dimension that a fixed
//! prompt can have.

use crate::input::{Chat, PromptInput};
use crate::json::Json;

/// A prompt that is no secret.
#[derive(Debug, Clone)]
pub struct Probe {
    /// What it is for.
    pub name: &'static str,
    /// The prompt.
    pub input: PromptInput,
}

const USER: &str = r#"{"role":"user","content":"What is the weather in Paris today?"}"#;
const SYSTEM: &str = r#"{"role":"system","content":"You are a careful assistant.  Answer briefly.\n"}"#;
const CALL: &str = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"call00001","type":"function",
    "function":{"name":"get_weather","arguments":"{\"city\": \"Paris\", \"days\": 2, \"detail\": {\"wind\": true}}"}}]}"#;
const RESULT: &str =
    r#"{"role":"tool","tool_call_id":"call00001","content":"{\"sky\": \"clear\", \"celsius\": 21.5}"}"#;
const TOOL: &str = r#"{"type":"function","function":{"name":"get_weather","description":"The weather of a city.",
    "parameters":{"type":"object","properties":{"city":{"type":"string","description":"The city's name"},
    "days":{"type":"integer","minimum":1}},"required":["city"]}}}"#;

/// The probes, simplest first, so that a contradiction blames the simplest dimension that is wrong.
pub fn probes() -> Vec<Probe> {
    let chat = |name, messages: &[&str], tools: &[&str]| {
        let parsed = |texts: &[&str]| -> Vec<Json> {
            texts.iter().filter_map(|text| Json::parse(text.as_bytes()).ok()).collect()
        };
        let chat = Chat { messages: parsed(messages), tools: parsed(tools), ..Chat::default() };
        Probe { name, input: PromptInput::Chat(chat) }
    };
    let thanks = r#"{"role":"user","content":"Thanks! And tomorrow?"}"#;
    let answer = r#"{"role":"assistant","content":"Sunny, 21 degrees."}"#;
    vec![
        Probe {
            name: "plain",
            input: PromptInput::text("The quick brown fox\njumps over 13 lazy dogs;  it's 1,234.5 km."),
        },
        Probe {
            name: "plain_non_ascii",
            input: PromptInput::text("Żółć, naïve Straße — 你好，世界！ こんにちは 👩‍👧 مرحبا"),
        },
        chat("chat", &[USER], &[]),
        chat("system", &[SYSTEM, USER], &[]),
        chat("multi_turn", &[SYSTEM, USER, answer, thanks], &[]),
        chat("non_ascii", &[r#"{"role":"user","content":"Wie heißt „Käse“ auf 中文? 🧀 e\u0301"}"#], &[]),
        chat(
            "parts",
            &[r#"{"role":"user","content":[{"type":"text","text":"One."},{"type":"text","text":"Two."}]}"#],
            &[],
        ),
        chat("tools", &[SYSTEM, USER], &[TOOL]),
        chat("tool_calls", &[SYSTEM, USER, CALL, RESULT, answer, thanks], &[TOOL]),
        chat("trailing_assistant", &[USER, answer], &[]),
    ]
}
