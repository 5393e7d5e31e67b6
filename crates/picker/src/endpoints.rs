//! Files of endpoints, in the shape that llm-d's router reads.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;
use serde_json::Value;

use crate::yaml;
use kvplane_inference::{Endpoint, Pool};

/// Endpoints of one file.
const MAX_ENDPOINTS: usize = 4_096;

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointsError {
    /// It is not YAML, or has no list of endpoints.
    #[error("{0}")]
    Shape(String),
    /// An endpoint cannot be used.
    #[error("endpoints[{at}]: {reason}")]
    Endpoint {
        /// Its place in the list.
        at: usize,
        /// What is wrong with it.
        reason: String,
    },
}

#[derive(Deserialize)]
struct EndpointJson {
    #[serde(default)]
    name: String,
    address: String,
    port: Number,
    #[serde(default)]
    labels: serde_json::Map<String, Value>,
}

/// llm-d writes ports as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u16),
    Text(String),
}

/// Reads a file: a list of endpoints, or an object with one under `endpoints`.
pub fn read(text: &str) -> Result<Pool, EndpointsError> {
    let shape = |reason: &str| EndpointsError::Shape(reason.to_owned());
    let list = match yaml::parse(text).map_err(EndpointsError::Shape)? {
        Value::Array(list) => list,
        Value::Object(mut object) => match object.remove("endpoints") {
            Some(Value::Array(list)) => list,
            Some(Value::Null) => Vec::new(),
            _ => return Err(shape("has no list called endpoints")),
        },
        _ => return Err(shape("has no list called endpoints")),
    };
    if list.len() > MAX_ENDPOINTS {
        return Err(EndpointsError::Shape(format!("has more than {MAX_ENDPOINTS} endpoints")));
    }
    let endpoint = |(at, value): (usize, Value)| {
        endpoint(value).map_err(|reason| EndpointsError::Endpoint { at, reason })
    };
    Ok(Pool::new(list.into_iter().enumerate().map(endpoint).collect::<Result<_, _>>()?))
}

fn endpoint(value: Value) -> Result<Endpoint, String> {
    let json: EndpointJson = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let ip: IpAddr = json.address.trim_matches(['[', ']']).parse().map_err(|_| {
        format!("address {:?} is not an IP address: gateways connect to addresses, not names", json.address)
    })?;
    let port = match json.port {
        Number::Number(port) => port,
        Number::Text(text) => text.parse().map_err(|_| format!("port {text:?} is not a port"))?,
    };
    let label = |name: &str| match json.labels.get(name) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let mut endpoint = Endpoint::at(SocketAddr::new(ip, port));
    endpoint.read_labels(label)?;
    endpoint.name = json.name;
    Ok(endpoint)
}

#[cfg(test)]
mod tests {
    use kvplane_inference::Role;

    use super::*;

    #[test]
    fn a_file_as_llm_d_reads_it() {
        let pool = read(
            "endpoints:\n- name: vllm-0\n  namespace: default\n  address: 10.0.0.1\n  port: \"8000\"\n  labels: {llm-d.ai/role: decode}\n\
             - name: vllm-1\n  address: fd00::1\n  port: 8001\n  labels: {kvplane.io/engine: e, kvplane.io/rank: 3, llm-d.ai/role: prefill}\n",
        )
        .unwrap();
        let [first, second] = pool.endpoints() else { panic!() };
        assert_eq!(
            (first.to_string().as_str(), first.role, first.name.as_str()),
            ("10.0.0.1:8000", Some(Role::Decode), "vllm-0")
        );
        assert_eq!(second.to_string(), "[fd00::1]:8001");
        assert_eq!(
            (second.engine.as_deref(), second.rank, second.role),
            (Some("e"), Some(3), Some(Role::Prefill))
        );
        assert_eq!(read("endpoints: []").unwrap(), Pool::default());
        assert_eq!(read("- {address: 10.0.0.1, port: 1}").unwrap().endpoints().len(), 1);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("endpoints:\n- {name: x, address: host, port: 1}", "endpoints[0]: address \"host\""),
            (
                "endpoints:\n- {address: 10.0.0.1, port: 1}\n- {address: 10.0.0.1, port: x}",
                "endpoints[1]: port",
            ),
            ("- {address: 10.0.0.1}", "port"),
            ("- {address: 10.0.0.1, port: 1, labels: {llm-d.ai/role: cook}}", "cook"),
            ("- {address: 10.0.0.1, port: 1, labels: {kvplane.io/rank: a}}", "rank"),
            ("a: b", "no list called endpoints"),
            ("", "no list called endpoints"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
