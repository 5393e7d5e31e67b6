//! Which rule decides each key, and what is said of what cannot be.

use kvplane_core::EngineKind;
use kvplane_kubernetes::{Cluster, Launch, ModelRule, Pod, Settings, Verdict, Wanted, Where};

struct Given {
    pod: Pod,
    settings: Settings,
}

fn given() -> Given {
    let pod = Pod {
        uid: "u".to_owned(),
        namespace: "ns".to_owned(),
        name: "vllm-0".to_owned(),
        address: Some("10.0.0.7".parse().unwrap()),
        ..Pod::default()
    };
    Given { pod, settings: Settings { model: ModelRule::Is("llama".to_owned()), ..Settings::default() } }
}

impl Given {
    fn annotated(mut self, annotations: &[(&str, &str)]) -> Self {
        let pairs = annotations.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
        self.pod.annotations.extend(pairs);
        self
    }

    fn labelled(mut self, labels: &[(&str, &str)]) -> Self {
        self.pod.labels.extend(labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())));
        self
    }

    fn ports(mut self, ports: &[(&str, u16)]) -> Self {
        self.pod.ports.extend(ports.iter().map(|&(name, port)| (name.to_owned(), port)));
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    fn verdict(self) -> Verdict {
        let mut cluster = Cluster::new(self.settings);
        cluster.applied("u", vec![self.pod], 0);
        cluster.settle(0).remove(0).1.unwrap()
    }

    fn engine(self) -> Wanted {
        match self.verdict() {
            Verdict::Engine(wanted) => *wanted,
            other => panic!("{other:?}"),
        }
    }
}

fn rule<'w>(wanted: &'w Wanted, key: &str) -> (&'w str, &'w str) {
    let decided = wanted.decided.iter().find(|decided| decided.key == key).unwrap();
    (&decided.value, &decided.rule)
}

fn codes(wanted: &Wanted) -> Vec<&'static str> {
    wanted.remarks.iter().map(|remark| remark.code).collect()
}

/// Rank, events, replay.
type Known = Vec<(u32, String, Option<String>)>;

fn known(wanted: &Wanted) -> Known {
    let Where::Known(ranks) = &wanted.at else { panic!("{wanted:?}") };
    ranks.iter().map(|rank| (rank.rank, rank.events.clone(), rank.replay.clone())).collect()
}

#[test]
fn annotations_come_first() {
    let wanted = given()
        .annotated(&[
            ("kvplane.io/kind", "sglang"),
            ("kvplane.io/model", "qwen"),
            ("kvplane.io/events", "6000"),
            ("kvplane.io/replay", "6100"),
            ("kvplane.io/http", "30000"),
            ("kvplane.io/ranks", "2"),
            ("kvplane.io/topic", "kv"),
        ])
        .labelled(&[("llm-d.ai/engine-type", "vllm")])
        .ports(&[("kv-events", 1), ("kv-replay", 2), ("http", 3), ("x", 6000)])
        .engine();
    assert_eq!(
        (wanted.kind, wanted.model.as_str(), wanted.topic.as_deref()),
        (EngineKind::Sglang, "qwen", Some("kv"))
    );
    assert_eq!(wanted.http.as_deref(), Some("http://10.0.0.7:30000"));
    let at = |rank: u32| {
        (rank, format!("tcp://10.0.0.7:{}", 6000 + rank), Some(format!("tcp://10.0.0.7:{}", 6100 + rank)))
    };
    assert_eq!(known(&wanted), [at(0), at(1)]);
    for key in ["kind", "model", "events", "replay", "http", "ranks", "topic"] {
        assert_eq!(rule(&wanted, key).1, format!("annotation kvplane.io/{key}"));
    }
    assert!(wanted.remarks.is_empty(), "{:?}", wanted.remarks);
    assert_eq!((wanted.id.as_str(), wanted.pods[0].uid.as_str()), ("ns/vllm-0", "u"));
}

#[test]
fn then_ports_by_their_names_and_then_the_engine_itself() {
    let wanted = given().ports(&[("kv-events", 7000), ("http", 8000)]).engine();
    let Where::Asked { events, replay, ranks, usual_events, usual_replay } = &wanted.at else { panic!() };
    assert_eq!((events.as_deref(), replay, ranks), (Some("tcp://10.0.0.7:7000"), &None, &None));
    assert_eq!(usual_events, "tcp://10.0.0.7:7000");
    assert_eq!(usual_replay.as_deref(), Some("tcp://10.0.0.7:5558"));
    assert_eq!(rule(&wanted, "events"), ("7000", "container port kv-events"));
    assert_eq!(rule(&wanted, "replay"), ("5558", "asked, else the default"));
    assert_eq!(rule(&wanted, "kind"), ("vllm", "default"));
    assert_eq!(rule(&wanted, "model"), ("llama", "[[discover]] model"));
}

#[test]
fn then_what_is_usual() {
    let wanted = given().engine();
    assert_eq!(
        known(&wanted),
        [(0, "tcp://10.0.0.7:5557".to_owned(), Some("tcp://10.0.0.7:5558".to_owned()))]
    );
    assert_eq!(rule(&wanted, "events"), ("5557", "default"));
    assert_eq!(rule(&wanted, "replay"), ("5558", "default"));
    // The usual replay port is another rank's event port here.
    let ranks = given().annotated(&[("kvplane.io/ranks", "2")]).engine();
    assert_eq!(known(&ranks).len(), 2);
    assert!(known(&ranks).iter().all(|(_, _, replay)| replay.is_none()));
}

#[test]
fn ranks_by_the_number_of_ports() {
    let ports = [("kv-events", 5557), ("kv-events-1", 5558), ("kv-replay", 5567), ("kv-replay-1", 5568)];
    let wanted = given().ports(&ports).engine();
    assert_eq!(rule(&wanted, "ranks").0, "2");
    assert_eq!(
        known(&wanted)[1],
        (1, "tcp://10.0.0.7:5558".to_owned(), Some("tcp://10.0.0.7:5568".to_owned()))
    );
    let pool = given().with(|settings| settings.target_ports = vec![8000, 8001, 8002]).engine();
    assert_eq!(rule(&pool, "ranks"), ("3", "InferencePool targetPorts"));
    assert_eq!(rule(&pool, "http"), ("8000", "InferencePool targetPorts"));
}

#[test]
fn annotations_of_smg_and_labels_of_llm_d_and_dynamo() {
    let smg = given().annotated(&[("smg.ai/worker-ports", "8000, 8001")]).engine();
    assert_eq!(smg.http.as_deref(), Some("http://10.0.0.7:8000"));
    assert_eq!(rule(&smg, "ranks"), ("2", "annotation smg.ai/worker-ports"));
    for (source, value) in [("label:team", "a"), ("annotation:note", "b"), ("namespace", "ns")] {
        let given = given().labelled(&[("team", "a")]).annotated(&[("note", "b")]);
        let wanted = given.with(|settings| settings.model = ModelRule::parse(source)).engine();
        assert_eq!(wanted.model, value);
    }
    let llm_d = given().labelled(&[("llm-d.ai/engine-type", "sglang"), ("llm-d.ai/role", "decode")]).engine();
    assert_eq!(rule(&llm_d, "kind"), ("sglang", "label llm-d.ai/engine-type"));
    assert_eq!(rule(&llm_d, "role"), ("decode", "label llm-d.ai/role"));
    let dynamo = given()
        .with(|settings| settings.model = ModelRule::Ask)
        .labelled(&[
            ("nvidia.com/dynamo-component-type", "worker"),
            ("nvidia.com/dynamo-sub-component-type", "prefill"),
        ])
        .annotated(&[("nvidia.com/dynamo-base-model", "Qwen/Qwen3-0.6B")])
        .engine();
    assert_eq!(rule(&dynamo, "model"), ("Qwen/Qwen3-0.6B", "annotation nvidia.com/dynamo-base-model"));
    assert_eq!(rule(&dynamo, "role"), ("prefill", "label nvidia.com/dynamo-sub-component-type"));
    let frontend = given().labelled(&[("nvidia.com/dynamo-component-type", "frontend")]).verdict();
    assert!(
        matches!(&frontend, Verdict::None(why, _) if why.contains("dynamo-component-type=frontend")),
        "{frontend:?}"
    );
    let ignored = given().annotated(&[("kvplane.io/ignore", "true")]).verdict();
    assert!(matches!(&ignored, Verdict::None(why, _) if why.contains("kvplane.io/ignore")), "{ignored:?}");
}

#[test]
fn wrong_annotations_are_named_and_the_engine_is_there_all_the_same() {
    let wanted = given()
        .annotated(&[
            ("kvplane.io/kind", "llamacpp"),
            ("kvplane.io/events", "tcp://*:5557"),
            ("kvplane.io/ranks", "many"),
            ("kvplane.io/ignore", "yes"),
            ("kvplane.io/events-port", "5557"),
        ])
        .engine();
    assert_eq!(known(&wanted)[0].1, "tcp://10.0.0.7:5557");
    let texts: Vec<_> = wanted.remarks.iter().map(|remark| remark.text.as_str()).collect();
    assert_eq!(texts.len(), 5, "{texts:#?}");
    for part in [
        "\"llamacpp\" is not vllm",
        "\"tcp://*:5557\" is not a port",
        "\"many\"",
        "\"yes\" is not true or false",
        "kvplane.io/events-port is not known: remove it, or use kvplane.io/{kind, model, events",
    ] {
        assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:#?}");
    }
}

#[test]
fn ports_that_meet_are_named() {
    let annotations =
        [("kvplane.io/ranks", "4"), ("kvplane.io/events", "5557"), ("kvplane.io/replay", "5558")];
    let wanted = given().annotated(&annotations).engine();
    assert_eq!(codes(&wanted), ["ports"]);
    assert!(known(&wanted).iter().all(|(_, _, replay)| replay.is_none()));
    let beyond = given().annotated(&[("kvplane.io/ranks", "3"), ("kvplane.io/events", "65534")]).engine();
    assert_eq!((known(&beyond).len(), codes(&beyond)), (2, vec!["ports"]));
}

#[test]
fn the_command_line_and_the_declared_ports_are_held_against_it() {
    let launched = |launch: Launch| {
        let mut given = given().annotated(&[("kvplane.io/events", "5557")]).ports(&[("http", 8000)]);
        given.pod.launch = Some(launch);
        codes(&given.engine())
    };
    let on = Launch { events: true, replay: true, ..Launch::default() };
    assert_eq!(launched(on), ["port_undeclared"]);
    assert_eq!(launched(Launch::default()), ["events_off", "port_undeclared"]);
    assert_eq!(launched(Launch { off: true, ..on }), ["events_off", "port_undeclared"]);
    assert_eq!(launched(Launch { loopback: true, ..on }), ["loopback", "port_undeclared"]);
    assert_eq!(launched(Launch { replay: false, ..on }), ["no_replay", "port_undeclared"]);
}

#[test]
fn the_model_is_asked_for_where_nobody_says_it() {
    let mut asked = given()
        .with(|settings| settings.model = ModelRule::Ask)
        .ports(&[("http", 8000), ("kv-events", 5557)]);
    asked.pod.containers = vec![kvplane_kubernetes::Container { id: "1".to_owned(), ..Default::default() }];
    let mut pod = asked.pod.clone();
    let mut cluster = Cluster::new(asked.settings);
    cluster.applied("u", vec![pod.clone()], 0);
    cluster.settle(0);
    assert_eq!(cluster.engines().count(), 0);
    let questions = cluster.questions();
    assert_eq!((questions[0].uid.as_str(), questions[0].url.as_str()), ("u", "http://10.0.0.7:8000"));
    cluster.learn_model("u", "llama");
    cluster.settle(0);
    let wanted = cluster.engines().next().unwrap().clone();
    assert_eq!(rule(&wanted, "model"), ("llama", "asked at http://10.0.0.7:8000/v1/models"));
    assert!(cluster.questions().is_empty());
    // A container that starts again may serve another model; until it says so, nothing changes.
    pod.containers[0] =
        kvplane_kubernetes::Container { id: "2".to_owned(), restarts: 1, ..Default::default() };
    cluster.applied("u", vec![pod], 1);
    cluster.settle(1);
    assert!(cluster.engines().next().unwrap().is_same(&wanted));
    assert_eq!(cluster.questions().len(), 1);
    // Without a server that could be asked the engine has no name for its model, and that is said.
    let silent = given().with(|settings| settings.model = ModelRule::Ask).engine();
    assert_eq!((silent.model.as_str(), codes(&silent)), ("", vec!["model"]));
}

#[test]
fn a_group_is_one_engine_with_the_ranks_of_its_pods() {
    let member = |worker: u32, address: u8, annotations: &[(&str, &str)]| {
        let name = if worker == 0 { "big-1".to_owned() } else { format!("big-1-{worker}") };
        let labels = [
            ("leaderworkerset.sigs.k8s.io/name", "big"),
            ("leaderworkerset.sigs.k8s.io/group-index", "1"),
            ("leaderworkerset.sigs.k8s.io/worker-index", &worker.to_string()),
        ];
        let mut pod = given().labelled(&labels).annotated(annotations).pod;
        pod.uid = format!("u{worker}");
        pod.name = name;
        pod.address = Some(std::net::IpAddr::from([10, 0, 0, address]));
        pod
    };
    let settings = given().settings;
    let ranks = [("kvplane.io/ranks", "2"), ("kvplane.io/events", "5557"), ("kvplane.io/replay", "5657")];
    let engines = |pods: Vec<Pod>| {
        let mut cluster = Cluster::new(settings.clone());
        for pod in pods {
            cluster.applied(&pod.uid.clone(), vec![pod], 0);
        }
        cluster.settle(0);
        cluster.engines().cloned().collect::<Vec<_>>()
    };
    let [wanted] = &engines(vec![member(1, 2, &ranks), member(0, 1, &ranks)])[..] else { panic!() };
    assert_eq!(
        (wanted.id.as_str(), wanted.pods.len(), wanted.pods[0].pod.as_str()),
        ("ns/big-1", 2, "ns/big-1")
    );
    let at = |rank: u32, host: u8| {
        (
            rank,
            format!("tcp://10.0.0.{host}:{}", 5557 + rank),
            Some(format!("tcp://10.0.0.{host}:{}", 5657 + rank)),
        )
    };
    assert_eq!(known(wanted), [at(0, 1), at(1, 1), at(2, 2), at(3, 2)]);
    // Followers that say nothing publish nothing, and the leader alone is the engine.
    let [alone] = &engines(vec![member(0, 1, &ranks), member(1, 2, &[])])[..] else { panic!() };
    assert_eq!(known(alone), [at(0, 1), at(1, 1)]);
    assert!(engines(vec![member(1, 2, &ranks)]).is_empty(), "a group without its leader");
}
