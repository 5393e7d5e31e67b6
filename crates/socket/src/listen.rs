//! Listening for peers that connect.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use mio::event::Source;
use mio::net::{TcpListener, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, Socket, Type};

use crate::address::Address;
use crate::error::EndpointCause;
use crate::stream::Stream;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// A bound socket. Closing one in the file system removes its path.
pub(crate) struct Listener {
    kind: Kind,
    address: String,
}

enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener, Option<PathBuf>),
}

impl Listener {
    /// Binds and listens.
    pub(crate) fn bind(configured: &str) -> Result<Self, EndpointCause> {
        let address = Address::to_bind(configured)?;
        let kind = match &address {
            Address::Ip(ip) => Kind::Tcp(bind_tcp(*ip)?),
            Address::Name { host, port } => Kind::Tcp(bind_name(host, *port)?),
            Address::Path(path) => {
                let listener = bind_path(&address, path)?;
                Kind::Unix(listener, Some(path.clone()))
            }
            Address::Abstract(_) => Kind::Unix(UnixListener::bind_addr(&address.unix()?)?, None),
        };
        let address = match &kind {
            Kind::Tcp(listener) => format!("tcp://{}", listener.local_addr()?),
            Kind::Unix(..) => configured.to_owned(),
        };
        Ok(Self { kind, address })
    }

    /// The address in use, with the port that the system chose.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Watches for connections; edge-triggered.
    pub(crate) fn register(&mut self, registry: &Registry, token: usize) -> io::Result<()> {
        match &mut self.kind {
            Kind::Tcp(listener) => listener.register(registry, Token(token), Interest::READABLE),
            Kind::Unix(listener, _) => listener.register(registry, Token(token), Interest::READABLE),
        }
    }

    /// The next connection; `None` when there is none now.
    pub(crate) fn accept(&self) -> io::Result<Option<Stream>> {
        let accepted = match &self.kind {
            Kind::Tcp(listener) => listener.accept().map(|(stream, _)| Stream::Tcp(stream)),
            Kind::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        };
        match accepted {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Kind::Unix(_, Some(path)) = &self.kind {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // [::] is for both protocols, as with libzmq.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(StdTcpListener::from(socket)))
}

/// A name is bound at its first address that is this machine's. This waits for the lookup: it is done on the
/// caller's thread.
fn bind_name(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut found: Vec<_> = (host, port).to_socket_addrs()?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in found {
        match bind_tcp(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// A path that a dead process left is taken over; one where somebody listens is not.
fn bind_path(address: &Address, path: &Path) -> io::Result<UnixListener> {
    let unix = address.unix()?;
    match UnixListener::bind_addr(&unix) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
            let refuses = UnixStream::connect_addr(&unix)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
            if !(is_socket && refuses) {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            UnixListener::bind_addr(&unix)
        }
        bound => bound,
    }
}
