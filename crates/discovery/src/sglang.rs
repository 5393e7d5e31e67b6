//! `SGLang`'s `GET /server_info` (`/get_server_info` before), and `TokenSpeed`'s.
//!
//! From 0.5.13 on it has a part about events:
//!
//! ```json
//! {"kv_events": {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "", "block_size": 16,
//!                "dp_size": 2, "replay_endpoint_port_base": 5657}}
//! ```
//!
//! Rank r is at the base + r. Null means that nothing is published. Where that part is missing, the arguments
//! that the server was started with are there ([`server_args`]).

use serde_json::{Map, Value};

use super::server_args::{self, Unsaid};
use super::{Description, Refusal, bad, block_size, counted, number, rank_count, text};

/// Where `SGLang`'s answer is, the newest first.
pub const PATHS: [&str; 2] = ["/server_info", "/get_server_info"];
/// Where `TokenSpeed`'s is.
pub const TOKENSPEED_PATHS: [&str; 1] = ["/get_server_info"];

/// Reads `SGLang`'s answer.
pub(super) fn parse(answer: &Value) -> Result<Description, Refusal> {
    read(answer, Unsaid::IsOff)
}

/// Reads `TokenSpeed`'s answer.
pub(super) fn parse_tokenspeed(answer: &Value) -> Result<Description, Refusal> {
    read(answer, Unsaid::IsZmq)
}

fn read(answer: &Value, unsaid: Unsaid) -> Result<Description, Refusal> {
    let Value::Object(answer) = answer else { return bad("the answer is not an object") };
    match answer.get("kv_events") {
        None => server_args::parse(answer, unsaid),
        Some(Value::Null) => Err(Refusal::Disabled),
        Some(Value::Object(events)) => {
            let untold_adapters = server_args::adapters_are_untold(answer);
            Ok(Description { untold_adapters, ..described(events)? })
        }
        Some(_) => bad("kv_events is not an object"),
    }
}

fn described(events: &Map<String, Value>) -> Result<Description, Refusal> {
    match text(events, "publisher")? {
        Some("zmq") => {}
        None | Some("null") => return Err(Refusal::Disabled),
        Some(_) => return bad("publisher is none that is known"),
    }
    let host = match text(events, "endpoint_host")?.unwrap_or("*") {
        host if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
        host => host.to_owned(),
    };
    let at = |port: u32| format!("tcp://{host}:{port}");
    let Some(port) = number(events, "endpoint_port_base", u16::MAX.into())? else {
        return bad("endpoint_port_base is missing");
    };
    let replay = number(events, "replay_endpoint_port_base", u16::MAX.into())?.map(at);
    let topic = text(events, "topic")?.unwrap_or_default();
    let ranks = rank_count(events, "dp_size")?.unwrap_or(1);
    Ok(Description {
        publishers: counted(&at(port), replay.as_deref(), topic, ranks)?,
        block_size: block_size(events, "block_size")?,
        ..Description::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ranks_count_up_from_the_base() {
        let answer = json!({
            "served_model_name": "m", "speculative_algorithm": null, "internal_states": [{}],
            "kv_events": {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv",
                "block_size": 16, "dp_size": 2, "load_endpoint_port_base": 5559, "replay_endpoint_port_base": 5657},
        });
        let Description { publishers, block_size, untold_adapters } = parse(&answer).unwrap();
        assert!(!untold_adapters);
        assert_eq!(block_size, Some(16));
        assert_eq!(publishers.len(), 2);
        let second = &publishers[&1];
        assert_eq!(second.events.as_deref(), Some("tcp://*:5558"));
        assert_eq!(second.replay.as_deref(), Some("tcp://*:5658"));
        assert_eq!(second.topic, "kv");
    }

    #[test]
    fn adapters_are_reported_in_the_dynamo_format_alone() {
        let untold = |arguments: Value| {
            let mut answer = json!({"kv_events": {"publisher": "zmq", "endpoint_port_base": 5557}});
            answer.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
            parse(&answer).unwrap().untold_adapters
        };
        let dynamo = r#"{"publisher": "zmq", "format": "dynamo"}"#;
        assert!(untold(json!({"enable_lora": true, "kv_events_config": r#"{"publisher": "zmq"}"#})));
        assert!(untold(json!({"enable_lora": null, "lora_paths": ["french=/models/french"]})));
        assert!(!untold(json!({"enable_lora": true, "kv_events_config": dynamo})));
        assert!(!untold(json!({"enable_lora": false, "lora_paths": null})));
        assert!(!untold(json!({"lora_paths": []})));
    }

    #[test]
    fn older_ones_have_no_replay_and_hosts_may_be_addresses() {
        let answer = json!({"kv_events": {"publisher": "zmq", "endpoint_host": "fd00::7", "endpoint_port_base": 5557,
            "topic": "", "block_size": 1, "dp_size": 1}});
        let publisher = parse(&answer).unwrap().publishers.remove(&0).unwrap();
        assert_eq!(publisher.events.as_deref(), Some("tcp://[fd00::7]:5557"));
        assert_eq!(publisher.replay, None);
    }

    #[test]
    fn engines_without_events_are_distinguished_from_answers_that_make_no_sense() {
        assert_eq!(parse(&json!({"kv_events": null})), Err(Refusal::Disabled));
        assert_eq!(parse(&json!({"kv_events": {"publisher": "null"}})), Err(Refusal::Disabled));
        let good =
            json!({"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "dp_size": 1});
        for (key, value) in [
            ("publisher", json!("nats")),
            ("publisher", json!(7)),
            ("endpoint_host", json!([])),
            ("endpoint_port_base", json!(null)),
            ("endpoint_port_base", json!(70_000)),
            ("endpoint_port_base", json!(-1)),
            ("endpoint_port_base", json!("5557")),
            ("replay_endpoint_port_base", json!(1.5)),
            ("dp_size", json!(0)),
            ("dp_size", json!(10_000)),
            ("dp_size", json!(-2)),
            ("block_size", json!("16")),
            ("topic", json!({})),
        ] {
            let mut events = good.clone();
            events[key] = value.clone();
            let read = parse(&json!({ "kv_events": events }));
            assert!(matches!(read, Err(Refusal::Bad(_))), "{key} {value}: {read:?}");
        }
        let mut last = good;
        last["endpoint_port_base"] = json!(65_535);
        last["dp_size"] = json!(2);
        assert!(matches!(parse(&json!({ "kv_events": last })), Err(Refusal::Bad(_))));
        for nonsense in [json!([]), json!("<html>"), json!({"kv_events": 3})] {
            assert!(matches!(parse(&nonsense), Err(Refusal::Bad(_))), "{nonsense}");
        }
    }
}
