//! A TCP connection that can be cut, or go silent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Copies bytes between clients of `address` and a server. Ends with the test's runtime.
#[derive(Debug)]
pub struct Line {
    /// Where to connect instead of to the server.
    pub address: SocketAddr,
    cut: Arc<Mutex<CancellationToken>>,
    silent: watch::Sender<bool>,
    garbled: Arc<AtomicBool>,
}

impl Line {
    /// A line to a server, which need not be there yet.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(Mutex::new(CancellationToken::new()));
        let (silent, heard) = watch::channel(false);
        let garbled = Arc::new(AtomicBool::new(false));
        let (current, garble) = (cut.clone(), garbled.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (cut, heard, garble) = (current.lock().clone(), heard.clone(), garble.clone());
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(server).await else { return };
                    let (near_read, near_write) = near.into_split();
                    let (far_read, far_write) = far.into_split();
                    let out = carry(near_read, far_write, heard.clone(), |_| {});
                    let back = carry(far_read, near_write, heard, |bytes| {
                        if garble.swap(false, Ordering::SeqCst) {
                            bytes.fill(0xa5);
                        }
                    });
                    tokio::select! {
                        () = cut.cancelled() => {}
                        () = async { tokio::join!(out, back); } => {}
                    }
                });
            }
        });
        Self { address, cut, silent, garbled }
    }

    /// Breaks every connection. New ones pass.
    pub fn cut(&self) {
        std::mem::take(&mut *self.cut.lock()).cancel();
    }

    /// The next bytes of the server arrive as noise.
    pub fn garble(&self) {
        self.garbled.store(true, Ordering::SeqCst);
    }

    /// Nothing passes any more, in either direction, without an error: connections stay open.
    pub fn silence(&self) {
        self.silent.send_replace(true);
    }

    /// Everything passes again, also what was held back.
    pub fn restore(&self) {
        self.silent.send_replace(false);
    }
}

/// Copies bytes one way, changed by `change`, until one side ends. Nothing is passed on while the line is
/// silent.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut silent: watch::Receiver<bool>,
    change: impl Fn(&mut [u8]),
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if silent.wait_for(|silent| !silent).await.is_err() || read == 0 {
            return;
        }
        change(&mut buffer[..read]);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
