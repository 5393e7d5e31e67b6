//! The arguments that an `SGLang` or a `TokenSpeed` server was started with, as far as they tell where it
//! publishes.
//!
//! SMG's `GetServerInfo` has them, and so have the HTTP servers of `SGLang` before 0.5.13 and of
//! `TokenSpeed`:
//!
//! ```json
//! {"dp_size": 2, "page_size": 16,
//!  "kv_events_config": "{\"publisher\": \"zmq\", \"endpoint\": \"tcp://*:5557\", \"topic\": \"\"}"}
//! ```

use serde_json::{Map, Value};

use super::{Description, Refusal, bad, block_size, counted, rank_count, text};

/// Where both publish unless configured otherwise.
const DEFAULT_ENDPOINT: &str = "tcp://*:5557";

/// What it means that no publisher is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsaid {
    /// Nothing is published (`SGLang`).
    IsOff,
    /// It is the usual one (`TokenSpeed`).
    IsZmq,
}

/// Reads them.
pub(super) fn parse(answer: &Map<String, Value>, unsaid: Unsaid) -> Result<Description, Refusal> {
    let args = match answer.get("server_args") {
        Some(Value::Object(args)) => args,
        _ => answer,
    };
    let config = match args.get("kv_events_config") {
        None => return Err(Refusal::NoSources("the engine says nothing about its events")),
        Some(Value::Null) => return Err(Refusal::Disabled),
        Some(Value::String(text)) if text.is_empty() => return Err(Refusal::Disabled),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(config)) => config,
            _ => return bad("kv_events_config is not a JSON object"),
        },
        Some(Value::Object(config)) => config.clone(),
        Some(_) => return bad("kv_events_config is not a text"),
    };
    if config.get("enable_kv_cache_events") == Some(&Value::Bool(false)) {
        return Err(Refusal::Disabled);
    }
    match (text(&config, "publisher")?, unsaid) {
        (Some("zmq"), _) | (None, Unsaid::IsZmq) => {}
        (Some("null"), _) | (None, Unsaid::IsOff) => return Err(Refusal::Disabled),
        (Some(_), _) => return bad("publisher is none that is known"),
    }
    let events = text(&config, "endpoint")?.unwrap_or(DEFAULT_ENDPOINT);
    let replay = text(&config, "replay_endpoint")?.filter(|address| !address.is_empty());
    let topic = text(&config, "topic")?.unwrap_or_default();
    let ranks = match rank_count(args, "dp_size")? {
        Some(ranks) => ranks,
        None => rank_count(args, "data_parallel_size")?.unwrap_or(1),
    };
    // Pages are cut over the ranks of context parallelism; an event is about all their parts.
    let parts = block_size(args, "dcp_size")?.unwrap_or(1);
    let page = block_size(args, "page_size")?;
    Ok(Description {
        publishers: counted(events, replay, topic, ranks)?,
        block_size: page.and_then(|page| page.checked_mul(parts)),
        untold_adapters: adapters_are_untold(args),
    })
}

/// Whether the server has adapters, and events that do not name them: only those of the dynamo format do.
pub(super) fn adapters_are_untold(args: &Map<String, Value>) -> bool {
    let enabled = args.get("enable_lora") == Some(&Value::Bool(true));
    let given = match args.get("lora_paths") {
        Some(Value::Array(paths)) => !paths.is_empty(),
        Some(Value::Object(paths)) => !paths.is_empty(),
        _ => false,
    };
    let format = |config: &Value| config.get("format").and_then(Value::as_str) == Some("dynamo");
    let named = match args.get("kv_events_config") {
        Some(Value::String(text)) => serde_json::from_str(text).is_ok_and(|config| format(&config)),
        Some(config) => format(config),
        None => false,
    };
    (enabled || given) && !named
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(answer: &Value, unsaid: Unsaid) -> Result<Description, Refusal> {
        parse(answer.as_object().unwrap(), unsaid)
    }

    #[test]
    fn the_configuration_is_a_text_in_the_arguments() {
        let config = r#"{"publisher": "zmq", "endpoint": "tcp://*:6000", "replay_endpoint": "tcp://*:7000", "topic": "t"}"#;
        // As HTTP servers have it, and as it comes out of a protobuf `Struct`.
        let flat = json!({"dp_size": 2, "page_size": 64, "dcp_size": 2, "kv_events_config": config});
        let nested = json!({"server_args": {"dp_size": 2.0, "page_size": 64.0, "dcp_size": 2.0, "kv_events_config": config}});
        for answer in [flat, nested] {
            let Description { publishers, block_size, .. } = read(&answer, Unsaid::IsOff).unwrap();
            assert_eq!(block_size, Some(128));
            assert_eq!(publishers[&1].events.as_deref(), Some("tcp://*:6001"));
            assert_eq!(publishers[&1].replay.as_deref(), Some("tcp://*:7001"));
            assert_eq!(publishers[&1].topic, "t");
        }
    }

    #[test]
    fn a_publisher_that_is_not_named_is_off_or_the_usual_one() {
        let answer = json!({"kv_events_config": "{}"});
        assert_eq!(read(&answer, Unsaid::IsOff), Err(Refusal::Disabled));
        let publishers = read(&answer, Unsaid::IsZmq).unwrap().publishers;
        assert_eq!(publishers[&0].events.as_deref(), Some(DEFAULT_ENDPOINT));
    }

    #[test]
    fn engines_without_events_are_distinguished_from_answers_that_make_no_sense() {
        for unsaid in [Unsaid::IsOff, Unsaid::IsZmq] {
            assert!(matches!(read(&json!({}), unsaid), Err(Refusal::NoSources(_))));
            for off in [json!(null), json!(""), json!(r#"{"publisher": "null"}"#)] {
                assert_eq!(read(&json!({ "kv_events_config": off }), unsaid), Err(Refusal::Disabled));
            }
            let off = json!({"kv_events_config": {"enable_kv_cache_events": false, "publisher": "zmq"}});
            assert_eq!(read(&off, unsaid), Err(Refusal::Disabled));
            for nonsense in [json!(3), json!("{"), json!("[]"), json!({"publisher": "zmq", "endpoint": 3})] {
                let read = read(&json!({ "kv_events_config": nonsense }), unsaid);
                assert!(matches!(read, Err(Refusal::Bad(_))), "{nonsense}: {read:?}");
            }
        }
    }
}
