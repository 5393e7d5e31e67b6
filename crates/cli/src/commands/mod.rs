//! What each command does.

pub(crate) mod demo;
mod demo_view;
pub(crate) mod dump;
pub(crate) mod engines;
mod http_client;
mod page;
pub(crate) mod query;
mod query_hints;
pub(crate) mod report;
pub(crate) mod serve;
pub(crate) mod sim;
mod sim_drained;
mod sim_subscribed;
pub(crate) mod tail;

use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

/// Why a command ended, and the exit code that says so: 1 failed, 2 wrong usage, 3 partly done.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) error: anyhow::Error,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { code: 1, error }
    }
}

/// A mistake of the one who typed the command.
pub(crate) fn usage(error: anyhow::Error) -> Failure {
    Failure { code: 2, error }
}

/// Cancelled by SIGINT or SIGTERM, or after `seconds`. A second signal ends the process at once.
pub(crate) fn stop_signal(seconds: Option<u64>) -> anyhow::Result<CancellationToken> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let cancel = stop.clone();
    tokio::spawn(async move {
        let timer = async {
            match seconds {
                Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = timer => {}
        }
        cancel.cancel();
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        std::process::exit(130);
    });
    Ok(stop)
}

/// What a kvplane refused, with the exit code that says whose mistake it is.
pub(crate) fn refused(status: &tonic::Status) -> Failure {
    let mistake = matches!(status.code(), tonic::Code::NotFound | tonic::Code::InvalidArgument);
    Failure { code: if mistake { 2 } else { 1 }, error: anyhow::anyhow!("{}", status.message()) }
}

/// Snapshot chunks stay below 1 MiB; a batch is as large as the engine made it.
const MAX_MESSAGE: usize = 256 << 20;

/// A client of a running kvplane.
pub(crate) async fn connect(url: &str) -> anyhow::Result<PlaneClient<Channel>> {
    let channel = dial("--plane", url, "no kvplane answers", "is `kvplane serve` running?").await?;
    Ok(PlaneClient::new(channel).max_decoding_message_size(MAX_MESSAGE))
}

/// A connection to a gRPC server at the address that a flag gave, or what to say when there is none.
async fn dial(flag: &str, url: &str, nobody: &str, advice: &str) -> anyhow::Result<Channel> {
    let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let endpoint = Endpoint::from_shared(with_scheme)
        .map_err(|_| anyhow::anyhow!("{flag} {url:?} is not an address like http://127.0.0.1:50090"))?
        .connect_timeout(Duration::from_secs(5));
    endpoint.connect().await.map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        anyhow::anyhow!("{nobody} at {url}: {cause}; {advice}")
    })
}
