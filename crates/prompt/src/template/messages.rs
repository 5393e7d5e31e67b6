//! Messages and tools as vLLM hands them to a template, which is not as they come in a request.

use crate::PromptError;
use crate::input::Chat;
use crate::json::Json;

use super::ContentFormat;

/// Parts that are text, and the key that has it.
const TEXT_PARTS: [(&str, &str); 5] = [
    ("text", "text"),
    ("input_text", "text"),
    ("output_text", "text"),
    ("refusal", "refusal"),
    ("thinking", "thinking"),
];
/// A line that a coding agent puts in front of its system prompt; it differs from request to request, and
/// vLLM drops it.
const BILLING_HEADER: &str = "x-anthropic-billing-header";
/// Keys of parts that templates do not get, whatever the part.
const PART_KEYS: [&str; 26] = [
    "type",
    "text",
    "refusal",
    "thinking",
    "closed",
    "image_url",
    "input_audio",
    "audio_url",
    "video_url",
    "file",
    "uuid",
    "image_pil",
    "image_embeds",
    "audio_embeds",
    "video_embeds",
    "prompt_embeds",
    "data",
    "name",
    "tool_reference",
    "detail",
    "file_id",
    "annotations",
    "logprobs",
    "image",
    "audio",
    "video",
];

type Pairs = Vec<(String, Json)>;

fn wrong(at: usize, rest: &str, reason: impl Into<String>) -> PromptError {
    PromptError::field(format!("messages[{at}]{rest}"), reason)
}

/// Every message with the keys that a template may see.
pub(super) fn normalized(chat: &Chat, format: ContentFormat) -> Result<Vec<Json>, PromptError> {
    let messages = chat.messages.iter().enumerate();
    messages.map(|(at, message)| one(at, message, format).map(Json::Object)).collect()
}

fn one(at: usize, message: &Json, format: ContentFormat) -> Result<Pairs, PromptError> {
    if !matches!(message, Json::Object(_)) {
        return Err(wrong(at, "", format!("is {}, not an object", message.kind())));
    }
    let role = message.get("role").and_then(Json::as_str);
    let role = role.ok_or_else(|| wrong(at, ".role", "is missing"))?;
    let mut texts = parts(at, message, format)?;
    if role == "system" {
        texts = without_billing_header(texts);
    }
    let joined = format == ContentFormat::String || role == "tool";
    let content = if joined {
        let texts: Vec<&str> = texts.iter().map(|(text, _)| text.as_str()).collect();
        Json::String(texts.join("\n"))
    } else {
        let part = |(text, others): (String, Pairs)| {
            let mut pairs = vec![pair("type", Json::from("text")), pair("text", Json::String(text))];
            pairs.extend(others);
            Json::Object(pairs)
        };
        Json::Array(texts.into_iter().map(part).collect())
    };
    let mut pairs = vec![pair("role", Json::from(role)), pair("content", content)];
    match role {
        "assistant" => assistant(at, message, &mut pairs)?,
        "tool" => pairs.extend(message.get("tool_call_id").map(|id| pair("tool_call_id", id.clone()))),
        "developer" => pairs.push(pair("tools", message.get("tools").cloned().unwrap_or_default())),
        _ => {}
    }
    for key in ["name", "task"] {
        let text = message.get(key).filter(|value| value.as_str().is_some());
        pairs.extend(text.map(|text| pair(key, text.clone())));
    }
    alias_reasoning(&mut pairs);
    Ok(pairs)
}

fn pair(key: &str, value: Json) -> (String, Json) {
    (key.to_owned(), value)
}

/// The texts of a message, each with the keys that its part has besides.
fn parts(at: usize, message: &Json, format: ContentFormat) -> Result<Vec<(String, Pairs)>, PromptError> {
    let items = match message.given("content") {
        None => return Ok(Vec::new()),
        Some(Json::String(text)) => return Ok(vec![(text.clone(), Vec::new())]),
        Some(Json::Array(items)) => items,
        Some(other) => {
            return Err(wrong(
                at,
                ".content",
                format!("is {}, neither text nor a list of parts", other.kind()),
            ));
        }
    };
    let mut texts = Vec::with_capacity(items.len());
    for (number, item) in items.iter().enumerate() {
        let place = format!(".content[{number}]");
        let pairs = match item {
            Json::String(text) => {
                texts.push((text.clone(), Vec::new()));
                continue;
            }
            Json::Object(pairs) => pairs,
            other => return Err(wrong(at, &place, format!("is {}, not a part", other.kind()))),
        };
        let kind = item.get("type").and_then(Json::as_str);
        let kind = kind.ok_or_else(|| wrong(at, &place, "has no type"))?;
        let Some((_, key)) = TEXT_PARTS.into_iter().find(|(known, _)| *known == kind) else {
            let reason = "is not text: only the engine knows what other parts become; ask with token_ids and multimodal";
            return Err(wrong(at, &place, reason));
        };
        let text = match item.given(key) {
            Some(Json::String(text)) => text.clone(),
            Some(other) => return Err(wrong(at, &place, format!("has {} as {key}", other.kind()))),
            // vLLM skips these two, and fails on the others.
            None if kind == "text" || kind == "refusal" => continue,
            None => return Err(wrong(at, &place, format!("has no {key}"))),
        };
        let others = pairs.iter().filter(|(key, _)| !PART_KEYS.contains(&key.as_str())).cloned();
        texts.push((text, if format == ContentFormat::OpenAi { others.collect() } else { Vec::new() }));
    }
    Ok(texts)
}

fn without_billing_header(texts: Vec<(String, Pairs)>) -> Vec<(String, Pairs)> {
    let kept = texts.into_iter().filter_map(|(text, others)| {
        if !text.starts_with(BILLING_HEADER) {
            return Some((text, others));
        }
        let (_, rest) = text.split_once('\n')?;
        (!rest.is_empty()).then(|| (rest.to_owned(), others))
    });
    kept.collect()
}

fn assistant(at: usize, message: &Json, pairs: &mut Pairs) -> Result<(), PromptError> {
    match message.given("tool_calls") {
        None => {}
        // An empty list would put templates on the path of tool calls.
        Some(Json::Array(calls)) if calls.is_empty() => {}
        Some(Json::Array(calls)) => {
            let calls = calls.iter().enumerate();
            let calls: Result<_, _> = calls.map(|(number, call)| tool_call(at, number, call)).collect();
            pairs.push(pair("tool_calls", Json::Array(calls?)));
        }
        Some(other) => return Err(wrong(at, ".tool_calls", format!("is {}, not a list", other.kind()))),
    }
    if let Some(reasoning) = message.given("reasoning") {
        pairs.push(pair("reasoning", reasoning.clone()));
        pairs.push(pair("reasoning_content", reasoning.clone()));
    }
    Ok(())
}

/// A call with its arguments as an object: engines get them as text, and templates want keys.
fn tool_call(at: usize, number: usize, call: &Json) -> Result<Json, PromptError> {
    let place = format!(".tool_calls[{number}]");
    let Json::Object(pairs) = call else { return Err(wrong(at, &place, "is not an object")) };
    let is_function = call.get("type").is_none_or(|kind| kind.as_str() == Some("function"));
    let (true, Some(Json::Object(function))) = (is_function, call.get("function")) else {
        return Err(wrong(at, &place, "is not the call of a function"));
    };
    let arguments = match call.get("function").and_then(|function| function.get("arguments")) {
        Some(Json::Object(pairs)) => Json::Object(pairs.clone()),
        // What is no object, or no JSON, becomes an empty one: it is history, and a request must be able to go on.
        Some(Json::String(text)) => match Json::parse(text.as_bytes()) {
            Ok(object @ Json::Object(_)) => object,
            _ => Json::Object(Vec::new()),
        },
        _ => Json::Object(Vec::new()),
    };
    let mut function: Pairs = function.clone();
    set(&mut function, "arguments", arguments);
    let mut pairs = pairs.clone();
    set(&mut pairs, "function", Json::Object(function));
    Ok(Json::Object(pairs))
}

fn set(pairs: &mut Pairs, key: &str, value: Json) {
    match pairs.iter_mut().find(|(name, _)| name == key) {
        Some((_, place)) => *place = value,
        None => pairs.push(pair(key, value)),
    }
}

/// Reasoning under every name that templates read it by, as transformers does it.
fn alias_reasoning(pairs: &mut Pairs) {
    let reasoning = ["reasoning_content", "thinking", "reasoning"].into_iter().find_map(|key| {
        let (_, value) = pairs.iter().find(|(name, value)| name == key && *value != Json::Null)?;
        Some(value.clone())
    });
    if let Some(reasoning) = reasoning {
        if !pairs.iter().any(|(name, _)| name == "thinking") {
            pairs.insert(0, pair("thinking", reasoning.clone()));
        }
        set(pairs, "reasoning_content", reasoning);
    }
}

/// For a template that never names the role: developers' messages become the system's, and all of the
/// system's become one in front.
pub(super) fn without_developer(messages: Vec<Json>) -> Vec<Json> {
    let is = |message: &Json, role: &str| message.get("role").and_then(Json::as_str) == Some(role);
    if !messages.iter().any(|message| is(message, "developer")) {
        return messages;
    }
    let convert = |message: Json| match message {
        Json::Object(mut pairs)
            if pairs.iter().any(|(k, v)| k == "role" && v.as_str() == Some("developer")) =>
        {
            set(&mut pairs, "role", Json::from("system"));
            pairs.retain(|(key, _)| key != "tools");
            Json::Object(pairs)
        }
        other => other,
    };
    let messages: Vec<Json> = messages.into_iter().map(convert).collect();
    let systems = messages.iter().filter(|message| is(message, "system")).count();
    if systems == 1 && is(&messages[0], "system") {
        return messages;
    }
    let (systems, others): (Vec<Json>, Vec<Json>) =
        messages.into_iter().partition(|message| is(message, "system"));
    let texts: Vec<String> = systems.iter().map(text_of).filter(|text| !text.is_empty()).collect();
    let merged = Json::Object(vec![
        pair("role", Json::from("system")),
        pair("content", Json::String(texts.join("\n\n"))),
    ]);
    std::iter::once(merged).chain(others).collect()
}

fn text_of(message: &Json) -> String {
    match message.get("content") {
        Some(Json::String(text)) => text.clone(),
        Some(Json::Array(parts)) => {
            let texts = parts.iter().filter_map(|part| part.get("text").and_then(Json::as_str));
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// Tools with the keys that vLLM keeps, in its order; `None` where there are none.
pub(super) fn tools(chat: &Chat) -> Result<Option<Vec<Json>>, PromptError> {
    let tool = |(at, tool): (usize, &Json)| {
        let wrong = |rest: &str, reason: &str| PromptError::field(format!("tools[{at}]{rest}"), reason);
        let function = tool.get("function").filter(|function| matches!(function, Json::Object(_)));
        let function = function.ok_or_else(|| wrong(".function", "is missing"))?;
        if tool.get("type").is_some_and(|kind| kind.as_str() != Some("function")) {
            return Err(wrong(".type", "is not \"function\""));
        }
        if function.get("name").and_then(Json::as_str).is_none() {
            return Err(wrong(".function.name", "is missing"));
        }
        let deferred = function.given("defer_loading").or_else(|| tool.given("defer_loading"));
        let of_function = |key: &str| pair(key, function.get(key).cloned().unwrap_or_default());
        let mut kept = vec![of_function("name"), of_function("description"), of_function("parameters")];
        kept.extend(function.given("strict").map(|strict| pair("strict", strict.clone())));
        kept.extend(deferred.map(|deferred| pair("defer_loading", deferred.clone())));
        let mut pairs = vec![pair("type", Json::from("function")), pair("function", Json::Object(kept))];
        pairs.extend(tool.given("defer_loading").map(|deferred| pair("defer_loading", deferred.clone())));
        Ok(Json::Object(pairs))
    };
    if chat.tools.is_empty() {
        return Ok(None);
    }
    chat.tools.iter().enumerate().map(tool).collect::<Result<_, _>>().map(Some)
}
