//! Servers that do as a test says, byte by byte.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kvplane_core::EngineKind;
use kvplane_ops::{Backend, GrpcServer};
use parking_lot::Mutex;
use socket2::{SockRef, Socket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What a server does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Answers.
    Say(u16, String),
    /// Says nothing until the other side goes.
    Hang,
    /// Begins a head that never ends, a byte at a time.
    TrickleHead,
    /// Begins a body that never ends, a byte at a time.
    TrickleBody,
    /// Goes away without a word.
    Close,
    /// Says what is no HTTP.
    Garbage,
    /// Promises more than it says.
    CutShort,
    /// Says more than anybody wants to know.
    Flood,
}

/// What a server has seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    requests: AtomicUsize,
    /// Connections without an answer so far, by their number.
    open: Mutex<HashMap<usize, Socket>>,
    most_open: AtomicUsize,
}

impl Seen {
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Connections that wait for an answer. One that the other side has closed does not, whether we have
    /// noticed or not.
    pub(crate) fn open(&self) -> usize {
        self.open.lock().values().filter(|socket| !closed(socket)).count()
    }

    pub(crate) fn most_open(&self) -> usize {
        self.most_open.load(Ordering::SeqCst)
    }

    fn came(&self, number: usize, socket: &TcpStream) {
        let socket = SockRef::from(socket).try_clone().unwrap();
        let mut open = self.open.lock();
        open.insert(number, socket);
        // Connections are looked at only when there could be more than ever: on a busy machine it takes long.
        if open.len() > self.most_open() {
            open.retain(|_, socket| !closed(socket));
            self.most_open.fetch_max(open.len(), Ordering::SeqCst);
        }
    }

    fn went(&self, number: usize) {
        self.open.lock().remove(&number);
    }
}

fn closed(socket: &Socket) -> bool {
    match socket.peek(&mut [MaybeUninit::uninit()]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// A server. Ends when it is dropped.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    task: JoinHandle<()>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Peer {
    /// A server that decides by the request: its first line and its body.
    pub(crate) async fn new(act: impl Fn(&str, &str) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let (watched, act) = (seen.clone(), Arc::new(act));
        let task = tokio::spawn(async move {
            for number in 0.. {
                let Ok((socket, _)) = listener.accept().await else { return };
                let (seen, act) = (watched.clone(), act.clone());
                seen.came(number, &socket);
                tokio::spawn(async move {
                    serve(socket, number, &seen, &*act).await;
                    seen.went(number);
                });
            }
        });
        Self { address, seen, task }
    }

    /// A server that does the same with every request.
    pub(crate) async fn always(act: Act) -> Self {
        Self::new(move |_, _| act.clone()).await
    }

    pub(crate) fn over_http(&self, kind: EngineKind) -> Backend {
        Backend {
            kind,
            http: Some(format!("http://{}", self.address)),
            grpc: None,
            version: None,
            authorization: None,
        }
    }

    pub(crate) fn over_grpc(&self, kind: EngineKind) -> Backend {
        over_grpc(kind, &format!("http://{}", self.address), None)
    }
}

pub(crate) fn over_grpc(kind: EngineKind, url: &str, ca: Option<Vec<u8>>) -> Backend {
    Backend {
        kind,
        http: None,
        grpc: Some(GrpcServer { url: url.to_owned(), ca }),
        version: None,
        authorization: None,
    }
}

async fn serve(
    mut socket: TcpStream,
    number: usize,
    seen: &Seen,
    act: &(dyn Fn(&str, &str) -> Act + Send + Sync),
) {
    let Some((head, body)) = read_request(&mut socket).await else { return };
    seen.requests.fetch_add(1, Ordering::SeqCst);
    let line = head.lines().next().unwrap_or_default();
    match act(line, &body) {
        Act::Say(status, body) => {
            // Before the answer is there: with it the other side may go on.
            seen.went(number);
            let length = body.len();
            let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n{body}");
            let _ = socket.write_all(answer.as_bytes()).await;
        }
        Act::Hang => until_gone(&mut socket).await,
        Act::TrickleHead => trickle(&mut socket, "HTTP/1.1 200 OK\r\nx: ").await,
        Act::TrickleBody => trickle(&mut socket, "HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n").await,
        Act::Close => {}
        Act::Garbage => {
            let _ = socket.write_all(&[0, 255, 13, 10].repeat(64)).await;
        }
        Act::CutShort => {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{").await;
        }
        Act::Flood => {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            while socket.write_all(&[b' '; 4096]).await.is_ok() {}
        }
    }
    let _ = socket.shutdown().await;
}

/// The head and the body of a request; whatever came, if it is none.
async fn read_request(socket: &mut TcpStream) -> Option<(String, String)> {
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).into_owned();
            let length = head.lines().filter_map(|line| line.split_once(": "));
            let length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            let length: usize = length.map(|(_, value)| value.parse::<usize>().unwrap()).sum();
            if read.len() >= end + 4 + length {
                return Some((head, String::from_utf8_lossy(&read[end + 4..]).into_owned()));
            }
        }
        if socket.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}

async fn until_gone(socket: &mut TcpStream) {
    let mut rest = [0; 1024];
    while matches!(socket.read(&mut rest).await, Ok(1..)) {}
}

async fn trickle(socket: &mut TcpStream, start: &str) {
    let _ = socket.write_all(start.as_bytes()).await;
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    while socket.write_all(b"a").await.is_ok() {
        ticks.tick().await;
    }
}
