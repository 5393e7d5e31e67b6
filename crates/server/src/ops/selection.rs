//! Which engines an operation is for.

use std::fmt;
use std::sync::Arc;

use http::Uri;
use kvplane_core::{EngineKind, ErrorCode, PublicError};
use kvplane_ingest::{Engine, Engines, Source};
use kvplane_ops::normal_address;

/// Names of one list are alternatives, lists are conditions that all hold; an empty one holds for every
/// engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    engines: Vec<String>,
    models: Vec<String>,
    kinds: Vec<EngineKind>,
    urls: Vec<String>,
}

impl Selection {
    /// Reads what a caller said. Kinds and addresses that cannot be are refused.
    pub(crate) fn new(
        engines: Vec<String>,
        models: Vec<String>,
        kinds: &[String],
        urls: Vec<String>,
    ) -> Result<Self, PublicError> {
        let kind = |name: &String| {
            let known = || EngineKind::ALL.map(EngineKind::as_str).join(", ");
            name.parse().map_err(|_| PublicError::field("kind", format!("{name:?} is none of {}", known())))
        };
        let kinds = kinds.iter().map(kind).collect::<Result<_, _>>()?;
        let is_address = |url: &String| url.parse::<Uri>().is_ok_and(|uri| uri.host().is_some());
        if let Some(url) = urls.iter().find(|url| !is_address(url)) {
            return Err(PublicError::field("url", format!("{url:?} is not an address"))
                .with_next("write it like http://127.0.0.1:8000"));
        }
        Ok(Self { engines, models, kinds, urls })
    }

    /// One engine.
    pub(crate) fn engine(id: &str) -> Self {
        Self { engines: vec![id.to_owned()], ..Self::default() }
    }

    /// The engines that are meant, in the order of their names. Another plane is none: its engines are.
    pub(crate) fn of(&self, engines: &Engines) -> Result<Vec<Arc<Engine>>, PublicError> {
        for id in &self.engines {
            if !engines.iter().any(|engine| engine.spec.id.as_str() == id) {
                return Err(PublicError::field("engine", format!("there is no engine {id:?}"))
                    .with_next(ErrorCode::NotFound.next_step()));
            }
        }
        let meant = |engine: &&Arc<Engine>| !engine.streams.is_empty() && self.means(engine);
        let mut meant: Vec<_> = engines.iter().filter(meant).cloned().collect();
        if meant.is_empty() {
            let message = format!("no engine is selected: {self}");
            return Err(PublicError::new(ErrorCode::NotFound, message));
        }
        meant.sort_by(|one, other| one.spec.id.as_str().cmp(other.spec.id.as_str()));
        Ok(meant)
    }

    fn means(&self, engine: &Engine) -> bool {
        let spec = &engine.spec;
        let kind = |kind: &EngineKind| {
            let elsewhere = matches!(spec.source, Source::Mirrored(_)) && *kind == EngineKind::Kvplane;
            *kind == spec.kind || elsewhere
        };
        let at = |url: &String| {
            let grpc = spec.control.grpc.as_ref().map(|grpc| &grpc.url);
            let own = spec.http.iter().chain(grpc);
            own.into_iter().any(|own| normal_address(own) == normal_address(url))
        };
        (self.engines.is_empty() || self.engines.iter().any(|id| id == spec.id.as_str()))
            && (self.models.is_empty() || self.models.contains(&spec.model))
            && (self.kinds.is_empty() || self.kinds.iter().any(kind))
            && (self.urls.is_empty() || self.urls.iter().any(at))
    }
}

/// As the audit line has it.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.kinds.iter().map(|kind| kind.as_str().to_owned()).collect();
        let lists =
            [("engine", &self.engines), ("model", &self.models), ("kind", &kinds), ("url", &self.urls)];
        let parts: Vec<_> = lists
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(list, names)| format!("{list}={}", names.join(",")))
            .collect();
        f.write_str(if parts.is_empty() { "every engine" } else { "" })?;
        f.write_str(&parts.join(" "))
    }
}
