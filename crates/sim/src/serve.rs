//! A server on a thread of its own.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot};

/// How long until a connection is looked for again after the system had none to give: it is out of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

/// The server's thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ServerThread {
    address: SocketAddr,
    running: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

/// The connection that a request came by: every request has it among its extensions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line(Arc<Notify>);

impl Line {
    /// Ends the connection without another word. Never returns: the caller is cut off as well.
    pub(crate) async fn cut(&self) -> ! {
        self.0.notify_one();
        std::future::pending().await
    }
}

impl ServerThread {
    /// Binds, and serves HTTP of both versions on a thread of that name: gRPC is the second.
    pub(crate) fn start(
        name: &'static str,
        address: SocketAddr,
        router: Router,
    ) -> Result<Self, std::io::Error> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || {
            runtime.block_on(async {
                let listener = match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => return tracing::error!(%error, "cannot listen"),
                };
                tokio::select! {
                    () = accept(&listener, &router) => {}
                    // Connections are not drained: an engine that goes, goes.
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { address, running: Mutex::new(Some((stop, thread))) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the server.
    pub(crate) fn stop(&self) {
        let Some((stop, thread)) = self.running.lock().take() else { return };
        let _ = stop.send(());
        if thread.join().is_err() {
            tracing::error!("a simulated server panicked");
        }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn accept(listener: &tokio::net::TcpListener, router: &Router) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => drop(kvplane_runtime::spawn("simulated HTTP", serve(socket, router.clone()))),
            Err(error) => {
                tracing::warn!(%error, "cannot accept");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn serve(socket: TcpStream, router: Router) {
    // Answers are small, and somebody waits for each.
    let _ = socket.set_nodelay(true);
    let line = Line::default();
    let service = TowerToHyperService::new(router.layer(Extension(line.clone())));
    let builder = Builder::new(TokioExecutor::new());
    tokio::select! {
        // However it ends, it is over.
        _ = builder.serve_connection(TokioIo::new(socket), service) => {}
        () = line.0.notified() => {}
    }
}
