//! Who is at an address: the first bytes of a ZMTP conversation, and no more.
//!
//! ```text
//! both send   ff 00 00 00 00 00 00 00 01 7f   signature
//!             03 00  "NULL" 00 x 16  00  00 x 31   version, mechanism, role, filler: 64 bytes in all
//! then each   04 size 05 "READY" (name-length name value-length(4) value)*   "Socket-Type" is among the names
//! ```
//!
//! The other side names its type before it hears ours. We leave at that point, so that we never are a
//! subscriber.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use crate::seen::Peer;

const GREETING: usize = 64;
/// `ENFILE` and `EMFILE`: the system, or this process, has as many files open as it may.
const NO_DESCRIPTORS: [i32; 2] = [23, 24];
const MECHANISM: std::ops::Range<usize> = 12..32;

/// Who is at `tcp://host:port` or `ipc://path`.
pub async fn greet(address: &str, within: Duration) -> Peer {
    let talk = async {
        if let Some(path) = address.strip_prefix("ipc://") {
            return match UnixStream::connect(path).await {
                Ok(stream) => introduce(stream).await,
                Err(error) => nobody(&error),
            };
        }
        let place = address.split_once("://").map_or(address, |(_, place)| place);
        match tokio::time::timeout(within, TcpStream::connect(place)).await {
            Ok(Ok(stream)) => introduce(stream).await,
            Ok(Err(error)) => nobody(&error),
            Err(_) => Peer::Unreachable("no connection in time".to_owned()),
        }
    };
    // Once for the connection and once for what is said over it.
    tokio::time::timeout(within * 2, talk).await.unwrap_or(Peer::Mute)
}

fn nobody(error: &io::Error) -> Peer {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Peer::Refused,
        _ if error.raw_os_error().is_some_and(|number| NO_DESCRIPTORS.contains(&number)) => {
            Peer::NoDescriptors
        }
        _ => Peer::Unreachable(error.to_string()),
    }
}

async fn introduce(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Peer {
    let ours = our_greeting();
    let mut greeting = [0_u8; GREETING];
    // The rest waits until the other side has named its mechanism: one that wants another leaves when it
    // hears ours.
    let (version, rest) = ours.split_at(MECHANISM.start);
    if stream.write_all(version).await.is_err() {
        return Peer::Other;
    }
    let mut have = 0;
    while have < GREETING {
        match stream.read(&mut greeting[have..]).await {
            Ok(0) | Err(_) => return unlike(&greeting[..have]),
            Ok(count) => have += count,
        }
        if greeting[0] != 0xff {
            return unlike(&greeting[..have]);
        }
    }
    let mechanism = text(&greeting[MECHANISM]);
    if mechanism != "NULL" {
        return Peer::Secured(mechanism);
    }
    if stream.write_all(rest).await.is_err() {
        return Peer::Other;
    }
    match ready(&mut stream).await {
        Some(socket) => Peer::Zmtp { socket },
        None => Peer::Other,
    }
}

fn our_greeting() -> [u8; GREETING] {
    let mut greeting = [0; GREETING];
    greeting[0] = 0xff;
    greeting[8] = 1;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[MECHANISM.start..MECHANISM.start + 4].copy_from_slice(b"NULL");
    greeting
}

/// Somebody who did not greet as `ZeroMQ` does.
fn unlike(said: &[u8]) -> Peer {
    if said.starts_with(b"HTTP/") { Peer::Http } else { Peer::Other }
}

/// The socket type of a READY command. It has a handful of short properties, so its size is one byte.
async fn ready(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    const COMMAND: u8 = 0x04;
    let (flags, size) = (stream.read_u8().await.ok()?, stream.read_u8().await.ok()?);
    if flags != COMMAND {
        return None;
    }
    let mut command = vec![0; usize::from(size)];
    stream.read_exact(&mut command).await.ok()?;
    socket_type(command.strip_prefix(b"\x05READY")?)
}

fn socket_type(mut properties: &[u8]) -> Option<String> {
    loop {
        let (name_length, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*name_length))?;
        let (value_length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) =
            rest.split_at_checked(usize::try_from(u32::from_be_bytes(*value_length)).ok()?)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(text(value));
        }
        properties = rest;
    }
}

/// Letters and digits up to the first other byte: whatever was sent, it can be printed.
fn text(bytes: &[u8]) -> String {
    bytes
        .iter()
        .take(20)
        .take_while(|byte| byte.is_ascii_alphanumeric())
        .map(|byte| char::from(*byte))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_is_found_among_other_properties() {
        let identity = b"\x08Identity\0\0\0\0".to_vec();
        let kind = b"\x0bSocket-Type\0\0\0\x06ROUTER".to_vec();
        assert_eq!(socket_type(&[identity.clone(), kind.clone()].concat()).as_deref(), Some("ROUTER"));
        assert_eq!(socket_type(&[kind, identity.clone()].concat()).as_deref(), Some("ROUTER"));
        assert_eq!(socket_type(&identity), None);
        assert_eq!(socket_type(b"\x0bSocket-Type\xff\xff\xff\xffPUB"), None);
        assert_eq!(socket_type(b""), None);
    }
}
