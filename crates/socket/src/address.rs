//! Addresses: `tcp://host:port`, `ipc://path` and, on Linux, `ipc://@name`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::SocketAddr as UnixAddr;
use std::path::PathBuf;

use crate::error::EndpointCause;

/// Where a peer is, or where we listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// An address that needs no resolution.
    Ip(SocketAddr),
    /// A host by its name.
    Name {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
    /// A socket in the file system.
    Path(PathBuf),
    /// A socket in Linux's abstract namespace.
    Abstract(Vec<u8>),
}

impl Address {
    /// Reads an address to connect to.
    pub(crate) fn to_connect(text: &str) -> Result<Self, EndpointCause> {
        let address = Self::parse(text, None)?;
        match &address {
            Self::Ip(ip) if ip.port() == 0 => Err(EndpointCause::Invalid(NO_PORT)),
            Self::Name { port: 0, .. } => Err(EndpointCause::Invalid(NO_PORT)),
            _ => Ok(address),
        }
    }

    /// Reads an address to listen at: the host may be `*` for all of IPv4, the port 0 for one that the system
    /// chooses.
    pub(crate) fn to_bind(text: &str) -> Result<Self, EndpointCause> {
        Self::parse(text, Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)))
    }

    fn parse(text: &str, wildcard: Option<IpAddr>) -> Result<Self, EndpointCause> {
        let invalid = EndpointCause::Invalid;
        let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid(FORMS))?;
        match scheme {
            "tcp" => Self::parse_tcp(rest, wildcard),
            "ipc" => match rest.as_bytes() {
                [] | [b'*' | b'@'] => Err(invalid("expected ipc://path or ipc://@name")),
                bytes if bytes.contains(&0) => Err(invalid("the path has a NUL byte")),
                [b'@', name @ ..] => Ok(Self::Abstract(name.to_vec())),
                _ => Ok(Self::Path(PathBuf::from(rest))),
            },
            _ => Err(invalid(FORMS)),
        }
    }

    fn parse_tcp(rest: &str, wildcard: Option<IpAddr>) -> Result<Self, EndpointCause> {
        let invalid = EndpointCause::Invalid;
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| invalid(HOST_PORT))?;
        let port = match (port, wildcard) {
            // As libzmq has it: any port.
            ("*", Some(_)) => 0,
            (port, _) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                port.parse().map_err(|_| invalid(HOST_PORT))?
            }
            _ => return Err(invalid(HOST_PORT)),
        };
        let inner = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
            Some(Some(inner)) => {
                if let Ok(ip) = inner.parse::<Ipv6Addr>() {
                    return Ok(Self::Ip(SocketAddr::new(ip.into(), port)));
                }
                // With a zone: fe80::1%eth0.
                if !inner.contains('%') {
                    return Err(invalid(HOST_PORT));
                }
                inner
            }
            Some(None) => return Err(invalid(HOST_PORT)),
            None => host,
        };
        match (inner, wildcard) {
            ("", _) => Err(invalid(HOST_PORT)),
            ("*", Some(any)) => Ok(Self::Ip(SocketAddr::new(any, port))),
            (host, _) if host.contains(['*', ';', '/', ' ']) => Err(invalid(HOST_PORT)),
            (host, _) => Ok(host.parse::<IpAddr>().map_or_else(
                |_| Self::Name { host: host.to_owned(), port },
                |ip| Self::Ip(SocketAddr::new(ip, port)),
            )),
        }
    }

    /// The address of a socket that is not an IP one.
    pub(crate) fn unix(&self) -> io::Result<UnixAddr> {
        match self {
            Self::Path(path) => UnixAddr::from_pathname(path),
            #[cfg(target_os = "linux")]
            Self::Abstract(name) => {
                use std::os::linux::net::SocketAddrExt;
                UnixAddr::from_abstract_name(name)
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

const FORMS: &str = "expected tcp://host:port or ipc://path";
const HOST_PORT: &str = "expected tcp://host:port, with an IPv6 address in brackets";
const NO_PORT: &str = "there is no port 0 to connect to: give one from 1 to 65535";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_that_is_documented_is_read() {
        let ip = |text: &str| Address::Ip(text.parse().unwrap());
        let connect = |text| Address::to_connect(text).unwrap();
        assert_eq!(connect("tcp://127.0.0.1:5557"), ip("127.0.0.1:5557"));
        assert_eq!(connect("tcp://[::1]:5557"), ip("[::1]:5557"));
        let name = |host: &str| Address::Name { host: host.to_owned(), port: 5557 };
        assert_eq!(connect("tcp://vllm-0.vllm.svc:5557"), name("vllm-0.vllm.svc"));
        assert_eq!(connect("tcp://localhost:5557"), name("localhost"));
        assert_eq!(connect("tcp://[fe80::1%eth0]:5557"), name("fe80::1%eth0"));
        assert_eq!(connect("ipc:///tmp/x"), Address::Path("/tmp/x".into()));
        assert_eq!(connect("ipc://@x"), Address::Abstract(b"x".to_vec()));
        assert_eq!(Address::to_bind("tcp://*:5557").unwrap(), ip("0.0.0.0:5557"));
        assert_eq!(Address::to_bind("tcp://*:*").unwrap(), ip("0.0.0.0:0"));
        assert_eq!(Address::to_bind("tcp://[::]:0").unwrap(), ip("[::]:0"));
    }

    #[test]
    fn anything_else_is_rejected() {
        for bad in [
            "",
            "5557",
            "not an address",
            "inproc://x",
            "udp://a:1",
            "tcp://",
            "tcp://a",
            "tcp://:5",
            "tcp://a:x",
            "tcp://a:65536",
            "tcp://a:+1",
            "tcp://[::1:5",
            "tcp://[x]:5",
            "tcp://a;b:5",
            "ipc://",
            "ipc://*",
            "ipc://@",
            "ipc://a\0b",
        ] {
            assert!(Address::to_bind(bad).is_err(), "{bad:?}");
            assert!(Address::to_connect(bad).is_err(), "{bad:?}");
        }
        for bad in ["tcp://*:5557", "tcp://a:0", "tcp://127.0.0.1:0", "tcp://a:*"] {
            assert!(Address::to_connect(bad).is_err(), "{bad:?}");
        }
    }
}
