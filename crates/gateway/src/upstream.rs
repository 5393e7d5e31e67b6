//! Connections to engines: HTTP/1.1, kept for a moment after use.
//!
//! A connection has no task of its own: the reader of the answer drives it. That saves a wake-up for every
//! event, and an answer that is dropped takes its connection with it, so that the engine sees at once that
//! nobody waits any more.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::retry::Failure;
use crate::splice::Pieces;

/// How long a connection is kept without a request: uvicorn closes its side after 5 s.
const IDLE: Duration = Duration::from_secs(4);
/// Connections that are kept for one engine.
const KEPT: usize = 512;
/// What is read ahead of an answer.
const READ: usize = 64 << 10;

/// A request's body on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pieces: std::vec::IntoIter<Bytes>,
    left: u64,
}

impl From<Pieces> for Outgoing {
    fn from(pieces: Pieces) -> Self {
        let left = pieces.len() as u64;
        Self { pieces: pieces.into_inner().into_iter(), left }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let piece = self.pieces.next();
        self.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// A connection, with what drives it.
pub(crate) struct Conn {
    sender: http1::SendRequest<Outgoing>,
    driver: Pin<Box<http1::Connection<TokioIo<TcpStream>, Outgoing>>>,
    /// It is over, and must not be driven on.
    done: bool,
    reused: bool,
}

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conn").field("done", &self.done).field("reused", &self.reused).finish_non_exhaustive()
    }
}

impl Conn {
    async fn open(address: SocketAddr, within: Duration) -> Result<Self, Failure> {
        let socket = timeout(within, TcpStream::connect(address)).await.map_err(|_| Failure::Connect)?;
        let socket = socket.map_err(|_| Failure::Connect)?;
        let _ = socket.set_nodelay(true);
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(READ)
            .handshake(TokioIo::new(socket))
            .await
            .map_err(|_| Failure::Connect)?;
        Ok(Self { sender, driver: Box::pin(driver), done: false, reused: false })
    }

    /// Does what there is to do on the connection.
    pub(crate) fn drive(&mut self, context: &mut Context<'_>) {
        if !self.done {
            self.done = self.driver.as_mut().poll(context).is_ready();
        }
    }

    /// Whether it takes another request now.
    fn is_free(&mut self, context: &mut Context<'_>) -> bool {
        self.drive(context);
        !self.done && self.sender.is_ready()
    }

    /// Sends a request, and waits for the head of its answer.
    pub(crate) async fn send(
        mut self,
        request: Request<Outgoing>,
    ) -> Result<(Response<Incoming>, Self), Failure> {
        let answer = {
            let mut sent = pin!(self.sender.try_send_request(request));
            let (driver, done) = (&mut self.driver, &mut self.done);
            poll_fn(|context| {
                let over = *done;
                if !over {
                    *done = driver.as_mut().poll(context).is_ready();
                }
                match sent.as_mut().poll(context) {
                    Poll::Ready(answer) => Poll::Ready(Some(answer)),
                    // The connection ended, and nobody is left to say so.
                    Poll::Pending if over => Poll::Ready(None),
                    Poll::Pending if *done => {
                        context.waker().wake_by_ref();
                        Poll::Pending
                    }
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        };
        match answer {
            Some(Ok(answer)) => Ok((answer, self)),
            _ if self.reused => Err(Failure::Stale),
            _ => Err(Failure::Died),
        }
    }
}

/// Connections to one engine that nobody uses.
#[derive(Debug)]
pub(crate) struct Connections {
    address: SocketAddr,
    idle: Mutex<Vec<(Conn, Instant)>>,
}

impl Connections {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, idle: Mutex::default() }
    }

    /// One that is there already, or a new one. `fresh`: only a new one.
    pub(crate) async fn get(&self, fresh: bool, within: Duration) -> Result<Conn, Failure> {
        if !fresh {
            let now = kvplane_runtime::now();
            while let Some(mut conn) = self.kept(now) {
                if poll_fn(|context| Poll::Ready(conn.is_free(context))).await {
                    conn.reused = true;
                    return Ok(conn);
                }
            }
        }
        Conn::open(self.address, within).await
    }

    /// The one that was used last. Those that waited too long are closed.
    fn kept(&self, now: Instant) -> Option<Conn> {
        let mut idle = self.idle.lock();
        let (conn, since) = idle.pop()?;
        if now.duration_since(since) < IDLE {
            return Some(conn);
        }
        // Those below it were used even earlier.
        let old = std::mem::take(&mut *idle);
        drop(idle);
        drop(old);
        None
    }

    /// Keeps a connection whose answer is complete.
    pub(crate) fn put(&self, mut conn: Conn, context: &mut Context<'_>) {
        if !conn.is_free(context) {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push((conn, kvplane_runtime::now()));
        }
    }

    /// Closes what nobody used for too long.
    pub(crate) fn tidy(&self) {
        let now = kvplane_runtime::now();
        let mut idle = self.idle.lock();
        let old = idle.iter().take_while(|(_, since)| now.duration_since(*since) >= IDLE).count();
        let old: Vec<_> = idle.drain(..old).collect();
        drop(idle);
        drop(old);
    }
}
