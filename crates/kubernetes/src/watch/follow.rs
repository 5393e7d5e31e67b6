//! One kind of objects, followed: lists and changes in order, with pauses after failures.
//!
//! The client's watcher lists, watches, and lists again where its past is gone (410). What it cannot do is
//! here: it goes on after a line that it could not read, as if nothing had been in it; so everything is
//! listed again then.

use std::fmt::Debug;
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Error, Resource};
use serde::de::DeserializeOwned;

use super::client::Api;

/// Objects of one page.
const PAGE: u32 = 250;
/// The longest pause, in first ones.
const LONGEST: u32 = 50;

/// What happened.
#[derive(Debug)]
pub(crate) enum Seen<K> {
    /// A list begins.
    Begin,
    /// An object of it.
    Listed(K),
    /// It has ended.
    End,
    /// An object is new or has changed.
    Applied(K),
    /// An object is gone.
    Deleted(K),
    /// Nothing happened, because of this.
    Failed(Failure),
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// 401: a token that has expired, or is none.
    Unauthorized(String),
    /// 403: rights. Also for a moment after the API server started.
    Forbidden(String),
    /// 410: listed again at once.
    Expired,
    /// 404: there is no such kind of objects.
    Unknown(String),
    /// Anything else.
    Other(String),
}

impl Failure {
    fn of(error: &watcher::Error) -> Self {
        let of_status = |status: &kube::core::Status| match status.code {
            401 => Self::Unauthorized(status.message.clone()),
            403 => Self::Forbidden(status.message.clone()),
            404 => Self::Unknown(status.message.clone()),
            410 => Self::Expired,
            code => Self::Other(format!("{code}: {}", status.message)),
        };
        match error {
            watcher::Error::InitialListFailed(error)
            | watcher::Error::WatchStartFailed(error)
            | watcher::Error::WatchFailed(error) => match error {
                Error::Api(status) => of_status(status),
                // Where in an object it is, not what is there: that may be anything.
                Error::SerdeError(error) => {
                    Self::Other(format!("the answer is not understood at column {}", error.column()))
                }
                other => Self::Other(innermost(other)),
            },
            watcher::Error::WatchError(status) => of_status(status),
            watcher::Error::NoResourceVersion => Self::Other("the answer has no resourceVersion".to_owned()),
        }
    }
}

/// The last cause says what happened.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let cause = cause.to_string();
    // A certificate that is not valid now is as often a clock that is wrong as one that was not renewed.
    let untimely = ["not valid yet", "certificate expired"].iter().any(|part| cause.contains(part));
    if untimely {
        format!("{cause}: compare this machine's clock with the API server's, or renew its certificate")
    } else {
        cause
    }
}

/// Objects of one kind in a namespace.
pub(crate) type Objects<K> = Pin<Box<dyn Stream<Item = Seen<K>> + Send>>;

/// Follows them for as long as it is polled.
pub(crate) fn objects<K>(api: &Api, namespace: &str, labels: Option<&str>, name: Option<&str>) -> Objects<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let (first, watch) = (api.pace.pause, api.pace.watch);
    let api = kube::Api::<K>::namespaced(api.client.clone(), namespace);
    let config = watcher::Config {
        label_selector: labels.map(str::to_owned),
        field_selector: name.map(|name| format!("metadata.name={name}")),
        timeout: Some(watch),
        page_size: Some(PAGE),
        ..watcher::Config::default()
    };
    let start = move || Box::pin(watcher(api.clone(), config.clone()));
    let longest = first * LONGEST;
    let begin = (start(), start, 0_u32, None::<Duration>);
    Box::pin(futures::stream::unfold(begin, move |(mut watch, start, failures, pause)| async move {
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
        let (seen, failures, pause) = match watch.next().await {
            // A list that begins has not succeeded yet.
            Some(Ok(watcher::Event::Init)) => (Seen::Begin, failures, None),
            Some(Ok(watcher::Event::InitApply(object))) => (Seen::Listed(object), failures, None),
            Some(Ok(watcher::Event::InitDone)) => (Seen::End, 0, None),
            Some(Ok(watcher::Event::Apply(object))) => (Seen::Applied(object), 0, None),
            Some(Ok(watcher::Event::Delete(object))) => (Seen::Deleted(object), 0, None),
            Some(Err(error)) => {
                // What was in the line is not known.
                if matches!(&error, watcher::Error::WatchFailed(_)) {
                    watch = start();
                }
                let failure = Failure::of(&error);
                let pause = match &failure {
                    Failure::Expired if failures == 0 => first,
                    Failure::Unknown(_) => longest,
                    _ => (first * 2_u32.pow(failures.min(8))).min(longest),
                };
                (Seen::Failed(failure), failures + 1, Some(jittered(pause)))
            }
            None => return None,
        };
        Some((seen, (watch, start, failures, pause)))
    }))
}

/// Between three quarters of it and all: planes that lost one server together do not come back together.
fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher as _, RandomState};
    let random = RandomState::new().hash_one(0) % 256;
    pause.mul_f64(0.75 + random as f64 / 1024.0)
}
