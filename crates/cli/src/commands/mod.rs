//! What each command does.

pub(crate) mod config;
#[cfg(feature = "sim")]
pub(crate) mod demo;
pub(crate) mod discover;
pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod engines;
mod grpc_address;
mod http_client;
pub(crate) mod journal;
mod key;
pub(crate) mod operate;
pub(crate) mod page;
pub(crate) mod pick;
pub(crate) mod picker;
mod progress;
pub(crate) mod query;
mod query_hints;
pub(crate) mod ready;
pub(crate) mod report;
#[cfg(feature = "sim")]
pub(crate) mod route_sim;
pub(crate) mod serve;
#[cfg(feature = "kubernetes")]
mod serve_kubernetes;
pub(crate) mod shipped;
#[cfg(feature = "sim")]
pub(crate) mod sim;
#[cfg(feature = "sim")]
mod sim_drained;
#[cfg(feature = "sim")]
mod sim_subscribed;
pub(crate) mod status;
pub(crate) mod tail;
pub(crate) mod top;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use kvplane_client::{Client, ClientError};
use kvplane_doctor::without_userinfo;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::args::PlaneArgs;

use grpc_address::grpc_address;

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
    kvplane_runtime::spawn("signals", async move {
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

/// A listener; where there can be none, the error names the key or flag that asked for it, and what to do.
pub(crate) async fn bind(key: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let next = match error.kind() {
            io::ErrorKind::AddrInUse => "; another process has that port: stop it, or choose another",
            io::ErrorKind::AddrNotAvailable => "; this machine has no such address: choose one that it has",
            io::ErrorKind::PermissionDenied => "; ports below 1024 need the capability CAP_NET_BIND_SERVICE: grant it, or choose a higher one",
            _ => "; choose another address",
        };
        anyhow::anyhow!("{key}: cannot listen on {address}: {error}{next}")
    })
}

/// What the kvplane at `place` refused, with the exit code that says whose mistake it is.
pub(crate) fn refused(place: &str, status: &tonic::Status) -> Failure {
    let mistake = matches!(
        status.code(),
        tonic::Code::NotFound
            | tonic::Code::InvalidArgument
            | tonic::Code::Unauthenticated
            | tonic::Code::PermissionDenied
    );
    let words = match (status.code(), status.message()) {
        // A server that does not know the call says nothing else.
        (tonic::Code::Unimplemented, "") => {
            "is no kvplane, or an older one, and does not know this call; give the gRPC address of `kvplane serve`"
        }
        (code, "") => code.description(),
        (_, message) => message,
    };
    Failure {
        code: if mistake { 2 } else { 1 },
        error: anyhow::anyhow!("{}: {words}", without_userinfo(place)),
    }
}

/// A client of a running kvplane.
pub(crate) async fn connect(args: &PlaneArgs) -> Result<Client, Failure> {
    let options = args.server.key.client_options().map_err(usage)?;
    let Some(plane) = &args.plane else {
        let address = grpc_address(&args.server).await?;
        let client = Client::connect(&address, options).await;
        return client.map_err(|error| {
            let server = without_userinfo(&args.server.server);
            anyhow::anyhow!(
                "{error}; {server} names this gRPC address: if it differs from here, give --plane"
            )
            .into()
        });
    };
    let error = match Client::connect(plane, options).await {
        Ok(client) => return Ok(client),
        Err(error) => error,
    };
    Err(match error {
        ClientError::Address { .. } => usage(anyhow::anyhow!("--plane {error}")),
        ClientError::Refused { .. } => usage(anyhow::anyhow!("{error}")),
        // How a call fails at an HTTP/1 server is a matter of timing: ask it in its own language.
        _ if is_http(plane, args).await => usage(anyhow::anyhow!(
            "--plane {}: this is an HTTP address and not a gRPC one: give it as --server, or listen.grpc as --plane",
            without_userinfo(plane)
        )),
        _ => anyhow::anyhow!("{error}; is `kvplane serve` running? Give its gRPC address").into(),
    })
}

/// Whether a kvplane's HTTP listener is there.
async fn is_http(address: &str, args: &PlaneArgs) -> bool {
    let answer = http_client::answer(address, &args.server.key, http::Method::GET, "/readyz", None).await;
    answer.is_ok_and(|(_, verdict)| verdict["ready"].is_boolean())
}
