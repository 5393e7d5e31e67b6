//! `[indexer]`: kvplane in the place of Dynamo's standalone indexer.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use kvplane_access::{Network, Networks, Role};
use kvplane_ingest::{MAX_PEERS, PeerOptions, read_token};
use kvplane_transport::HttpClient;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::units::ByteSize;

/// The routes of an indexer: `/query`, `/query_by_hash`, `/dump`, `/workers`, `/register`, `/unregister`,
/// `/peers` and the rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct IndexerConfig {
    /// Networks whose callers may use these routes without a key, `/register` and `/unregister` included:
    /// `["10.0.0.0/8"]`. Everything else that kvplane serves stays closed to them.
    pub(crate) open: Vec<String>,
    /// Networks whose callers may ask without a key: `/query`, `/query_by_hash`, `/dump`, `/workers`,
    /// `/peers`. Where networks overlap, the narrower one decides.
    pub(crate) open_read: Vec<String>,
    /// Other indexers, `["http://10.0.0.2:8090"]`: Dynamo's, or kvplanes. Where a stream's past is not known,
    /// the blocks of the first of them that knows its worker are taken. `/register_peer` adds more.
    pub(crate) peers: Vec<String>,
    /// File with the bearer token that `peers` are shown. Peers that `/register_peer` adds are shown none.
    pub(crate) peers_token_file: Option<PathBuf>,
    /// File with certificates (PEM) to trust instead of the public ones, for peers at `https://` addresses.
    pub(crate) peers_ca: Option<PathBuf>,
    /// The largest dump of a peer that is read.
    pub(crate) peers_max_dump: ByteSize,
    /// Whether `/metrics` has these routes under the names of Dynamo's indexer too: `dynamo_kvindexer_*`.
    pub(crate) metrics: bool,
}

impl Default for IndexerConfig {
    fn default() -> Self {
        let PeerOptions { max_dump, .. } = PeerOptions::default();
        Self {
            open: Vec::new(),
            open_read: Vec::new(),
            peers: Vec::new(),
            peers_token_file: None,
            peers_ca: None,
            peers_max_dump: ByteSize(max_dump),
            metrics: false,
        }
    }
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

    /// Peers, and how they are asked. Reads certificates.
    pub(super) fn peers(&self) -> anyhow::Result<PeerOptions> {
        for (at, url) in self.peers.iter().enumerate() {
            check_peer(url).with_context(|| format!("indexer.peers[{at}]"))?;
        }
        if self.peers.len() > MAX_PEERS {
            bail!("indexer.peers: has {} peers, and may have {MAX_PEERS}", self.peers.len());
        }
        if let Some(path) = &self.peers_token_file {
            read_token(path).context("indexer.peers_token_file")?;
        }
        let read = |path: &PathBuf| {
            std::fs::read(path).with_context(|| format!("indexer.peers_ca: cannot read {}", path.display()))
        };
        let ca = self.peers_ca.as_ref().map(read).transpose()?;
        let client = HttpClient::with_tls(ca.as_deref()).context("indexer.peers_ca")?;
        Ok(PeerOptions {
            urls: self.peers.clone(),
            token_file: self.peers_token_file.clone(),
            client,
            max_dump: self.peers_max_dump.0,
            ..PeerOptions::default()
        })
    }
}

/// Whether an address is one of a server.
fn check_peer(url: &str) -> anyhow::Result<()> {
    let uri: Option<http::Uri> = url.parse().ok();
    let fits = uri.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none()
    });
    if !fits {
        bail!("invalid address {url:?}: expected http://host[:port] or https://host[:port]");
    }
    Ok(())
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

    #[test]
    fn peers_are_addresses_of_servers() {
        let peers = |text: &str| {
            let config: IndexerConfig = toml::from_str(text).unwrap();
            config.peers().map(|peers| peers.urls).map_err(|error| format!("{error:#}"))
        };
        assert!(peers("").unwrap().is_empty());
        assert_eq!(
            peers("peers = [\"http://a:1\", \"https://[::1]/\"]").unwrap(),
            ["http://a:1", "https://[::1]/"]
        );
        for (text, named) in [
            ("peers = [\"http://a:1\", \"a:1\"]", "indexer.peers[1]"),
            ("peers = [\"tcp://a:1\"]", "expected http://host[:port]"),
            ("peers = [\"http://a:1/dump\"]", "http://a:1/dump"),
            ("peers = [\"http://a:1\"]\npeers_token_file = \"/nowhere\"", "indexer.peers_token_file"),
            ("peers = [\"http://a:1\"]\npeers_ca = \"/nowhere\"", "indexer.peers_ca"),
        ] {
            let error = peers(text).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
