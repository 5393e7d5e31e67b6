//! A proxy between the plane and one socket of an engine, which can stop passing bytes on without closing
//! anything.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;

/// How things are with the path.
#[derive(Debug, Clone, Copy, Default)]
struct Path {
    /// Nothing passes, and nothing is closed.
    is_silent: bool,
    /// Connections below this number never pass anything again. Their engine's side is closed, the plane's is
    /// not.
    dead_below: u64,
    /// Connections below this number are reset.
    reset_below: u64,
    /// Nobody listens.
    is_gone: bool,
    /// The number of the last connection.
    last: u64,
    /// How often what came next from the engine was replaced by noise.
    damaged: u64,
}

/// One proxy. Ends with its runtime.
pub struct Proxy {
    address: SocketAddr,
    path: watch::Sender<Path>,
}

impl Proxy {
    /// Starts one before `tcp://host:port`, or `host:port`.
    pub fn start(endpoint: &str, number: usize, runtime: &Handle) -> Self {
        let target: SocketAddr = endpoint.trim_start_matches("tcp://").parse().unwrap();
        // At an address of its own: nobody's connection takes its port while nobody listens.
        let own = format!("127.2.{}.{}:0", number / 250, number % 250 + 1);
        let listener = runtime.block_on(TcpListener::bind(own)).unwrap();
        let address = listener.local_addr().unwrap();
        let path = watch::Sender::new(Path::default());
        let control = path.clone();
        let opened = runtime.clone();
        runtime.spawn(async move {
            let mut listener = listener;
            let mut gone = control.subscribe();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((connection, _)) = accepted else { return };
                        control.send_modify(|path| path.last += 1);
                        let number = control.borrow().last;
                        opened.spawn(carry(connection, number, target, control.subscribe()));
                    }
                    is_gone = async { gone.wait_for(|path| path.is_gone).await.is_ok() } => {
                        drop(listener);
                        if !is_gone || gone.wait_for(|path| !path.is_gone).await.is_err() {
                            return;
                        }
                        listener = listen_again(address).await;
                    }
                }
            }
        });
        Self { address, path }
    }

    /// Where the plane finds it.
    pub fn endpoint(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// Nothing passes, and no side gets a reset.
    pub fn silence(&self) {
        self.path.send_modify(|path| path.is_silent = true);
    }

    /// What waited passes, and what comes.
    pub fn heal(&self) {
        self.path.send_if_modified(|path| std::mem::take(&mut path.is_silent));
    }

    /// Connections that there are now are half-open from now on.
    pub fn half_open(&self) {
        self.path.send_modify(|path| path.dead_below = path.last + 1);
    }

    /// The process is gone: connections are reset, and nobody listens.
    pub fn vanish(&self) {
        self.reset();
        self.path.send_modify(|path| path.is_gone = true);
    }

    /// It is there again.
    pub fn come_back(&self) {
        self.path.send_modify(|path| path.is_gone = false);
    }

    /// Connections that there are now are reset.
    pub fn reset(&self) {
        self.path.send_modify(|path| path.reset_below = path.last + 1);
    }

    /// What the engine sends next is noise.
    pub fn damage(&self) {
        self.path.send_modify(|path| path.damaged += 1);
    }
}

/// The system may hold on to an address for a moment.
async fn listen_again(address: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) if error.kind() == ErrorKind::AddrInUse => sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("cannot listen at {address} again: {error}"),
        }
    }
}

async fn carry(plane: TcpStream, number: u64, target: SocketAddr, mut path: watch::Receiver<Path>) {
    if path.wait_for(|path| !path.is_silent).await.is_err() {
        return;
    }
    let Ok(engine) = TcpStream::connect(target).await else { return };
    let _ = (plane.set_nodelay(true), engine.set_nodelay(true));
    let (mut from_plane, mut to_plane) = plane.into_split();
    let (mut from_engine, mut to_engine) = engine.into_split();
    let mut ended = path.clone();
    let is_over = |path: &Path| path.dead_below > number || path.reset_below > number;
    tokio::select! {
        () = copy(&mut from_engine, &mut to_plane, path.clone(), true) => {}
        () = copy(&mut from_plane, &mut to_engine, path.clone(), false) => {}
        _ = ended.wait_for(is_over) => {}
    }
    drop((from_engine, to_engine));
    let now = *path.borrow();
    if now.reset_below > number {
        // Dropped with linger 0, a socket sends a reset.
        let _ = to_plane.as_ref().set_zero_linger();
        return;
    }
    if now.dead_below > number {
        hold(&mut from_plane, number, path).await;
    } else {
        let _ = path.wait_for(|path| !path.is_silent).await;
    }
}

/// Takes what the plane sends, and never answers.
async fn hold(from_plane: &mut OwnedReadHalf, number: u64, mut path: watch::Receiver<Path>) {
    const LONGEST: Duration = Duration::from_mins(2);
    let mut bytes = [0; 4096];
    let reading = async { while from_plane.read(&mut bytes).await.is_ok_and(|read| read > 0) {} };
    tokio::select! {
        () = reading => {}
        _ = path.wait_for(|path| path.reset_below > number) => {}
        () = tokio::time::sleep(LONGEST) => {}
    }
}

async fn copy(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    mut path: watch::Receiver<Path>,
    from_engine: bool,
) {
    let mut bytes = vec![0; 16 << 10];
    let mut damaged = path.borrow().damaged;
    loop {
        if path.wait_for(|path| !path.is_silent).await.is_err() {
            return;
        }
        let mut silence = path.clone();
        let read = tokio::select! {
            read = from.read(&mut bytes) => read,
            _ = silence.wait_for(|path| path.is_silent) => continue,
        };
        let Ok(length @ 1..) = read else { return };
        // What was read when the path fell silent waits as well.
        let Ok(now) = path.wait_for(|path| !path.is_silent).await.map(|path| *path) else { return };
        if from_engine && now.damaged != damaged {
            damaged = now.damaged;
            // The one byte that msgpack never uses: it cannot become another batch.
            bytes[..length].fill(0xc1);
        }
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}
