//! `[indexer]`: kvplane in the place of Dynamo's standalone indexer.

use anyhow::Context as _;
use kvplane_access::{Network, Networks, Role};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The routes of an indexer: `/query`, `/query_by_hash`, `/dump`, `/workers`, `/register`, `/unregister`, `/peers` and the rest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct IndexerConfig {
    /// Networks whose callers may use these routes without a key, `/register` and `/unregister` included: `["10.0.0.0/8"]`. Everything
    /// else that kvplane serves stays closed to them.
    pub(crate) open: Vec<String>,
    /// Networks whose callers may ask without a key: `/query`, `/query_by_hash`, `/dump`, `/workers`, `/peers`. Where networks overlap,
    /// the narrower one decides.
    pub(crate) open_read: Vec<String>,
    /// Whether `/metrics` has these routes under the names of Dynamo's indexer too: `dynamo_kvindexer_*`.
    pub(crate) metrics: bool,
}

impl IndexerConfig {
    /// Networks whose callers need no key. Only with `insecure` may everybody be one of them.
    pub(super) fn networks(&self, insecure: bool) -> anyhow::Result<Networks> {
        let lists = [("open", &self.open, Role::Admin), ("open_read", &self.open_read, Role::Read)];
        let mut given = Vec::new();
        for (key, list, role) in lists {
            for (at, text) in list.iter().enumerate() {
                let network: Network = text.parse().with_context(|| format!("indexer.{key}[{at}]"))?;
                given.push((network, role));
            }
        }
        Networks::new(given, insecure).context("indexer.open, indexer.open_read")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_name_their_key() {
        let networks = |text: &str, insecure| {
            let config: IndexerConfig = toml::from_str(text).unwrap();
            config.networks(insecure).map_err(|error| format!("{error:#}"))
        };
        assert!(networks("", false).unwrap().is_empty());
        assert!(!networks("open = [\"10.0.0.0/8\", \"fd00::/8\"]", false).unwrap().is_empty());
        for (text, named) in [
            ("open = [\"10.0.0.0/8\", \"x\"]", "indexer.open[1]"),
            ("open_read = [\"10.0.0.1/8\"]", "10.0.0.0/8"),
            ("open = [\"10.0.0.0/8\"]\nopen_read = [\"10.0.0.0/8\"]", "twice"),
            ("open = [\"0.0.0.0/0\"]", "--insecure"),
        ] {
            let error = networks(text, false).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        assert!(networks("open = [\"0.0.0.0/0\"]", true).is_ok());
    }
}
