//! From a verb to its requests. No option is ever left out: an engine that does not accept all of them is
//! not asked.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};
use kvplane_proto::engines::sglang::GetLoadsRequest;
use kvplane_proto::smg::{FlushCacheRequest, StartProfileRequest};
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::backend::{Backend, Service, Version};
use crate::support::{Call, Speaker, Support, Takes, Way, support};
use crate::verb::{Flush, Profile, Verb};

/// One request, and all that is needed to understand its answer.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) speaker: Speaker,
    pub(crate) way: &'static Way,
    pub(crate) request: Request,
    /// Whether the engine itself waits until it is idle, as long as the verb says.
    pub(crate) waits: bool,
    /// What has to be said with the answer.
    pub(crate) note: Option<&'static str>,
    /// The release decides what can be said, and is not known: it is worth a question.
    pub(crate) by_release: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Request {
    Http { method: Method, path: String, json: Option<Bytes>, header: Option<(HeaderName, HeaderValue)> },
    Grpc { path: String, message: Bytes },
}

/// What a request says besides whom it calls.
#[derive(Debug, Default)]
struct Content {
    query: String,
    body: Option<Value>,
    message: Bytes,
    header: Option<(HeaderName, HeaderValue)>,
    waits: bool,
    note: Option<&'static str>,
    by_release: bool,
}

/// How a backend is asked: ways in the order in which they are to be tried; or why there is none.
pub(crate) fn plan(backend: &Backend, verb: &Verb) -> Result<Vec<Ask>, String> {
    let mut asks = Vec::new();
    let mut reasons: Vec<String> = Vec::new();
    for speaker in speakers(backend) {
        match support(speaker, verb.name()) {
            Support::Ways(ways) => {
                for way in ways {
                    match ask(speaker, way, verb, backend.version) {
                        Ok(ask) => asks.push(ask),
                        Err(reason) => add(&mut reasons, reason),
                    }
                }
            }
            Support::No(reason) => add(&mut reasons, reason.to_owned()),
        }
    }
    if asks.is_empty() && reasons.is_empty() {
        reasons.push("the engine has neither an http nor a grpc address".to_owned());
    }
    if asks.is_empty() { Err(reasons.join("; ")) } else { Ok(asks) }
}

fn add(reasons: &mut Vec<String>, reason: String) {
    if !reasons.contains(&reason) {
        reasons.push(reason);
    }
}

/// The servers that can answer for a backend. SMG's services come first: they cover all ranks.
fn speakers(backend: &Backend) -> Vec<Speaker> {
    let mut speakers = Vec::new();
    if backend.grpc.is_some() {
        speakers.extend(Service::of(backend.kind).iter().map(|&service| Speaker::Grpc(service)));
    }
    // Whether there is an address or not: an engine of another plane is never asked, and the table says so.
    if backend.http.is_some() || (speakers.is_empty() && Service::of(backend.kind).is_empty()) {
        speakers.push(Speaker::Http(backend.kind));
    }
    speakers
}

/// How one way is asked; or why it cannot be.
pub(crate) fn ask(
    speaker: Speaker,
    way: &'static Way,
    verb: &Verb,
    version: Option<Version>,
) -> Result<Ask, String> {
    let content = content(way.takes, verb, version)
        .map_err(|options| format!("{} does not accept {}", way.call, options.join(", ")))?;
    let Content { query, body, message, header, waits, note, by_release } = content;
    let http = |method, path: &str| {
        let path = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
        Request::Http { method, path, json: body.map(|body| Bytes::from(body.to_string())), header }
    };
    let request = match (way.call, speaker) {
        (Call::Get(path), _) => http(Method::GET, path),
        (Call::Post(path), _) => http(Method::POST, path),
        (Call::Rpc(method), Speaker::Grpc(service)) => {
            Request::Grpc { path: format!("/{}/{method}", service.name()), message }
        }
        (Call::Rpc(method), Speaker::Http(_)) => return Err(format!("{method} is not called over HTTP")),
    };
    Ok(Ask { speaker, way, request, waits, note, by_release })
}

/// What the request says, or which of the verb's options it cannot say.
fn content(takes: Takes, verb: &Verb, version: Option<Version>) -> Result<Content, Vec<&'static str>> {
    match (takes, verb) {
        (Takes::VllmReset, Verb::Flush(flush)) => vllm_reset(flush, version),
        (Takes::SglangFlush, Verb::Flush(flush)) => sglang_flush(flush, version),
        (Takes::FlushMessage, Verb::Flush(flush)) => flush_message(flush, &flush_options(flush)),
        (Takes::FlushTreeMessage, Verb::Flush(flush)) => {
            let only_running = Flush { reset_external: false, ..*flush };
            flush_message(flush, &flush_options(&only_running))
        }
        (Takes::VllmProfile, Verb::StartProfile(profile)) => vllm_profile(profile, version),
        (Takes::SglangProfile, Verb::StartProfile(profile)) => Ok(sglang_profile(profile)),
        (Takes::ProfileMessage, Verb::StartProfile(profile)) => profile_message(profile),
        (Takes::OneToken, Verb::Nudge { model, rank }) => Ok(Content {
            header: rank.map(|rank| (DATA_PARALLEL_RANK, rank.into())),
            body: Some(json!({"model": model, "prompt": "a", "max_tokens": 1, "temperature": 0})),
            ..Content::default()
        }),
        (Takes::AllSections, _) => {
            let request = GetLoadsRequest { dp_rank: None, include: vec!["all".to_owned()] };
            Ok(Content { message: request.encode_to_vec().into(), ..Content::default() })
        }
        (_, Verb::Flush(flush)) => none_of(&flush_options(flush), None),
        (_, Verb::StartProfile(profile)) => none_of(&profile_options(profile), Some(NO_ID)),
        _ => Ok(Content::default()),
    }
}

/// This header selects the rank that computes a request at vLLM's server. Servers that do not know it choose
/// one themselves.
const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

const NO_ID: &str = "the traces do not carry the recording's id";

fn none_of(options: &[&'static str], note: Option<&'static str>) -> Result<Content, Vec<&'static str>> {
    if options.is_empty() { Ok(Content { note, ..Content::default() }) } else { Err(options.to_vec()) }
}

/// The options of a flush that not every engine accepts.
fn flush_options(flush: &Flush) -> Vec<&'static str> {
    set(&[("reset_running", flush.reset_running), ("reset_external", flush.reset_external)])
}

fn set(options: &[(&'static str, bool)]) -> Vec<&'static str> {
    options.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect()
}

/// Whether a release that is not known to be older has something.
fn since(version: Option<Version>, first: Version) -> bool {
    version.is_none_or(|version| version >= first)
}

fn vllm_reset(flush: &Flush, version: Option<Version>) -> Result<Content, Vec<&'static str>> {
    let options = [
        ("reset_running", "reset_running_requests=true", flush.reset_running, Version(0, 12, 0)),
        ("reset_external", "reset_external=true", flush.reset_external, Version(0, 13, 0)),
    ];
    let wanted = || options.iter().filter(|(_, _, set, _)| *set);
    let too_old: Vec<_> =
        wanted().filter(|(.., first)| !since(version, *first)).map(|(name, ..)| *name).collect();
    if !too_old.is_empty() {
        return Err(too_old);
    }
    let query = wanted().map(|(_, query, ..)| *query).collect::<Vec<_>>().join("&");
    let by_release = version.is_none() && !query.is_empty();
    let note = by_release.then_some(
        "releases before 0.12 do not know reset_running and those before 0.13 not reset_external: they ignore it",
    );
    Ok(Content { query, note, by_release, ..Content::default() })
}

fn sglang_flush(flush: &Flush, version: Option<Version>) -> Result<Content, Vec<&'static str>> {
    if flush.reset_running {
        return Err(vec!["reset_running"]);
    }
    let waits = since(version, Version(0, 5, 10));
    let query = if waits && !flush.timeout.is_zero() {
        format!("timeout={}", flush.timeout.as_secs_f64())
    } else {
        String::new()
    };
    let by_release = version.is_none() && !query.is_empty();
    // An older release that ignores the parameter answers at once, and is asked again: only a known one waits
    // for sure.
    let waits = waits && version.is_some();
    Ok(Content { query, waits, note: tree_note(flush), by_release, ..Content::default() })
}

/// The tiers of the tree go with it; what `SGLang` keeps in a storage backend does not.
fn tree_note(flush: &Flush) -> Option<&'static str> {
    flush.reset_external.then_some("a storage backend, if there is one, is not reached by it")
}

fn flush_message(flush: &Flush, unsupported: &[&'static str]) -> Result<Content, Vec<&'static str>> {
    if !unsupported.is_empty() {
        return Err(unsupported.to_vec());
    }
    let message = FlushCacheRequest { timeout_s: flush.timeout.as_secs_f32() };
    let message = message.encode_to_vec().into();
    Ok(Content { message, waits: true, note: tree_note(flush), ..Content::default() })
}

/// The options of a recording that are set, by name. The id is none: it is ours.
fn profile_options(profile: &Profile) -> Vec<&'static str> {
    set(&[
        ("output_dir", profile.output_dir.is_some()),
        ("prefix", profile.prefix.is_some()),
        ("start_step", profile.start_step.is_some()),
        ("num_steps", profile.num_steps.is_some()),
        ("activities", !profile.activities.is_empty()),
        ("with_stack", profile.with_stack.is_some()),
        ("record_shapes", profile.record_shapes.is_some()),
        ("by_stage", profile.by_stage),
        ("stages", !profile.stages.is_empty()),
        ("merge", profile.merge),
    ])
}

/// The options that are set and not accepted.
fn unsupported(profile: &Profile, supported: &[&str]) -> Vec<&'static str> {
    profile_options(profile).into_iter().filter(|option| !supported.contains(option)).collect()
}

/// What the names of traces begin with.
fn prefix(profile: &Profile) -> String {
    match &profile.prefix {
        Some(prefix) => format!("{prefix}-{}", profile.id),
        None => profile.id.to_string(),
    }
}

fn vllm_profile(profile: &Profile, version: Option<Version>) -> Result<Content, Vec<&'static str>> {
    if !since(version, Version(0, 32, 0)) {
        return none_of(&profile_options(profile), Some(NO_ID));
    }
    let supported = ["prefix", "start_step", "num_steps"];
    let unsupported = unsupported(profile, &supported);
    if !unsupported.is_empty() {
        return Err(unsupported);
    }
    // No other key: the server refuses what it does not know.
    let mut body = Map::new();
    body.insert("profile_prefix".to_owned(), prefix(profile).into());
    put(&mut body, "delay_iterations", profile.start_step);
    put(&mut body, "max_iterations", profile.num_steps);
    let by_release = version.is_none();
    let note = by_release.then_some("a release before 0.32 takes no options, and ignores them");
    Ok(Content { body: Some(body.into()), note, by_release, ..Content::default() })
}

fn sglang_profile(profile: &Profile) -> Content {
    let mut body = Map::new();
    body.insert("profile_prefix".to_owned(), prefix(profile).into());
    put(&mut body, "output_dir", profile.output_dir.clone());
    put(&mut body, "start_step", profile.start_step);
    put(&mut body, "num_steps", profile.num_steps);
    put(&mut body, "activities", some_of(&profile.activities));
    put(&mut body, "with_stack", profile.with_stack);
    put(&mut body, "record_shapes", profile.record_shapes);
    put(&mut body, "profile_by_stage", profile.by_stage.then_some(true));
    put(&mut body, "profile_stages", some_of(&profile.stages));
    put(&mut body, "merge_profiles", profile.merge.then_some(true));
    Content { body: Some(body.into()), ..Content::default() }
}

fn put<V: Into<Value>>(body: &mut Map<String, Value>, key: &str, value: Option<V>) {
    if let Some(value) = value {
        body.insert(key.to_owned(), value.into());
    }
}

fn some_of(list: &[String]) -> Option<Vec<String>> {
    (!list.is_empty()).then(|| list.to_vec())
}

fn profile_message(profile: &Profile) -> Result<Content, Vec<&'static str>> {
    let supported =
        ["output_dir", "start_step", "num_steps", "activities", "with_stack", "record_shapes", "by_stage"];
    let mut unsupported = unsupported(profile, &supported);
    let mut step = |name, value: Option<u32>| {
        let number = value.map(i32::try_from).transpose();
        number.unwrap_or_else(|_| {
            unsupported.push(name);
            None
        })
    };
    let (start_step, num_steps) =
        (step("start_step", profile.start_step), step("num_steps", profile.num_steps));
    if !unsupported.is_empty() {
        return Err(unsupported);
    }
    // The message has no field for a name: a folder of its own tells the recording from others.
    let output_dir =
        profile.output_dir.as_ref().map(|folder| format!("{}/{}", folder.trim_end_matches('/'), profile.id));
    let note = output_dir.is_none().then_some(NO_ID);
    let message = StartProfileRequest {
        output_dir,
        start_step,
        num_steps,
        activities: profile.activities.clone(),
        with_stack: profile.with_stack,
        record_shapes: profile.record_shapes,
        profile_by_stage: profile.by_stage,
    };
    Ok(Content { message: message.encode_to_vec().into(), note, ..Content::default() })
}

#[cfg(test)]
mod tests;
