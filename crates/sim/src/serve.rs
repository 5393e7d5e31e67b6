//! An HTTP server on a thread of its own.

use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};

use axum::Router;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The server's thread.
pub(crate) struct HttpServer {
    address: SocketAddr,
    running: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl HttpServer {
    /// Binds and serves on a thread of its own.
    pub(crate) fn start(address: SocketAddr, router: Router) -> Result<Self, std::io::Error> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || {
            runtime.block_on(async {
                let listener = match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => return tracing::error!(%error, "cannot listen"),
                };
                tokio::select! {
                    served = axum::serve(listener, router) => {
                        if let Err(error) = served {
                            tracing::error!(%error, "http server ended");
                        }
                    }
                    // Connections are not drained: an engine that goes, goes.
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("sim-http".to_owned()).spawn(serve)?;
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
            tracing::error!("a simulated http server panicked");
        }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop();
    }
}
