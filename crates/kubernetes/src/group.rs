//! From one pod, or a group of pods, to one engine.

use std::net::IpAddr;

use kvplane_core::EngineKind;
use kvplane_discovery::{check_overlap, for_rank};

use crate::names;
use crate::pod::Pod;
use crate::settings::Settings;
use crate::shape::{Replay, Shape};
use crate::wanted::{Decided, PodRef, RankAt, Remark, Wanted, Where};

/// Where engines publish by default.
const USUAL_EVENTS: u16 = 5557;
/// Where their replay sockets are.
const USUAL_REPLAY: u16 = 5558;

/// A pod's place in a `LeaderWorkerSet`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    /// `namespace/set-group`: the leader's name, too.
    pub(crate) group: String,
    pub(crate) worker: u32,
}

impl Member {
    /// The group of a pod; of any other pod it is the pod itself.
    pub(crate) fn of(pod: &Pod) -> Self {
        let label = |name: &str| pod.labels.get(name);
        let grouped = || {
            let (set, group) = (label(names::LWS_NAME)?, label(names::LWS_GROUP)?);
            let worker = label(names::LWS_WORKER)?.parse().ok()?;
            Some(Self { group: format!("{}/{set}-{group}", pod.namespace), worker })
        };
        grouped().unwrap_or_else(|| Self { group: pod.place(), worker: 0 })
    }
}

/// What pods are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// An engine.
    Engine(Box<Wanted>),
    /// An engine, once its model is known: where it can be asked.
    Asking(String, Vec<Decided>, Vec<Remark>),
    /// None, and why.
    None(String, Vec<Remark>),
}

/// An address with a port.
fn url(scheme: &str, address: IpAddr, port: u16) -> String {
    format!("{scheme}://{}", std::net::SocketAddr::new(address, port))
}

/// Makes an engine of a group's pods, in the order of their places. `model` is what the engine said.
pub(crate) fn engine(
    id: &str,
    members: &[(&Member, &Pod)],
    settings: &Settings,
    model: Option<&str>,
) -> Verdict {
    let Some((_, leader)) = members.iter().find(|(member, _)| member.worker == 0) else {
        return Verdict::None("the group's leader is not known yet".to_owned(), Vec::new());
    };
    let mut shape = Shape::of(leader, settings);
    if let Some(rule) = shape.ignored {
        return Verdict::None(format!("no engine by {rule}"), shape.remarks);
    }
    let Some(address) = leader.address else {
        return Verdict::None("the pod has no address yet".to_owned(), shape.remarks);
    };
    let http = shape.http.map(|port| url("http", address, port));
    let model = match (shape.model.take(), model, &http) {
        (Some(model), _, _) => model,
        (None, Some(model), Some(http)) => {
            shape.decided.push(Decided {
                key: "model",
                value: model.to_owned(),
                rule: format!("asked at {http}/v1/models"),
            });
            model.to_owned()
        }
        (None, _, Some(http)) => return Verdict::Asking(http.clone(), shape.decided, shape.remarks),
        (None, _, None) => {
            let text = format!(
                "the model is not known: set annotation {}, or name the http port so that the engine can be asked",
                names::MODEL
            );
            shape.remarks.push(Remark { code: "model", text });
            String::new()
        }
    };
    if shape.kind == EngineKind::Trtllm && shape.events.is_none() {
        let why = format!(
            "where it publishes is not known: set annotation {}, or list the engine under [[engine]] to drain it",
            names::EVENTS
        );
        return Verdict::None(why, shape.remarks);
    }
    let workers: Vec<Worker> =
        members.iter().filter_map(|(member, pod)| Worker::of(member, pod, settings)).collect();
    let at = ranks(&mut shape, address, &workers);
    let pods = members.iter().map(|(_, pod)| PodRef { pod: pod.place(), uid: pod.uid.clone() });
    Verdict::Engine(Box::new(Wanted {
        id: id.to_owned(),
        pods: pods.collect(),
        kind: shape.kind,
        model,
        topic: shape.topic,
        http,
        at,
        started_ms: leader.started_ms(),
        decided: shape.decided,
        remarks: shape.remarks,
    }))
}

/// A pod of a group that publishes ranks of its own.
struct Worker {
    number: u32,
    address: IpAddr,
}

impl Worker {
    /// A follower of the leader publishes nothing unless it says so.
    fn of(member: &Member, pod: &Pod, settings: &Settings) -> Option<Self> {
        let shape = (member.worker > 0).then(|| Shape::of(pod, settings))?;
        let publishes = match shape.ranks {
            Some(ranks) => ranks > 0,
            None => shape.events.is_some(),
        };
        let address = pod.address.filter(|_| publishes && shape.ignored.is_none())?;
        Some(Self { number: member.worker, address })
    }
}

/// Where the ranks are.
fn ranks(shape: &mut Shape, leader: IpAddr, workers: &[Worker]) -> Where {
    let unsaid = shape.events.is_none() || shape.replay == Replay::Unsaid || shape.ranks.is_none();
    let events_port = shape.events.unwrap_or(USUAL_EVENTS);
    let ranks = shape.ranks.unwrap_or(1).max(1);
    let total = ranks * (1 + workers.iter().map(|one| one.number).max().unwrap_or(0));
    let replay_port = match shape.replay {
        Replay::At(port) => Some(port),
        Replay::None => None,
        // A usual port that an event socket of another rank has is none.
        Replay::Unsaid => Some(USUAL_REPLAY).filter(|_| total == 1 && events_port != USUAL_REPLAY),
    };
    let replay_port = replay_port.filter(|port| {
        let overlap = check_overlap(&url("tcp", leader, events_port), &url("tcp", leader, *port), total);
        if let Err(error) = &overlap {
            shape.remarks.push(Remark { code: "ports", text: error.to_string() });
        }
        overlap.is_ok()
    });
    if unsaid && shape.replay != Replay::None && workers.is_empty() && shape.can_tell() {
        // What is not decided yet, the engine says.
        let rule = "asked, else the default";
        for (key, value, said) in [
            ("events", Some(events_port), shape.events.is_some()),
            ("replay", replay_port, shape.replay != Replay::Unsaid),
        ] {
            if !said {
                let value = value.map_or_else(|| "none".to_owned(), |port| port.to_string());
                shape.decided.push(Decided { key, value, rule: rule.to_owned() });
            }
        }
        if shape.ranks.is_none() {
            shape.decided.push(Decided { key: "ranks", value: "1".to_owned(), rule: rule.to_owned() });
        }
        return Where::Asked {
            events: shape.events.map(|port| url("tcp", leader, port)),
            replay: match shape.replay {
                Replay::At(_) => replay_port.map(|port| url("tcp", leader, port)),
                _ => None,
            },
            ranks: shape.ranks.filter(|ranks| *ranks > 0),
            usual_events: url("tcp", leader, events_port),
            usual_replay: replay_port.map(|port| url("tcp", leader, port)),
        };
    }
    if shape.events.is_none() {
        shape.decided.push(Decided {
            key: "events",
            value: events_port.to_string(),
            rule: "default".to_owned(),
        });
    }
    if shape.replay == Replay::Unsaid {
        let value = replay_port.map_or_else(|| "none".to_owned(), |port| port.to_string());
        shape.decided.push(Decided { key: "replay", value, rule: "default".to_owned() });
    }
    if shape.ranks.is_none() {
        shape.decided.push(Decided {
            key: "ranks",
            value: "1 per pod".to_owned(),
            rule: "default".to_owned(),
        });
    }
    let pods = std::iter::once((0, leader)).chain(workers.iter().map(|one| (one.number, one.address)));
    let mut all = Vec::new();
    for (number, address) in pods {
        for rank in number * ranks..(number + 1) * ranks {
            // Rank r of an engine is at port + r, on whichever host it runs.
            let at = |port: u16| for_rank(&url("tcp", address, port), rank, true);
            match at(events_port) {
                Ok(events) => {
                    all.push(RankAt { rank, events, replay: replay_port.and_then(|port| at(port).ok()) });
                }
                Err(error) => shape.remarks.push(Remark { code: "ports", text: error.to_string() }),
            }
        }
    }
    if !workers.is_empty() {
        let value = format!("{} over {} pods", all.len(), workers.len() + 1);
        shape.decided.push(Decided { key: "ranks", value, rule: format!("label {}", names::LWS_WORKER) });
    }
    Where::Known(all)
}
