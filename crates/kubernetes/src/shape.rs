//! What one pod says of its engine, key by key: annotations, then names of ports and labels of others, then
//! the settings. What nobody says is left to the engine itself, and then to what is usual.

use kvplane_core::EngineKind;

use crate::names;
use crate::pod::Pod;
use crate::settings::{ModelRule, Settings};
use crate::wanted::{Decided, Remark};

/// More ranks than any engine has.
const MAX_RANKS: u32 = 1024;

/// What a pod says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    /// It is no engine, by this rule.
    pub(crate) ignored: Option<String>,
    pub(crate) kind: EngineKind,
    pub(crate) model: Option<String>,
    pub(crate) events: Option<u16>,
    pub(crate) replay: Replay,
    pub(crate) http: Option<u16>,
    pub(crate) topic: Option<String>,
    pub(crate) ranks: Option<u32>,
    pub(crate) decided: Vec<Decided>,
    pub(crate) remarks: Vec<Remark>,
}

/// The replay socket's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    Unsaid,
    /// The pod says that there is none.
    None,
    At(u16),
}

impl Shape {
    pub(crate) fn of(pod: &Pod, settings: &Settings) -> Self {
        let mut reading = Reading { pod, decided: Vec::new(), remarks: Vec::new() };
        let kind = reading.kind(settings);
        let ranks = reading.ranks(settings);
        let mut shape = Self {
            ignored: reading.ignored(),
            kind,
            model: reading.model(settings),
            events: reading.port("events", names::EVENTS, names::EVENTS_PORT),
            replay: reading.replay(),
            http: reading.http(settings),
            topic: reading.topic(settings),
            ranks,
            decided: Vec::new(),
            remarks: Vec::new(),
        };
        reading.role();
        reading.unknown();
        reading.launch();
        reading.declared(shape.events);
        (shape.decided, shape.remarks) = (reading.decided, reading.remarks);
        shape
    }

    /// Whether its engine says itself where it publishes.
    pub(crate) fn can_tell(&self) -> bool {
        self.http.is_some()
            && matches!(self.kind, EngineKind::Vllm | EngineKind::Sglang | EngineKind::Tokenspeed)
    }
}

struct Reading<'p> {
    pod: &'p Pod,
    decided: Vec<Decided>,
    remarks: Vec<Remark>,
}

impl<'p> Reading<'p> {
    fn decide(&mut self, key: &'static str, value: &impl ToString, rule: impl Into<String>) {
        self.decided.push(Decided { key, value: value.to_string(), rule: rule.into() });
    }

    fn remark(&mut self, code: &'static str, text: impl Into<String>) {
        self.remarks.push(Remark { code, text: text.into() });
    }

    fn wrong(&mut self, name: &str, value: &str, expected: &str) {
        self.remark("annotation", format!("{name}: {value:?} is not {expected}: correct or remove it"));
    }

    fn annotation(&self, name: &str) -> Option<&'p str> {
        self.pod.annotations.get(name).map(|value| value.trim())
    }

    fn label(&self, name: &str) -> Option<&'p str> {
        self.pod.labels.get(name).map(String::as_str)
    }

    fn ignored(&mut self) -> Option<String> {
        if let Some(value) = self.annotation(names::IGNORE) {
            match value {
                "true" => return Some(format!("annotation {}", names::IGNORE)),
                "false" => {}
                other => self.wrong(names::IGNORE, other, "true or false"),
            }
        }
        let component = self.label(names::DYNAMO_TYPE)?;
        (!["worker", "prefill", "decode"].contains(&component))
            .then(|| format!("label {}={component}", names::DYNAMO_TYPE))
    }

    fn kind(&mut self, settings: &Settings) -> EngineKind {
        if let Some(text) = self.annotation(names::KIND) {
            if let Some(kind) = published(text) {
                self.decide("kind", &kind, format!("annotation {}", names::KIND));
                return kind;
            }
            self.wrong(names::KIND, text, "vllm, sglang, tokenspeed or trtllm");
        }
        if let Some(text) = self.label(names::LLMD_ENGINE) {
            let software = text.strip_suffix("-serve").unwrap_or(text);
            if let Some(kind) = published(software) {
                self.decide("kind", &kind, format!("label {}", names::LLMD_ENGINE));
                return kind;
            }
            let name = names::LLMD_ENGINE;
            self.remark("label", format!("{name}: {text:?} is not known: set annotation {}", names::KIND));
        }
        let (kind, rule) = match settings.kind {
            Some(kind) => (kind, "[[discover]] engine_kind"),
            None => (EngineKind::Vllm, "default"),
        };
        self.decide("kind", &kind, rule);
        kind
    }

    fn model(&mut self, settings: &Settings) -> Option<String> {
        let pod = self.pod;
        let ours = self.annotation(names::MODEL).map(|value| (value, format!("annotation {}", names::MODEL)));
        let configured = || match &settings.model {
            ModelRule::Ask => None,
            ModelRule::Is(model) => Some((model.as_str(), "[[discover]] model".to_owned())),
            ModelRule::Label(key) => Some((pod.labels.get(key)?.as_str(), format!("label {key}"))),
            ModelRule::Annotation(key) => {
                Some((pod.annotations.get(key)?.as_str(), format!("annotation {key}")))
            }
            ModelRule::Namespace => Some((pod.namespace.as_str(), "namespace".to_owned())),
        };
        let others = || {
            let dynamo = names::DYNAMO_MODEL;
            pod.annotations.get(dynamo).map(|value| (value.as_str(), format!("annotation {dynamo}")))
        };
        let (model, rule) =
            ours.or_else(configured).or_else(others).filter(|(model, _)| !model.is_empty())?;
        self.decide("model", &model, rule);
        Some(model.to_owned())
    }

    /// A port by annotation, or by its name.
    fn port(&mut self, key: &'static str, annotation: &'static str, name: &'static str) -> Option<u16> {
        if let Some(text) = self.annotation(annotation) {
            if let Some(port) = text.parse::<u16>().ok().filter(|port| *port > 0) {
                self.decide(key, &port, format!("annotation {annotation}"));
                return Some(port);
            }
            self.wrong(annotation, text, "a port from 1 to 65535");
        }
        let port = self.pod.port(name)?;
        self.decide(key, &port, format!("container port {name}"));
        Some(port)
    }

    fn replay(&mut self) -> Replay {
        if self.annotation(names::REPLAY) == Some("none") {
            self.decide("replay", &"none", format!("annotation {}", names::REPLAY));
            return Replay::None;
        }
        self.port("replay", names::REPLAY, names::REPLAY_PORT).map_or(Replay::Unsaid, Replay::At)
    }

    fn http(&mut self, settings: &Settings) -> Option<u16> {
        if self.annotation(names::HTTP) == Some("none") {
            self.decide("http", &"none", format!("annotation {}", names::HTTP));
            return None;
        }
        let said = self.port("http", names::HTTP, names::HTTP_PORT);
        if said.is_some() {
            return said;
        }
        let smg =
            self.smg_ports().first().copied().map(|port| (port, format!("annotation {}", names::SMG_PORTS)));
        let pool =
            || settings.target_ports.first().map(|port| (*port, "InferencePool targetPorts".to_owned()));
        let configured = || settings.http.map(|port| (port, "[[discover]] http".to_owned()));
        let (port, rule) = smg.or_else(pool).or_else(configured)?;
        self.decide("http", &port, rule);
        Some(port)
    }

    /// SMG's list of ports. What is wrong with it is SMG's to say.
    fn smg_ports(&self) -> Vec<u16> {
        let text = self.annotation(names::SMG_PORTS).unwrap_or_default();
        text.split(',').filter_map(|port| port.trim().parse().ok()).filter(|port| *port > 0).collect()
    }

    fn ranks(&mut self, settings: &Settings) -> Option<u32> {
        if let Some(text) = self.annotation(names::RANKS) {
            if let Some(ranks) = text.parse().ok().filter(|ranks| *ranks <= MAX_RANKS) {
                self.decide("ranks", &ranks, format!("annotation {}", names::RANKS));
                return Some(ranks);
            }
            self.wrong(names::RANKS, text, "a number of ranks from 0 to 1024");
        }
        let counted = |port: &str| {
            (1..MAX_RANKS).take_while(|rank| self.pod.port(&format!("{port}-{rank}")).is_some()).count() + 1
        };
        let by_ports = counted(names::EVENTS_PORT) as u32;
        let found = if by_ports > 1 {
            Some((by_ports, format!("container ports {}, {}-1 …", names::EVENTS_PORT, names::EVENTS_PORT)))
        } else if self.smg_ports().len() > 1 {
            Some((self.smg_ports().len() as u32, format!("annotation {}", names::SMG_PORTS)))
        } else if settings.target_ports.len() > 1 {
            Some((settings.target_ports.len() as u32, "InferencePool targetPorts".to_owned()))
        } else {
            settings.ranks.map(|ranks| (ranks, "[[discover]] ranks".to_owned()))
        };
        let (ranks, rule) = found?;
        self.decide("ranks", &ranks, rule);
        Some(ranks)
    }

    fn topic(&mut self, settings: &Settings) -> Option<String> {
        let ours = self.annotation(names::TOPIC).map(|topic| (topic, format!("annotation {}", names::TOPIC)));
        let configured = || settings.topic.as_deref().map(|topic| (topic, "[[discover]] topic".to_owned()));
        let (topic, rule) = ours.or_else(configured)?;
        self.decide("topic", &topic, rule);
        Some(topic.to_owned())
    }

    /// What the pod does for others: only to be shown.
    fn role(&mut self) {
        for name in [names::LLMD_ROLE, names::DYNAMO_SUBTYPE, names::DYNAMO_TYPE] {
            if let Some(role) = self.label(name).filter(|role| *role != "worker") {
                self.decide("role", &role, format!("label {name}"));
                return;
            }
        }
    }

    /// Annotations of ours that nobody reads.
    fn unknown(&mut self) {
        for name in self.pod.annotations.keys().filter(|name| name.starts_with(names::PREFIX)) {
            if !names::OURS.contains(&name.as_str()) {
                let known: Vec<_> = names::OURS.iter().map(|one| &one[names::PREFIX.len()..]).collect();
                let known = known.join(", ");
                self.remark(
                    "annotation",
                    format!("{name} is not known: remove it, or use {}{{{known}}}", names::PREFIX),
                );
            }
        }
    }

    fn launch(&mut self) {
        let Some(launch) = self.pod.launch else { return };
        if !launch.events {
            self.remark(
                "events_off",
                "the command line has no --kv-events-config: the engine publishes nothing; add it",
            );
        } else if launch.off {
            self.remark(
                "events_off",
                "--kv-events-config switches events off: set enable_kv_cache_events to true and publisher to zmq",
            );
        } else if launch.loopback {
            self.remark(
                "loopback",
                "--kv-events-config binds loopback, which no other pod reaches: use tcp://*:PORT",
            );
        } else if !launch.replay {
            self.remark(
                "no_replay",
                "--kv-events-config has no replay_endpoint: lost events cannot be asked for; add \"replay_endpoint\":\"tcp://*:5558\"",
            );
        }
    }

    /// A port that no container declares works all the same, unless a network policy names ports.
    fn declared(&mut self, events: Option<u16>) {
        let Some(events) = events else { return };
        let ports = &self.pod.ports;
        if !ports.is_empty() && !ports.iter().any(|(_, port)| *port == events) {
            self.remark(
                "port_undeclared",
                format!(
                    "no container declares port {events}, where events are expected: declare it as {}",
                    names::EVENTS_PORT
                ),
            );
        }
    }
}

/// Kinds whose ranks publish on sockets. The others cannot be found by looking at pods.
fn published(text: &str) -> Option<EngineKind> {
    let kinds = [EngineKind::Vllm, EngineKind::Sglang, EngineKind::Tokenspeed, EngineKind::Trtllm];
    kinds.into_iter().find(|kind| kind.as_str() == text)
}
