//! A request's headers and metadata, as far as they matter.

use kvplane_proto::envoy as proto;

use crate::message::{header, texts};
use crate::names;
use kvplane_inference::Api;

/// Bytes of a header's value that are kept.
const MAX_VALUE: usize = 1_024;
/// Endpoints of a subset; more are not looked at.
const MAX_SUBSET: usize = 4_096;

/// What the headers say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) api: Api,
    /// The only endpoints that may be picked; absent where any may.
    pub(crate) subset: Option<Vec<String>>,
    pub(crate) objective: Option<String>,
    pub(crate) session: Option<String>,
    /// `prefer: if-available`: only where a part of the prompt is cached.
    pub(crate) only_cached: bool,
    pub(crate) wants_receipt: bool,
    /// The model that a gateway in front wants to be asked for.
    pub(crate) rewrite: Option<String>,
    /// The answer's body passes here, and can be changed.
    pub(crate) answer_passes: bool,
}

impl Head {
    pub(super) fn read(headers: &proto::HeaderMap, metadata: Option<&proto::Metadata>) -> Self {
        let short = |name: &str| header(headers, name).filter(|value| value.len() <= MAX_VALUE);
        let prefers = |value: &str| value.split(',').any(|part| part.trim() == "if-available");
        let hint = metadata.and_then(|metadata| metadata.filter_metadata.get(names::SUBSET_HINT));
        let mut subset = hint.and_then(|hint| hint.fields.get(names::SUBSET)).map(texts);
        if let Some(subset) = &mut subset {
            subset.truncate(MAX_SUBSET);
        }
        Self {
            api: Api::of(header(headers, ":path").unwrap_or_default()),
            subset,
            objective: names::OBJECTIVE.iter().find_map(|name| short(name)).map(str::to_owned),
            session: short(names::SESSION).map(str::to_owned),
            only_cached: short("prefer").is_some_and(prefers),
            wants_receipt: header(headers, names::RECEIPT).is_some(),
            rewrite: names::REWRITE
                .iter()
                .find_map(|name| short(name))
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
            answer_passes: false,
        }
    }
}
