//! Subscribers and askers made by hand: exact bytes, and what libzmq would never do.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use super::PATIENCE;
use super::peer::{frame, greeting};

pub const SUB_READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
pub const XPUB_READY: &[u8] = b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04XPUB";
pub const ROUTER_READY: &[u8] = b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0";

/// A READY of a DEALER with this identity.
pub fn dealer_ready(identity: &[u8]) -> Vec<u8> {
    let length = (identity.len() as u32).to_be_bytes();
    let body = [&b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity"[..], &length, identity].concat();
    frame(4, &body)
}

pub fn subscribe(topic: &[u8]) -> Vec<u8> {
    frame(4, &[b"\x09SUBSCRIBE", topic].concat())
}

pub fn cancel(topic: &[u8]) -> Vec<u8> {
    frame(4, &[b"\x06CANCEL", topic].concat())
}

pub fn ping(ttl: u16, context: &[u8]) -> Vec<u8> {
    frame(4, &[b"\x04PING", &ttl.to_be_bytes()[..], context].concat())
}

pub fn pong(context: &[u8]) -> Vec<u8> {
    frame(4, &[b"\x04PONG", context].concat())
}

/// What a DEALER sends to ask for everything from `start` on.
pub fn request(start: u64) -> Vec<u8> {
    [frame(1, b""), frame(0, &start.to_be_bytes())].concat()
}

/// A message as it is on the wire.
pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    let last = frames.len() - 1;
    let each = frames.iter().enumerate().map(|(index, body)| frame(u8::from(index < last), body));
    each.collect::<Vec<_>>().concat()
}

/// One end of a connection.
pub struct Raw(pub TcpStream);

impl Raw {
    /// Connects, and says nothing.
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    /// Connects and completes the handshake of a SUB.
    pub fn subscriber(address: &str) -> Self {
        let mut raw = Self::connect(address);
        raw.send(&[&greeting()[..], SUB_READY].concat());
        raw.expect(&[&greeting()[..], XPUB_READY].concat());
        raw
    }

    /// Connects and completes the handshake of a DEALER.
    pub fn dealer(address: &str, identity: &[u8]) -> Self {
        let mut raw = Self::connect(address);
        raw.send(&[&greeting()[..], &dealer_ready(identity)].concat());
        raw.expect(&[&greeting()[..], ROUTER_READY].concat());
        raw
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Reads exactly these bytes.
    #[track_caller]
    pub fn expect(&mut self, bytes: &[u8]) {
        let mut read = vec![0; bytes.len()];
        self.0.read_exact(&mut read).unwrap();
        assert!(read == bytes, "read {:?}\nexpected {:?}", shown(&read), shown(bytes));
    }

    /// The next frame: its flags without the length's, and its body.
    pub fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut flags = [0; 1];
        self.0.read_exact(&mut flags).unwrap();
        let length = if flags[0] & 2 == 0 {
            let mut length = [0; 1];
            self.0.read_exact(&mut length).unwrap();
            u64::from(length[0])
        } else {
            let mut length = [0; 8];
            self.0.read_exact(&mut length).unwrap();
            u64::from_be_bytes(length)
        };
        let mut body = vec![0; length as usize];
        self.0.read_exact(&mut body).unwrap();
        (flags[0] & !2, body)
    }

    /// A PING and its PONG: all that was sent before has been handled. What came before the PONG, as frames.
    pub fn sync(&mut self) -> Vec<(u8, Vec<u8>)> {
        self.send(&ping(0, b"sync"));
        let mut before = Vec::new();
        loop {
            match self.frame() {
                (4, body) if body == b"\x04PONGsync" => return before,
                frame => before.push(frame),
            }
        }
    }

    /// Reads until the other side hangs up; what came before.
    pub fn closed(&mut self) -> Vec<u8> {
        let mut read = Vec::new();
        match self.0.read_to_end(&mut read) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("not closed: {error}"),
            _ => read,
        }
    }
}

fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(300)].escape_ascii().to_string()
}
