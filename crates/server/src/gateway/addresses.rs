//! Where engines are whose addresses are names.
//!
//! Names are looked up side by side, each within a time: a resolver that hangs for one of them keeps nobody
//! else's engine away. A name that was found once keeps its address while it is not found: engines do not go
//! with their resolver, and who is not there is found out by probes.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt as _;
use kvplane_transport::host_and_port;
use tokio::time::timeout;
use tracing::{info, warn};

/// How long a name may take. A resolver tries again after 5 s, and there is another round soon.
const WITHIN: Duration = Duration::from_secs(2);
/// Names that are looked up at the same time.
const AT_ONCE: usize = 32;

/// An address, and what it is called in `Host`.
pub(super) type Found = (SocketAddr, String);

/// What is known of every URL.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    known: HashMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    /// As it was found last.
    found: Option<Found>,
    /// Why it was not found now.
    missing: Option<&'static str>,
}

impl Addresses {
    /// Looks up all of these, and forgets others.
    pub(super) async fn look_up(&mut self, urls: HashSet<String>) {
        self.look_up_by(urls, resolve).await;
    }

    async fn look_up_by<F>(&mut self, urls: HashSet<String>, resolve: impl Fn(String) -> F)
    where
        F: Future<Output = Result<Found, &'static str>>,
    {
        self.known.retain(|url, _| urls.contains(url));
        let lookups = urls.into_iter().map(|url| {
            let found = timeout(WITHIN, resolve(url.clone()));
            async { (url, found.await.unwrap_or(Err("the host of its http address was not found in time"))) }
        });
        let mut lookups = std::pin::pin!(futures::stream::iter(lookups).buffer_unordered(AT_ONCE));
        while let Some((url, looked_up)) = lookups.next().await {
            let known = self.known.entry(url).or_insert(Known { found: None, missing: None });
            let before = known.missing;
            match looked_up {
                Ok(found) => (known.found, known.missing) = (Some(found), None),
                Err(reason) => known.missing = Some(reason),
            }
            if let Some((address, host)) = &known.found
                && before != known.missing
            {
                if let Some(reason) = known.missing {
                    warn!(host, %address, reason, "engine's name not found: its last address stays");
                } else {
                    info!(host, %address, "engine's name found again");
                }
            }
        }
    }

    /// Where a URL's server is.
    pub(super) fn find(&self, url: &str) -> Result<Found, &'static str> {
        let known = self.known.get(url).ok_or("its http address was not looked up yet")?;
        known.found.clone().ok_or_else(|| known.missing.unwrap_or("its http address was not looked up yet"))
    }
}

async fn resolve(url: String) -> Result<Found, &'static str> {
    let Some(rest) = url.strip_prefix("http://") else {
        return Err("its http address is not http://host[:port]: the gateway speaks plain HTTP to engines");
    };
    let host = rest.split('/').next().unwrap_or_default();
    let (name, port) = host_and_port(host).ok_or("its http address is not http://host[:port]")?;
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let mut found = tokio::net::lookup_host((bare, port.unwrap_or(80)))
        .await
        .map_err(|_| "the host of its http address is not known")?;
    let address = found.next().ok_or("the host of its http address has no address")?;
    Ok((address, host.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> Found {
        (SocketAddr::from(([10, 0, 0, last], 8000)), format!("e{last}"))
    }

    /// A resolver that is away, or hangs, takes no engine away that was found before, and holds up nobody.
    #[tokio::test]
    async fn a_name_keeps_its_address_while_it_is_not_found() {
        const UNKNOWN: Result<Found, &str> = Err("is not known");
        let mut addresses = Addresses::default();
        let both = || HashSet::from(["http://e1", "http://e2"].map(str::to_owned));
        let first = |url: String| std::future::ready(if url == "http://e1" { Ok(at(1)) } else { UNKNOWN });
        addresses.look_up_by(both(), first).await;
        assert_eq!((addresses.find("http://e1"), addresses.find("http://e2")), (Ok(at(1)), UNKNOWN));
        let hangs = |url: String| async move {
            if url == "http://e1" {
                std::future::pending::<()>().await;
            }
            Ok(at(2))
        };
        addresses.look_up_by(both(), hangs).await;
        assert_eq!((addresses.find("http://e1"), addresses.find("http://e2")), (Ok(at(1)), Ok(at(2))));
        addresses.look_up_by(both(), |_| std::future::ready(UNKNOWN)).await;
        assert_eq!((addresses.find("http://e1"), addresses.find("http://e2")), (Ok(at(1)), Ok(at(2))));
        addresses.look_up_by(both(), |_| std::future::ready(Ok(at(3)))).await;
        assert_eq!(addresses.find("http://e1"), Ok(at(3)));
        // One that nobody has any more is forgotten.
        addresses.look_up_by(HashSet::new(), |_| std::future::ready(UNKNOWN)).await;
        assert!(addresses.find("http://e1").is_err());
    }

    #[tokio::test]
    async fn addresses_of_urls() {
        let numbers = resolve("http://127.0.0.1:8000/v1".to_owned()).await;
        assert_eq!(numbers, Ok((SocketAddr::from(([127, 0, 0, 1], 8000)), "127.0.0.1:8000".to_owned())));
        assert_eq!(resolve("http://[::1]".to_owned()).await.unwrap().0, "[::1]:80".parse().unwrap());
        for wrong in ["https://127.0.0.1", "http://"] {
            assert!(resolve(wrong.to_owned()).await.is_err(), "{wrong}");
        }
    }
}
