//! What an HTTP/2 peer takes of the data that it is given.
//!
//! A peer that never opens its window takes no data, and is alive by its pings. What is written to it are
//! frames, of which those with data are what its window lets through.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Pulse;

/// The length, kind, flags and stream of a frame.
const HEADER: usize = 9;
const DATA: u8 = 0;

/// The server's end of an HTTP/2 connection, which notes when the peer takes data.
#[derive(Debug)]
pub struct Metered<S> {
    socket: S,
    pulse: Arc<Pulse>,
    frames: Frames,
}

impl<S> Metered<S> {
    /// Notes what is taken over a socket, from its first frame on.
    pub fn new(socket: S, pulse: Arc<Pulse>) -> Self {
        Self { socket, pulse, frames: Frames::default() }
    }

    fn written<'b>(&mut self, slices: impl Iterator<Item = &'b [u8]>, written: &Poll<io::Result<usize>>) {
        let &Poll::Ready(Ok(mut left)) = written else { return };
        let mut data = false;
        for slice in slices {
            let part = &slice[..slice.len().min(left)];
            data |= self.frames.follow(part);
            left -= part.len();
        }
        if data {
            self.pulse.note_data_taken();
        }
    }
}

/// Where in a sequence of frames we are.
#[derive(Debug, Default)]
pub(super) struct Frames {
    header: [u8; HEADER],
    /// Bytes of the header that are known.
    have: usize,
    /// Bytes of the frame that are to come.
    left: usize,
    is_data: bool,
}

impl Frames {
    /// Goes on; whether there was data.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> bool {
        let mut data = false;
        while !bytes.is_empty() {
            if self.left > 0 {
                let part = self.left.min(bytes.len());
                data |= self.is_data;
                self.left -= part;
                bytes = &bytes[part..];
                continue;
            }
            let part = (HEADER - self.have).min(bytes.len());
            self.header[self.have..self.have + part].copy_from_slice(&bytes[..part]);
            self.have += part;
            bytes = &bytes[part..];
            if self.have == HEADER {
                let [high, middle, low, kind, ..] = self.header;
                self.have = 0;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.is_data = kind == DATA;
            }
        }
        data
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.written(std::iter::once(bytes), &written);
        written
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
        self.written(slices.iter().map(|slice| &**slice), &written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}
