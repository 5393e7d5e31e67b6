//! A publisher made by hand, for what libzmq would never do.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::PATIENCE;

const GREETING: usize = 64;

/// The greeting of libzmq 4.3.
pub fn greeting() -> [u8; GREETING] {
    let mut greeting = [0; GREETING];
    (greeting[0], greeting[8], greeting[9], greeting[10], greeting[11]) = (0xff, 1, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

pub const PUB_READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";

/// One frame.
pub fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    match u8::try_from(body.len()) {
        Ok(length) => [&[flags, length][..], body].concat(),
        Err(_) => [&[flags | 2][..], &(body.len() as u64).to_be_bytes(), body].concat(),
    }
}

/// One batch.
pub fn batch(sequence: u64, payload: &[u8]) -> Vec<u8> {
    [frame(1, b"kv"), frame(1, &sequence.to_be_bytes()), frame(0, payload)].concat()
}

/// A server whose next connection is a publisher's.
pub struct Server(pub TcpListener);

impl Server {
    pub fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    pub fn address(&self) -> String {
        format!("tcp://{}", self.0.local_addr().unwrap())
    }

    /// The next connection, before its handshake.
    pub fn accept(&self) -> TcpStream {
        let (stream, _) = self.0.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// The next connection, after its handshake.
    pub fn publisher(&self) -> Publisher {
        let mut publisher = Publisher(self.accept());
        publisher.0.write_all(&[&greeting()[..], PUB_READY].concat()).unwrap();
        publisher.0.read_exact(&mut [0; GREETING]).unwrap();
        publisher.command_named(b"READY");
        publisher.command_named(b"SUBSCRIBE");
        publisher
    }
}

/// The publisher's end of a connection.
pub struct Publisher(pub TcpStream);

impl Publisher {
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// The body of the next command; anything else is a mistake.
    pub fn command(&mut self) -> Vec<u8> {
        let mut header = [0; 2];
        self.0.read_exact(&mut header).unwrap();
        assert_eq!(header[0], 4, "a short command");
        let mut body = vec![0; usize::from(header[1])];
        self.0.read_exact(&mut body).unwrap();
        body
    }

    /// The data of the next command, which has this name.
    pub fn command_named(&mut self, name: &[u8]) -> Vec<u8> {
        let body = self.command();
        let (found, data) = body[1..].split_at(usize::from(body[0]));
        assert_eq!(found, name, "{:?}", String::from_utf8_lossy(&body));
        data.to_vec()
    }

    /// Waits for a PING, and answers it.
    pub fn answer_ping(&mut self) {
        let ping = self.command_named(b"PING");
        self.send(&frame(4, &[b"\x04PONG", &ping[2..]].concat()));
    }
}
