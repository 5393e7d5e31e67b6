//! A pod, as far as it says anything about an engine.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::names;

/// A longer value says nothing about an engine; it would be kept for as long as the pod.
const MAX_VALUE: usize = 1 << 10;
/// Ports and containers of one pod.
const MAX_LISTED: usize = 64;

/// One pod; or an endpoint of a slice, which has no annotations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Pod {
    /// Its identity: another pod has another, also under the same name.
    pub uid: String,
    /// Where it lives.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// When it was created, RFC 3339: later pods are greater.
    pub created: String,
    /// Labels that say something, after [`Pod::keep`].
    pub labels: BTreeMap<String, String>,
    /// Annotations that say something, after [`Pod::keep`].
    pub annotations: BTreeMap<String, String>,
    /// Its address, once it has one.
    pub address: Option<IpAddr>,
    /// It shares the address of its node, and so perhaps with other pods.
    pub host_network: bool,
    /// Its containers have ended for good.
    pub over: bool,
    /// It is being deleted. It may serve its cache until it is gone.
    pub leaving: bool,
    /// Its probes succeed. An engine that is not ready yet publishes already.
    pub ready: bool,
    /// Ports of its containers: name and number.
    pub ports: Vec<(String, u16)>,
    /// Its containers.
    pub containers: Vec<Container>,
    /// What its command line says of events.
    pub launch: Option<Launch>,
}

/// One run of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Container {
    /// The runtime's id of this run.
    pub id: String,
    /// How often it was started again.
    pub restarts: u32,
    /// When this run started, Unix milliseconds.
    pub started_ms: Option<u64>,
}

/// What a pod's command line says of events. The words themselves may hold keys and are not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent findings")]
pub struct Launch {
    /// Events are configured.
    pub events: bool,
    /// And switched off.
    pub off: bool,
    /// A replay socket is configured.
    pub replay: bool,
    /// The socket is bound to loopback, where no other pod reaches it.
    pub loopback: bool,
}

impl Launch {
    /// Reads the words of all containers; nothing where they start no engine.
    pub fn read<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut engine = false;
        let mut launch = Self::default();
        for word in words {
            engine |= ["vllm", "sglang", "--model"].iter().any(|part| word.contains(part));
            // A JSON text, in a word of its own, behind `=`, or within a script.
            if word.contains("kv-events-config") {
                launch.events = true;
            }
            if launch.events && word.contains('{') {
                let plain: String = word.chars().filter(|c| !c.is_whitespace() && *c != '\\').collect();
                launch.off |= plain.contains(r#""enable_kv_cache_events":false"#)
                    || plain.contains(r#""publisher":"null""#);
                launch.replay |= plain.contains(r#""replay_endpoint":""#);
                launch.loopback |=
                    plain.contains(r#"":"tcp://127."#) || plain.contains(r#"":"tcp://localhost"#);
            }
        }
        (engine || launch.events).then_some(launch)
    }
}

impl Pod {
    /// Drops what says nothing about an engine. `also` are labels and annotations that the settings name.
    pub fn keep(&mut self, also: &[&str]) {
        let says = |key: &str, value: &str| {
            value.len() <= MAX_VALUE
                && (key.starts_with(names::PREFIX) || names::OTHERS.contains(&key) || also.contains(&key))
        };
        self.labels.retain(|key, value| says(key, value));
        self.annotations.retain(|key, value| says(key, value));
        self.ports.truncate(MAX_LISTED);
        self.containers.truncate(MAX_LISTED);
    }

    /// `namespace/name`.
    pub fn place(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The port of that name.
    pub(crate) fn port(&self, name: &str) -> Option<u16> {
        self.ports.iter().find(|(known, _)| known == name).map(|(_, port)| *port)
    }

    /// What changes when a container starts again.
    pub(crate) fn runs(&self) -> Vec<(String, u32)> {
        self.containers.iter().map(|one| (one.id.clone(), one.restarts)).collect()
    }

    /// When its containers started: the last of them.
    pub(crate) fn started_ms(&self) -> Option<u64> {
        self.containers.iter().filter_map(|one| one.started_ms).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_says_whether_events_are_on() {
        let read = |words: &[&str]| Launch::read(words.iter().copied());
        assert_eq!(read(&["sleep", "1"]), None);
        assert_eq!(read(&["vllm", "serve", "m"]), Some(Launch::default()));
        let on = Launch { events: true, ..Launch::default() };
        assert_eq!(read(&["--kv-events-config={\"publisher\": \"zmq\"}"]), Some(on));
        let config = r#"{"publisher":"zmq","replay_endpoint":"tcp://*:5558"}"#;
        assert_eq!(read(&["vllm", "--kv-events-config", config]), Some(Launch { replay: true, ..on }));
        assert_eq!(read(&["--kv-events-config", r#"{"replay_endpoint": null}"#]), Some(on));
        let script = r#"exec vllm serve m --kv-events-config '{"endpoint": "tcp://127.0.0.1:5557"}'"#;
        assert_eq!(read(&["sh", "-c", script]), Some(Launch { loopback: true, ..on }));
        let off = r#"{"enable_kv_cache_events": false, "publisher": "zmq"}"#;
        assert_eq!(read(&["--kv-events-config", off]), Some(Launch { off: true, ..on }));
    }

    #[test]
    fn little_of_a_pod_is_kept() {
        let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        let long = "x".repeat(MAX_VALUE + 1);
        let mut pod = Pod {
            labels: text(&[("app", "vllm"), ("team", "a"), (names::LLMD_ROLE, "decode")]),
            annotations: text(&[(names::KIND, "vllm"), (names::MODEL, &long), ("other", "x")]),
            ..Pod::default()
        };
        pod.keep(&["team"]);
        assert_eq!(pod.labels, text(&[("team", "a"), (names::LLMD_ROLE, "decode")]));
        assert_eq!(pod.annotations, text(&[(names::KIND, "vllm")]));
    }
}
