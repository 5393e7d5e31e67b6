//! Objects of the API, as far as they are read. Everything else in them is skipped while they are parsed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::IpAddr;

use kube::Resource;
use kube::core::{NamespaceResourceScope, ObjectMeta};
use serde::Deserialize;

use crate::pod::{Container, Launch, Pod};

/// The metadata that is read: without the fields' managers, which are most of it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// The same, as the client wants it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(from = "RawMeta")]
pub(crate) struct Meta {
    given: ObjectMeta,
    created: String,
    leaving: bool,
}

impl From<RawMeta> for Meta {
    fn from(raw: RawMeta) -> Self {
        let given = ObjectMeta {
            name: raw.name,
            namespace: raw.namespace,
            uid: raw.uid,
            resource_version: raw.resource_version,
            labels: raw.labels,
            annotations: raw.annotations,
            ..ObjectMeta::default()
        };
        let created = raw.creation_timestamp.unwrap_or_default();
        Self { given, created, leaving: raw.deletion_timestamp.is_some() }
    }
}

/// A kind of object: its type, kind, group, version and plural.
macro_rules! resource {
    ([$($generic:tt)*] $name:ty, $kind:literal, $group:expr, $version:literal, $plural:literal) => {
        impl<$($generic)*> Resource for $name {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata.given
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata.given
            }
        }
    };
}

resource!([] PodObject, "Pod", "", "v1", "pods");
resource!([] SliceObject, "EndpointSlice", "discovery.k8s.io", "v1", "endpointslices");
resource!([] PoolObject, "InferencePool", "inference.networking.k8s.io", "v1", "inferencepools");
resource!([G: Group] ObjectiveObject<G>, "InferenceObjective", G::NAME, "v1alpha2", "inferenceobjectives");
resource!([G: Group] RewriteObject<G>, "InferenceModelRewrite", G::NAME, "v1alpha2", "inferencemodelrewrites");

/// The group of objectives and rewrites: they are on their way from the gateway API's extension to llm-d.
pub(crate) trait Group: std::fmt::Debug + Clone + Default + Send + 'static {
    const NAME: &'static str;
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Extension;

impl Group for Extension {
    const NAME: &'static str = "inference.networking.x-k8s.io";
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Llmd;

impl Group for Llmd {
    const NAME: &'static str = "llm-d.ai";
}

/// An object's identity: its uid, or its name where it has none.
pub(crate) fn identity<K: Resource>(object: &K) -> String {
    let meta = object.meta();
    meta.uid.clone().or_else(|| meta.name.clone()).unwrap_or_default()
}

/// A pod.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodObject {
    metadata: Meta,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    containers: Option<Vec<ContainerSpec>>,
    host_network: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ContainerSpec {
    name: String,
    command: Option<Vec<String>>,
    args: Option<Vec<String>>,
    ports: Option<Vec<ContainerPort>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPort {
    name: Option<String>,
    container_port: u16,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: Option<Vec<Condition>>,
    container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: String,
    ready: bool,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    restart_count: u32,
    state: Option<ContainerState>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    running: Option<Running>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Running {
    started_at: Option<String>,
}

/// Metadata of an object as ours.
fn named(metadata: &Meta) -> Pod {
    let meta = &metadata.given;
    Pod {
        uid: meta.uid.clone().unwrap_or_default(),
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        created: metadata.created.clone(),
        labels: meta.labels.clone().unwrap_or_default(),
        annotations: meta.annotations.clone().unwrap_or_default(),
        leaving: metadata.leaving,
        ..Pod::default()
    }
}

impl PodObject {
    /// Whether what listens at a port is ready: the pod, or the container of that port alone, where every
    /// rank has a container of its own and another one is not ready. A pod that is held back by a readiness
    /// gate is not.
    pub(crate) fn is_ready_at(&self, port: u16) -> bool {
        let conditions = || self.status.conditions.iter().flatten();
        let is =
            |name: &str, status: &str| conditions().any(|one| one.r#type == name && one.status == status);
        if is("Ready", "True") {
            return true;
        }
        let listens = |one: &&ContainerSpec| one.ports.iter().flatten().any(|at| at.container_port == port);
        let mut here = self.spec.containers.iter().flatten().filter(listens);
        let (Some(one), None) = (here.next(), here.next()) else { return false };
        let statuses = self.status.container_statuses.iter().flatten();
        is("ContainersReady", "False")
            && statuses.into_iter().any(|status| status.name == one.name && status.ready)
    }

    /// What it says of an engine.
    pub(crate) fn read(self) -> Pod {
        let containers = self.spec.containers.unwrap_or_default();
        let words = containers.iter().flat_map(|one| one.command.iter().chain(&one.args)).flatten();
        let launch = Launch::read(words.map(String::as_str));
        let ports = containers.into_iter().flat_map(|one| one.ports.unwrap_or_default());
        let ready = |one: &Condition| one.r#type == "Ready" && one.status == "True";
        let runs = self.status.container_statuses.unwrap_or_default().into_iter().map(|one| Container {
            id: one.container_id.unwrap_or_default(),
            restarts: one.restart_count,
            started_ms: one.state.and_then(|state| unix_ms(&state.running?.started_at?)),
        });
        Pod {
            address: self.status.pod_ip.and_then(|ip| ip.parse().ok()),
            host_network: self.spec.host_network,
            over: matches!(self.status.phase.as_deref(), Some("Succeeded" | "Failed")),
            ready: self.status.conditions.iter().flatten().any(ready),
            ports: ports.map(|port| (port.name.unwrap_or_default(), port.container_port)).collect(),
            containers: runs.collect(),
            launch,
            ..named(&self.metadata)
        }
    }
}

/// RFC 3339 as Unix milliseconds.
fn unix_ms(text: &str) -> Option<u64> {
    let time: k8s_openapi::jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok()
}

/// A slice of a Service's endpoints.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SliceObject {
    metadata: Meta,
    endpoints: Option<Vec<SliceEndpoint>>,
    ports: Option<Vec<SlicePort>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SliceEndpoint {
    addresses: Vec<String>,
    conditions: Option<SliceConditions>,
    target_ref: Option<Target>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SliceConditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Target {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct SlicePort {
    name: Option<String>,
    port: Option<u16>,
}

impl SliceObject {
    /// Its endpoints as pods: with the names of the Service's ports, the Service's labels, and without annotations.
    pub(crate) fn read(self) -> Vec<Pod> {
        let ports = self.ports.unwrap_or_default().into_iter();
        let ports: Vec<_> =
            ports.filter_map(|port| Some((port.name.unwrap_or_default(), port.port?))).collect();
        let labels = self.metadata.given.labels.clone().unwrap_or_default();
        let namespace = self.metadata.given.namespace.clone().unwrap_or_default();
        let endpoints = self.endpoints.unwrap_or_default().into_iter().filter_map(|endpoint| {
            let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
            let target = endpoint.target_ref.unwrap_or_default();
            let conditions = endpoint.conditions.unwrap_or_default();
            let name = target.name.unwrap_or_else(|| address.to_string());
            let namespace = target.namespace.unwrap_or_else(|| namespace.clone());
            Some(Pod {
                uid: target.uid.unwrap_or_else(|| format!("{namespace}/{name}")),
                namespace,
                name,
                labels: labels.clone(),
                address: Some(address),
                ready: conditions.ready.unwrap_or(true),
                leaving: conditions.terminating.unwrap_or(false),
                ports: ports.clone(),
                ..Pod::default()
            })
        });
        endpoints.collect()
    }
}

/// An `InferencePool`, v1.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PoolObject {
    metadata: Meta,
    spec: PoolSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PoolSpec {
    selector: PoolSelector,
    target_ports: Vec<TargetPort>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PoolSelector {
    match_labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct TargetPort {
    number: u16,
}

/// Which pods a pool has, and at which ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolRead {
    pub(crate) selector: String,
    pub(crate) ports: Vec<u16>,
}

impl PoolObject {
    pub(crate) fn read(&self) -> PoolRead {
        let labels = self.spec.selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        let selector = labels.collect::<Vec<_>>().join(",");
        let ports = self.spec.target_ports.iter().map(|port| port.number).filter(|port| *port > 0);
        // The API allows eight.
        PoolRead { selector, ports: ports.take(8).collect() }
    }
}

/// The pool that an objective or a rewrite is for.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct PoolRef {
    name: String,
}

/// An `InferenceObjective`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, bound = "G: Group")]
pub(crate) struct ObjectiveObject<G> {
    metadata: Meta,
    #[serde(skip)]
    group: PhantomData<G>,
    spec: ObjectiveSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectiveSpec {
    priority: Option<i32>,
    pool_ref: PoolRef,
}

impl<G: Group> ObjectiveObject<G> {
    /// Its name and priority, if it is of this pool.
    pub(crate) fn read(&self, pool: &str) -> Option<(String, i32)> {
        let name = self.metadata.given.name.clone()?;
        (self.spec.pool_ref.name == pool).then(|| (name, self.spec.priority.unwrap_or(0)))
    }
}

/// An `InferenceModelRewrite`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, bound = "G: Group")]
pub(crate) struct RewriteObject<G> {
    metadata: Meta,
    #[serde(skip)]
    group: PhantomData<G>,
    spec: RewriteSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RewriteSpec {
    pool_ref: PoolRef,
    rules: Vec<RewriteRule>,
}

/// One rule: for these models, or for all, one of the targets by their weights.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct RewriteRule {
    pub(crate) matches: Vec<RewriteMatch>,
    pub(crate) targets: Vec<RewriteTarget>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct RewriteMatch {
    pub(crate) model: Option<ModelMatch>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ModelMatch {
    pub(crate) r#type: Option<String>,
    pub(crate) value: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RewriteTarget {
    pub(crate) model_rewrite: String,
    pub(crate) weight: Option<u32>,
}

impl<G: Group> RewriteObject<G> {
    /// When it was created, and its rules, if it is of this pool.
    pub(crate) fn read(&self, pool: &str) -> Option<(String, Vec<RewriteRule>)> {
        (self.spec.pool_ref.name == pool).then(|| (self.metadata.created.clone(), self.spec.rules.clone()))
    }
}
