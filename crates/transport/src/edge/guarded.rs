//! A socket that ends itself when its peer takes too long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{Admitted, Pulse};

/// A socket with the bounds of its connection.
#[derive(Debug)]
pub struct Guarded<S> {
    socket: S,
    timer: Pin<Box<Sleep>>,
    closing: Pin<Box<WaitForCancellationFutureOwned>>,
    place: Admitted,
}

impl<S> Guarded<S> {
    /// Puts a socket under the bounds of its place.
    pub fn new(socket: S, place: Admitted) -> Self {
        let closing = Box::pin(place.pulse().closing().clone().cancelled_owned());
        Self { socket, timer: Box::pin(sleep_until(Instant::now())), closing, place }
    }

    /// How the connection is doing.
    pub fn pulse(&self) -> &std::sync::Arc<Pulse> {
        self.place.pulse()
    }

    /// The peer has nothing for us now: that may last, or may have lasted too long.
    fn wait(&mut self, context: &mut Context<'_>) -> io::Result<()> {
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

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        match &read {
            Poll::Ready(_) => self.place.pulse().note_read(buffer.filled().len() - before),
            Poll::Pending => self.wait(context)?,
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
