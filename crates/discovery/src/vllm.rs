//! vLLM's `GET /kv_event_sources` (from 0.31 on).
//!
//! ```json
//! {"0": {"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558",
//!        "buffer_steps": 10000, "hwm": 100000, "max_queue_size": 100000, "topic": ""}}
//! ```
//!
//! Builds between releases answer a list, or a list under `sources`, whose elements name their
//! `data_parallel_rank`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Description, MAX_RANKS, Publisher, Refusal, bad, count_up, number, text};

/// Where the answer is.
pub(super) const PATH: &str = "/kv_event_sources";

/// Reads the answer.
pub(super) fn parse(answer: &Value) -> Result<Description, Refusal> {
    let listed = match answer {
        Value::Object(object) => match object.get("sources") {
            Some(Value::Array(list)) => by_field(list)?,
            Some(_) => return bad("sources is not a list"),
            None => by_key(object)?,
        },
        Value::Array(list) => by_field(list)?,
        _ => return bad("the answer is neither an object nor a list"),
    };
    if listed.is_empty() {
        return Err(Refusal::NoSources("the engine lists no publisher"));
    }
    if listed.len() > MAX_RANKS as usize {
        return bad(format!("{} ranks are more than {MAX_RANKS}", listed.len()));
    }
    let mut publishers = BTreeMap::new();
    for (rank, source) in listed {
        if let Some(publisher) = publisher(source)?
            && publishers.insert(rank, publisher).is_some()
        {
            return bad(format!("rank {rank} is listed twice"));
        }
    }
    if publishers.is_empty() {
        return Err(Refusal::Disabled);
    }
    spread(&mut publishers)?;
    Ok(Description { publishers, ..Description::default() })
}

type Listed<'v> = Vec<(u32, &'v Map<String, Value>)>;

fn by_key(object: &Map<String, Value>) -> Result<Listed<'_>, Refusal> {
    let listed = object.iter().map(|(key, source)| match (key.parse::<u32>(), source) {
        (Ok(rank), Value::Object(source)) => Ok((rank, source)),
        (Err(_), _) => bad("a key is not a rank"),
        (Ok(rank), _) => bad(format!("rank {rank} is not an object")),
    });
    listed.collect()
}

fn by_field(list: &[Value]) -> Result<Listed<'_>, Refusal> {
    let listed = list.iter().map(|source| {
        let Value::Object(source) = source else { return bad("an element of the list is not an object") };
        let rank = number(source, "data_parallel_rank", u32::MAX)?;
        Ok((rank.unwrap_or(0), source))
    });
    listed.collect()
}

/// One rank's publisher; none if it publishes nothing.
fn publisher(source: &Map<String, Value>) -> Result<Option<Publisher>, Refusal> {
    if source.get("enable_kv_cache_events") == Some(&Value::Bool(false)) {
        return Ok(None);
    }
    match source.get("publisher") {
        None => {}
        Some(Value::String(publisher)) if publisher == "zmq" => {}
        Some(Value::Null) => return Ok(None),
        Some(Value::String(publisher)) if publisher == "null" => return Ok(None),
        Some(_) => return bad("publisher is none that is known"),
    }
    let Some(endpoint) = text(source, "endpoint")? else { return bad("endpoint is missing") };
    let replay = text(source, "replay_endpoint")?.filter(|address| !address.is_empty());
    Ok(Some(Publisher {
        events: Some(endpoint.to_owned()),
        replay: replay.map(str::to_owned),
        topic: text(source, "topic")?.unwrap_or_default().to_owned(),
    }))
}

/// Two publishers cannot bind one port. An answer in which all ranks have one and the same wildcard address
/// says where rank 0 is, and the others count up from there.
pub(super) fn spread(publishers: &mut BTreeMap<u32, Publisher>) -> Result<(), Refusal> {
    let mut rest = publishers.values();
    let Some(first) = rest.next().cloned() else { return Ok(()) };
    // As vLLM itself tells addresses that it binds from addresses that it connects to.
    let binds =
        first.events.as_deref().is_some_and(|address| address.contains('*') || address.contains("::"));
    if publishers.len() < 2 || !binds || rest.any(|other| other.events != first.events) {
        return Ok(());
    }
    for (rank, publisher) in publishers {
        publisher.events = publisher.events.as_deref().map(|address| count_up(address, *rank)).transpose()?;
        publisher.replay = publisher.replay.as_deref().map(|address| count_up(address, *rank)).transpose()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(events: &str, replay: Option<&str>, topic: &str) -> Publisher {
        Publisher {
            events: Some(events.to_owned()),
            replay: replay.map(str::to_owned),
            topic: topic.to_owned(),
        }
    }

    /// As a vLLM 0.32.0 answered.
    #[test]
    fn reads_what_a_real_engine_said() {
        let answer = json!({"0": {
            "enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5601",
            "replay_endpoint": "tcp://*:5602", "buffer_steps": 10000, "hwm": 100_000, "max_queue_size": 100_000,
            "topic": "kv@held",
        }});
        let description = parse(&answer).unwrap();
        let expected = at("tcp://*:5601", Some("tcp://*:5602"), "kv@held");
        assert_eq!(description.publishers, BTreeMap::from([(0, expected)]));
        assert_eq!(description.block_size, None);
    }

    #[test]
    fn ranks_have_addresses_of_their_own_in_every_shape() {
        let source =
            |port: u16| json!({"publisher": "zmq", "endpoint": format!("tcp://*:{port}"), "topic": ""});
        let mut named = [source(5557), source(5558)];
        let by_key = json!({"4": named[0], "5": named[1]});
        named[0]["data_parallel_rank"] = json!(4);
        named[1]["data_parallel_rank"] = json!(5);
        let expected = BTreeMap::from([(4, at("tcp://*:5557", None, "")), (5, at("tcp://*:5558", None, ""))]);
        for answer in [by_key, json!(named), json!({"sources": named})] {
            assert_eq!(parse(&answer).unwrap().publishers, expected, "{answer}");
        }
    }

    #[test]
    fn one_wildcard_address_for_all_ranks_is_where_counting_begins() {
        let source = json!({"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"});
        let found = parse(&json!({"0": source, "1": source})).unwrap().publishers;
        assert_eq!(found[&0], at("tcp://*:5557", Some("tcp://*:5657"), ""));
        assert_eq!(found[&1], at("tcp://*:5558", Some("tcp://*:5658"), ""));
        // A host that is no wildcard is where the engine connects to: several may.
        let source = json!({"endpoint": "tcp://collector:5557"});
        let found = parse(&json!({"0": source, "1": source})).unwrap().publishers;
        assert_eq!(found[&0], found[&1]);
    }

    #[test]
    fn engines_without_events_are_distinguished_from_answers_that_make_no_sense() {
        assert!(matches!(parse(&json!({})), Err(Refusal::NoSources(_))));
        assert!(matches!(parse(&json!([])), Err(Refusal::NoSources(_))));
        for off in [
            json!({"0": {"enable_kv_cache_events": false, "publisher": "zmq", "endpoint": "tcp://*:1"}}),
            json!({"0": {"publisher": "null", "endpoint": "tcp://*:1"}}),
            json!({"0": {"publisher": null}}),
        ] {
            assert_eq!(parse(&off), Err(Refusal::Disabled), "{off}");
        }
        let many: Map<String, Value> =
            (0..10_000).map(|rank| (rank.to_string(), json!({"endpoint": "tcp://*:5557"}))).collect();
        for nonsense in [
            json!("<html>"),
            json!(7),
            json!({"detail": "Not Found"}),
            json!({"-1": {"endpoint": "tcp://*:1"}}),
            json!({"0": []}),
            json!({"0": {}}),
            json!({"0": {"endpoint": 5557}}),
            json!({"0": {"endpoint": "tcp://*:1", "publisher": "nats"}}),
            json!({"0": {"endpoint": "tcp://*:1", "topic": 3}}),
            json!({"sources": {}}),
            json!([{"endpoint": "tcp://*:1", "data_parallel_rank": -1}]),
            json!([{"endpoint": "tcp://*:1"}, {"endpoint": "tcp://*:2"}]),
            json!({"0": {"endpoint": "tcp://*:65535"}, "1": {"endpoint": "tcp://*:65535"}}),
            Value::Object(many),
        ] {
            assert!(matches!(parse(&nonsense), Err(Refusal::Bad(_))), "{nonsense}");
        }
    }
}
