//! HTTP/1, and nothing else.
//!
//! The library behind our pages serves HTTP/2 to a client that begins with its preface. None of the bounds of
//! the gRPC listener holds there: such a client may have hundreds of requests on one connection, and a response
//! waits for ever for one that opens no window. So a connection that begins like that is told which protocol to
//! use, and closed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use kvplane_transport::edge::{Closed, Connections};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::plain::farewell;

/// What an HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// HTTP/2's code for a server that wants HTTP/1.1.
const HTTP_1_1_REQUIRED: u8 = 0xd;
const WORDS: &str = "this port speaks HTTP/1.1";
/// What is read of such a client, so that our answer is not lost with it: pieces, and bytes of each.
const DISCARDED: usize = 16;
const PIECE: usize = 4 << 10;

/// A server's socket on which HTTP/2 cannot begin.
#[derive(Debug)]
pub(super) struct Http1Only<S> {
    socket: S,
    connections: Arc<Connections>,
    /// How much of the preface came, for as long as nothing else did.
    matched: Option<usize>,
}

impl<S> Http1Only<S> {
    /// Who begins HTTP/2 is counted there.
    pub(super) fn new(socket: S, connections: Arc<Connections>) -> Self {
        Self { socket, connections, matched: Some(0) }
    }
}

/// How much of the preface there is with these bytes; `None` once there was something else.
fn matched(before: usize, bytes: &[u8]) -> Option<usize> {
    let wanted = &PREFACE[before..];
    let length = wanted.len().min(bytes.len());
    (wanted[..length] == bytes[..length]).then_some(before + length)
}

impl<S: AsyncRead + AsyncWrite + Unpin> Http1Only<S> {
    fn send_away(&mut self, context: &mut Context<'_>) -> io::Error {
        self.connections.count(Closed::Http2);
        let mut piece = [0; PIECE];
        for _ in 0..DISCARDED {
            let mut read = ReadBuf::new(&mut piece);
            let there_is_more = Pin::new(&mut self.socket).poll_read(context, &mut read);
            if !matches!(there_is_more, Poll::Ready(Ok(()))) || read.filled().is_empty() {
                break;
            }
        }
        // On a new connection there is room for it; the client may be gone.
        let _ = Pin::new(&mut self.socket).poll_write(context, &farewell(HTTP_1_1_REQUIRED, WORDS));
        let _ = Pin::new(&mut self.socket).poll_flush(context);
        io::Error::new(io::ErrorKind::Unsupported, "HTTP/2 is not served here")
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Http1Only<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, buffer))?;
        if let Some(so_far) = self.matched {
            self.matched = matched(so_far, &buffer.filled()[before..]);
            if self.matched == Some(PREFACE.len()) {
                return Poll::Ready(Err(self.send_away(context)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Http1Only<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
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
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preface_is_recognised_in_any_pieces() {
        for cut in 0..PREFACE.len() {
            let first = matched(0, &PREFACE[..cut]).unwrap();
            assert_eq!((first, matched(first, &PREFACE[cut..])), (cut, Some(PREFACE.len())));
        }
        assert_eq!(matched(0, &[PREFACE, b"more"].concat()), Some(PREFACE.len()));
        for other in [&b"GET / HTTP/1.1\r\n"[..], b"POST", b"PRI * HTTP/1.1"] {
            assert_eq!(matched(0, other), None);
        }
        assert_eq!(matched(3, b"* HTTP/2.0"), None);
    }
}
