//! A server on a thread of its own.

use std::fmt::Display;
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use axum::Router;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The server's thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ServerThread {
    address: SocketAddr,
    running: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl ServerThread {
    /// Binds, and serves HTTP.
    pub(crate) fn http(address: SocketAddr, router: Router) -> Result<Self, std::io::Error> {
        Self::start("sim-http", address, async move |listener| axum::serve(listener, router).await)
    }

    /// Binds, and runs a server on a thread of that name.
    pub(crate) fn start<S, E>(
        name: &'static str,
        address: SocketAddr,
        serve: S,
    ) -> Result<Self, std::io::Error>
    where
        S: AsyncFnOnce(tokio::net::TcpListener) -> Result<(), E> + Send + 'static,
        E: Display,
    {
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
                    served = serve(listener) => {
                        if let Err(error) = served {
                            tracing::error!(name, %error, "a server ended");
                        }
                    }
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
