//! A connected byte stream, whatever carries it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::net::SocketAddr as UnixAddr;
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use socket2::{SockRef, TcpKeepalive};

/// Silence after which the kernel probes a TCP connection, how often, and how many probes may go unanswered:
/// an idle peer that died without a word is gone after a minute. A subscription's own PINGs notice it much
/// earlier; this is for connections that wait for their handshake, and for the publishing side, which sends
/// no PINGs.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// One end of a connection; never blocks.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Begins to connect to an IP address.
    pub(crate) fn connect_tcp(address: SocketAddr) -> io::Result<Self> {
        Ok(Self::Tcp(TcpStream::connect(address)?))
    }

    /// Connects to a UNIX address, which succeeds or fails at once.
    pub(crate) fn connect_unix(address: &UnixAddr) -> io::Result<Self> {
        Ok(Self::Unix(UnixStream::connect_addr(address)?))
    }

    /// Whether it is connected by now; an error when it will never be.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        match self {
            Self::Tcp(stream) => {
                if let Some(error) = stream.take_error()? {
                    return Err(error);
                }
                match stream.peer_addr() {
                    // Where nobody listens at a local port, the system may choose it for our end too.
                    Ok(peer) if stream.local_addr().is_ok_and(|own| own == peer) => {
                        Err(io::ErrorKind::ConnectionRefused.into())
                    }
                    Ok(_) => Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
                    Err(error) => Err(error),
                }
            }
            Self::Unix(_) => Ok(true),
        }
    }

    /// The host at the other end: an IPv4 address, or the /64 of an IPv6 address, which is what one host is
    /// given. `None` for a UNIX socket, and for a peer that has gone.
    pub(crate) fn host(&self) -> Option<IpAddr> {
        let Self::Tcp(stream) = self else { return None };
        Some(match stream.peer_addr().ok()?.ip().to_canonical() {
            IpAddr::V6(six) => Ipv6Addr::from_bits(six.to_bits() & (u128::MAX << 64)).into(),
            four @ IpAddr::V4(_) => four,
        })
    }

    /// Sets the options of a connection that is there.
    pub(crate) fn configure(&self) {
        if let Self::Tcp(stream) = self {
            let keepalive = TcpKeepalive::new()
                .with_time(KEEPALIVE)
                .with_interval(KEEPALIVE_INTERVAL)
                .with_retries(KEEPALIVE_PROBES);
            let set = || {
                stream.set_nodelay(true)?;
                SockRef::from(stream).set_tcp_keepalive(&keepalive)
            };
            if let Err(error) = set() {
                tracing::debug!(%error, "cannot set socket options");
            }
        }
    }

    /// Watches for every change; edge-triggered.
    pub(crate) fn register(&mut self, registry: &Registry, token: usize) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Self::Tcp(stream) => stream.register(registry, Token(token), interest),
            Self::Unix(stream) => stream.register(registry, Token(token), interest),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
