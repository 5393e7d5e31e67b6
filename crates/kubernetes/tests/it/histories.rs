//! Any history of pods, lists that break off, and words that never came, against a model that is written down as simply
//! as it can be and computes everything anew.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use kvplane_kubernetes::{Cluster, LINGER_MS, ModelRule, Pod, Settings, Where};
use proptest::prelude::*;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const ADDRESSES: u8 = 5;

#[derive(Debug, Clone)]
enum Step {
    /// A pod of this name, in a group if there is one.
    Create {
        name: usize,
        worker: Option<u32>,
    },
    Address {
        pod: usize,
        address: u8,
    },
    Leave {
        pod: usize,
    },
    Over {
        pod: usize,
    },
    /// Out of the selector, or deleted.
    Vanish {
        pod: usize,
    },
    Return {
        pod: usize,
    },
    Later {
        ms: u64,
    },
    /// The watch says nothing of what happens from here on.
    Deaf,
    /// A list that breaks off after this many objects.
    Broken {
        after: usize,
    },
    List,
}

fn step() -> impl Strategy<Value = Step> {
    let pod = 0..12_usize;
    prop_oneof![
        4 => (0..NAMES.len(), prop::option::weighted(0.3, 0..3_u32))
            .prop_map(|(name, worker)| Step::Create { name, worker }),
        6 => (pod.clone(), 1..=ADDRESSES).prop_map(|(pod, address)| Step::Address { pod, address }),
        1 => pod.clone().prop_map(|pod| Step::Leave { pod }),
        1 => pod.clone().prop_map(|pod| Step::Over { pod }),
        3 => pod.clone().prop_map(|pod| Step::Vanish { pod }),
        1 => pod.prop_map(|pod| Step::Return { pod }),
        2 => (1..LINGER_MS + 5_000).prop_map(|ms| Step::Later { ms }),
        1 => Just(Step::Deaf),
        1 => (0..6_usize).prop_map(|after| Step::Broken { after }),
        1 => Just(Step::List),
    ]
}

fn settings() -> Settings {
    Settings { model: ModelRule::Is("m".to_owned()), ..Settings::default() }
}

fn ip(address: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, address))
}

fn group(pod: &Pod) -> (String, u32) {
    match pod.labels.get("leaderworkerset.sigs.k8s.io/worker-index") {
        Some(worker) => {
            (format!("ns/{}-0", pod.labels["leaderworkerset.sigs.k8s.io/name"]), worker.parse().unwrap())
        }
        None => (pod.place(), 0),
    }
}

/// What the API server has, and what was passed on.
#[derive(Default)]
struct World {
    pods: Vec<(Pod, bool)>,
    deaf: bool,
}

/// The model: every pod that was ever heard of, and when it was found gone.
#[derive(Default)]
struct Model {
    heard: BTreeMap<String, (Pod, Option<u64>)>,
}

impl Model {
    fn hear(&mut self, pod: &Pod, there: bool, now: u64) {
        let there = there && !pod.over;
        match self.heard.get_mut(&pod.uid) {
            Some((known, gone)) => {
                if there {
                    (*known, *gone) = (pod.clone(), None);
                } else {
                    *gone = gone.or(Some(now));
                }
            }
            None if there => {
                self.heard.insert(pod.uid.clone(), (pod.clone(), None));
            }
            None => {}
        }
    }

    /// Engines and the addresses of their ranks.
    fn engines(&mut self, now: u64) -> BTreeMap<String, BTreeSet<String>> {
        self.heard.retain(|_, (_, gone)| gone.is_none_or(|gone| now < gone + LINGER_MS));
        let live: Vec<&Pod> =
            self.heard.values().filter(|(_, gone)| gone.is_none()).map(|(pod, _)| pod).collect();
        let owner = |address: IpAddr| {
            let there = live.iter().filter(|pod| pod.address == Some(address));
            there
                .max_by_key(|pod| (!pod.leaving, pod.created.clone(), pod.uid.clone()))
                .map(|pod| pod.uid.clone())
        };
        let mut slots: BTreeMap<(String, u32), Vec<(&Pod, bool)>> = BTreeMap::new();
        for (pod, gone) in self.heard.values() {
            let counts = match pod.address {
                Some(address) => owner(address).is_none_or(|owner| owner == pod.uid),
                None => gone.is_none(),
            };
            if counts {
                slots.entry(group(pod)).or_default().push((pod, gone.is_none()));
            }
        }
        let mut engines: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut chosen = BTreeMap::new();
        for (slot, mut pods) in slots {
            pods.sort_by_key(|(pod, live)| {
                (pod.address.is_some(), *live, !pod.leaving, pod.created.clone(), pod.uid.clone())
            });
            chosen.insert(slot, pods.last().unwrap().0);
        }
        for ((id, worker), pod) in &chosen {
            let led = chosen.get(&(id.clone(), 0)).is_some_and(|leader| leader.address.is_some());
            if let Some(address) = pod.address.filter(|_| led) {
                let at = format!("tcp://{address}:{}", 5557 + worker);
                engines.entry(id.clone()).or_default().insert(at);
            }
        }
        engines
    }
}

fn list(world: &World, cluster: &mut Cluster, model: &mut Model, now: u64, limit: Option<usize>) {
    let there: Vec<Pod> = world.pods.iter().filter(|(_, there)| *there).map(|(pod, _)| pod.clone()).collect();
    cluster.list_begins();
    for pod in there.iter().take(limit.unwrap_or(usize::MAX)) {
        cluster.listed(&pod.uid, vec![pod.clone()], now);
        model.hear(pod, true, now);
    }
    if limit.is_none() {
        cluster.list_ends(now);
        let gone: Vec<Pod> = model.heard.values().map(|(pod, _)| pod.clone()).collect();
        for pod in gone.iter().filter(|known| !there.iter().any(|pod| pod.uid == known.uid)) {
            model.hear(pod, false, now);
        }
    }
}

fn found(cluster: &Cluster) -> BTreeMap<String, BTreeSet<String>> {
    let engines = cluster.engines().map(|engine| {
        let Where::Known(ranks) = &engine.at else { panic!("{engine:?}") };
        (engine.id.clone(), ranks.iter().map(|rank| rank.events.clone()).collect())
    });
    engines.collect()
}

fn run(steps: Vec<Step>) {
    let (mut world, mut cluster, mut model) = (World::default(), Cluster::new(settings()), Model::default());
    let mut now = 1_000;
    let mut known: BTreeSet<String> = BTreeSet::new();
    for (at, step) in steps.into_iter().enumerate() {
        let chosen = |pod: usize, world: &World| (!world.pods.is_empty()).then(|| pod % world.pods.len());
        let touched = match step {
            Step::Create { name, worker } => {
                let name = NAMES[name];
                let mut pod = Pod {
                    uid: format!("uid-{at:03}"),
                    namespace: "ns".to_owned(),
                    name: name.to_owned(),
                    created: format!("2026-11-18T00:{at:04}"),
                    ..Pod::default()
                };
                pod.annotations.insert("kvplane.io/events".to_owned(), "5557".to_owned());
                pod.annotations.insert("kvplane.io/replay".to_owned(), "none".to_owned());
                pod.annotations.insert("kvplane.io/ranks".to_owned(), "1".to_owned());
                if let Some(worker) = worker {
                    let labels = [
                        ("name", name.to_owned()),
                        ("group-index", "0".to_owned()),
                        ("worker-index", worker.to_string()),
                    ];
                    for (label, value) in labels {
                        pod.labels.insert(format!("leaderworkerset.sigs.k8s.io/{label}"), value);
                    }
                }
                world.pods.push((pod, true));
                Some(world.pods.len() - 1)
            }
            Step::Address { pod, address } => {
                chosen(pod, &world).inspect(|at| world.pods[*at].0.address = Some(ip(address)))
            }
            Step::Leave { pod } => chosen(pod, &world).inspect(|at| world.pods[*at].0.leaving = true),
            Step::Over { pod } => chosen(pod, &world).inspect(|at| world.pods[*at].0.over = true),
            Step::Vanish { pod } => chosen(pod, &world).inspect(|at| world.pods[*at].1 = false),
            Step::Return { pod } => chosen(pod, &world).inspect(|at| world.pods[*at].1 = true),
            Step::Later { ms } => {
                now += ms;
                None
            }
            Step::Deaf => {
                world.deaf = true;
                None
            }
            Step::Broken { after } => {
                list(&world, &mut cluster, &mut model, now, Some(after));
                world.deaf = true;
                None
            }
            Step::List => {
                list(&world, &mut cluster, &mut model, now, None);
                world.deaf = false;
                None
            }
        };
        if let Some((pod, there)) = touched.filter(|_| !world.deaf).map(|at| world.pods[at].clone()) {
            if there {
                cluster.applied(&pod.uid, vec![pod.clone()], now);
            } else {
                cluster.deleted(&pod.uid, now);
            }
            model.hear(&pod, there, now);
        }
        for (id, verdict) in cluster.settle(now) {
            match verdict {
                Some(_) => known.insert(id),
                None => known.remove(&id),
            };
        }
        let engines = found(&cluster);
        assert_eq!(engines, model.engines(now), "after step {at}");
        assert!(engines.keys().all(|id| known.contains(id)), "an engine nobody was told of");
    }
    // A quiet end: one list, and nothing more happens.
    list(&world, &mut cluster, &mut model, now, None);
    now += LINGER_MS;
    cluster.settle(now);
    let mut truth = Model::default();
    for (pod, there) in &world.pods {
        truth.hear(pod, *there, now);
    }
    assert_eq!(found(&cluster), truth.engines(now));
    assert_eq!(cluster.due_ms(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn after_any_history_the_engines_are_the_pods_that_match(steps in prop::collection::vec(step(), 1..40)) {
        run(steps);
    }
}

fn pod(uid: &str, name: &str, address: u8) -> Pod {
    Pod {
        uid: uid.to_owned(),
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        created: uid.to_owned(),
        address: Some(ip(address)),
        ..Pod::default()
    }
}

fn ids(cluster: &mut Cluster, now: u64) -> Vec<String> {
    cluster.settle(now);
    cluster.engines().map(|engine| engine.id.clone()).collect()
}

#[test]
fn a_pod_that_is_gone_keeps_its_engine_for_a_while() {
    let mut cluster = Cluster::new(settings());
    cluster.applied("1", vec![pod("1", "a", 1)], 0);
    assert_eq!(ids(&mut cluster, 0), ["ns/a"]);
    cluster.deleted("1", 1_000);
    assert_eq!(ids(&mut cluster, 1_000), ["ns/a"]);
    assert_eq!(cluster.due_ms(), Some(1_000 + LINGER_MS));
    assert_eq!(ids(&mut cluster, 999 + LINGER_MS), ["ns/a"]);
    assert!(ids(&mut cluster, 1_000 + LINGER_MS).is_empty());
}

#[test]
fn a_pod_whose_address_belongs_to_another_goes_at_once() {
    let mut cluster = Cluster::new(settings());
    cluster.applied("1", vec![pod("1", "a", 1)], 0);
    cluster.deleted("1", 0);
    cluster.applied("2", vec![pod("2", "b", 1)], 10);
    assert_eq!(ids(&mut cluster, 10), ["ns/b"]);
    // Also while the other is still there, but leaving.
    cluster.applied("3", vec![Pod { leaving: true, ..pod("3", "c", 1) }], 20);
    assert_eq!(ids(&mut cluster, 20), ["ns/b"]);
}

#[test]
fn nothing_is_removed_by_a_list_that_breaks_off() {
    let mut cluster = Cluster::new(settings());
    cluster.list_begins();
    for (uid, name) in [("1", "a"), ("2", "b")] {
        cluster.listed(uid, vec![pod(uid, name, uid.parse().unwrap())], 0);
    }
    cluster.list_ends(0);
    cluster.list_begins();
    cluster.listed("1", vec![pod("1", "a", 1)], 10);
    // An error, and a new list.
    cluster.list_begins();
    assert_eq!(ids(&mut cluster, 10 + 10 * LINGER_MS), ["ns/a", "ns/b"]);
    cluster.listed("1", vec![pod("1", "a", 1)], 20);
    cluster.list_ends(20);
    assert_eq!(ids(&mut cluster, 20 + LINGER_MS), ["ns/a"]);
}

#[test]
fn slices_of_one_pod_are_one_engine() {
    let v6 = Pod { address: Some("fd00::1".parse().unwrap()), ..pod("1", "a", 1) };
    let mut cluster = Cluster::new(settings());
    cluster.applied("slice-6", vec![v6], 0);
    cluster.applied("slice-4", vec![pod("1", "a", 1), pod("2", "b", 2)], 0);
    assert_eq!(ids(&mut cluster, 0), ["ns/a", "ns/b"]);
    let at =
        |cluster: &Cluster| cluster.engines().map(|engine| format!("{:?}", engine.at)).collect::<String>();
    assert!(at(&cluster).contains("10.0.0.1:5557"));
    // The pod moves to another slice: it is never gone.
    cluster.deleted("slice-4", 1);
    assert_eq!(ids(&mut cluster, 1 + LINGER_MS), ["ns/a"]);
    assert!(at(&cluster).contains("[fd00::1]:5557"));
}

#[test]
fn pods_on_one_node_s_network_have_its_address_together() {
    let on_node = |uid: &str, name: &str, port: &str| {
        let mut pod = Pod { host_network: true, ..pod(uid, name, 1) };
        pod.annotations.insert("kvplane.io/events".to_owned(), port.to_owned());
        pod
    };
    let mut cluster = Cluster::new(settings());
    cluster.applied("1", vec![on_node("1", "a", "5557")], 0);
    cluster.applied("2", vec![on_node("2", "b", "6557")], 0);
    assert_eq!(ids(&mut cluster, 0), ["ns/a", "ns/b"]);
}

#[test]
fn too_many_pods_are_counted_and_not_kept() {
    let mut cluster = Cluster::new(settings());
    let many: Vec<Pod> =
        (0..kvplane_kubernetes::MAX_PODS + 3).map(|n| pod(&format!("u{n}"), &format!("p{n}"), 1)).collect();
    cluster.applied("slice", many, 0);
    assert_eq!(cluster.counts(), (kvplane_kubernetes::MAX_PODS, 3));
}
