//! A socket that ends itself when its peer takes too long.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{Admitted, Pulse};

/// What a connection may read in one turn of its task. A reader of a body takes what is there for as long as
/// there is more: without this bound, peers that send all the time keep the runtime's threads from everyone
/// else.
const TURN: usize = 64 << 10;

/// A socket with the bounds of its connection.
#[derive(Debug)]
pub struct Guarded<S> {
    socket: S,
    timer: Pin<Box<Sleep>>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    place: Admitted,
    /// Read in this turn.
    taken: usize,
}

impl<S> Guarded<S> {
    /// Puts a socket under the bounds of its place.
    pub fn new(socket: S, place: Admitted) -> Self {
        let closing = Box::pin(place.pulse().closing().clone().cancelled_owned());
        Self { socket, timer: Box::pin(sleep_until(Instant::now())), closing, place, taken: 0 }
    }

    /// How the connection is doing.
    pub fn pulse(&self) -> &std::sync::Arc<Pulse> {
        self.place.pulse()
    }

    /// The peer has nothing for us now: that may last, or may have lasted too long.
    fn wait(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.place.pulse().note_waiting();
        if self.closing.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        loop {
            let at = self.place.pulse().check().map_err(|reason| {
                self.place.count(reason);
                io::Error::new(io::ErrorKind::TimedOut, reason.as_str())
            })?;
            // Later is looked at when the timer ends.
            if at < self.timer.deadline() || self.timer.is_elapsed() {
                self.timer.as_mut().reset(at);
            }
            if self.timer.as_mut().poll(context).is_pending() {
                return Ok(());
            }
        }
    }
}

impl Guarded<TcpStream> {
    /// Waits for the peer's first byte, within the bounds. A connection on which nothing is said costs a
    /// socket and a place, and its protocol is not set up.
    pub async fn first_byte(&mut self) -> io::Result<()> {
        let mut byte = [0];
        poll_fn(|context| match self.socket.poll_peek(context, &mut ReadBuf::new(&mut byte)) {
            Poll::Pending => {
                self.wait(context).map_or_else(|error| Poll::Ready(Err(error)), |()| Poll::Pending)
            }
            // None if the peer is gone: that is for the protocol to find.
            Poll::Ready(peeked) => Poll::Ready(peeked.map(|_bytes| ())),
        })
        .await
    }
}

impl<S: AsyncRead + Unpin> Guarded<S> {
    /// Reads what is left of the turn at most.
    fn read_part(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = TURN - self.taken;
        if buffer.remaining() <= room {
            return Pin::new(&mut self.socket).poll_read(context, buffer);
        }
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(room));
        let read = Pin::new(&mut self.socket).poll_read(context, &mut part);
        let bytes = part.filled().len();
        buffer.advance(bytes);
        read
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.taken >= TURN {
            self.taken = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = self.read_part(context, buffer);
        match &read {
            Poll::Ready(_) => {
                let bytes = buffer.filled().len() - before;
                self.taken += bytes;
                self.place.pulse().note_read(bytes);
            }
            Poll::Pending => {
                self.taken = 0;
                self.wait(context)?;
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> Guarded<S> {
    fn written<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_pending() {
            self.place.pulse().note_stalled();
            self.wait(context)?;
        } else {
            self.place.pulse().note_written();
        }
        written
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
