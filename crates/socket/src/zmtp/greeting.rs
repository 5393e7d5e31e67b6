//! The first 64 bytes of each direction.
//!
//! ```text
//! 0..10    signature   ff, eight bytes of padding, 7f
//! 10..12   version     major, minor
//! 12..32   mechanism   ASCII, padded with zeros
//! 32       as-server   0: only some mechanisms have servers
//! 33..64   filler      zeros
//! ```

use super::{ProtocolError, printable};

/// Length of a greeting.
pub(crate) const LENGTH: usize = 64;

const SIGNATURE_END: usize = 9;
const MAJOR: usize = 10;
const MINOR: usize = 11;
const MECHANISM: std::ops::Range<usize> = 12..32;

/// The version that we speak.
const VERSION: [u8; 2] = [3, 1];

/// Our greeting. The padding ends in 1, as libzmq's: a ZMTP 1.0 peer then reads it as a frame of one byte.
pub(crate) fn ours(mechanism: &[u8]) -> [u8; LENGTH] {
    let mut greeting = [0; LENGTH];
    greeting[0] = 0xff;
    greeting[SIGNATURE_END - 1] = 1;
    greeting[SIGNATURE_END] = 0x7f;
    greeting[MAJOR..=MINOR].copy_from_slice(&VERSION);
    let name = &mut greeting[MECHANISM];
    let length = mechanism.len().min(name.len());
    name[..length].copy_from_slice(&mechanism[..length]);
    greeting
}

/// The peer's greeting, byte by byte.
#[derive(Debug)]
pub(crate) struct Greeting {
    bytes: [u8; LENGTH],
    have: usize,
}

/// What a peer said about itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Greeted {
    /// Minor version; of majors above 3 it counts as one that has everything.
    pub(crate) minor: u8,
    mechanism: [u8; 20],
}

impl Greeting {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; LENGTH], have: 0 }
    }

    /// Takes what belongs to the greeting; the greeting when it is complete. A peer that speaks something
    /// else is rejected at its first wrong byte: it may never send 64.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Result<(usize, Option<Greeted>), ProtocolError> {
        let taken = input.len().min(LENGTH - self.have);
        self.bytes[self.have..self.have + taken].copy_from_slice(&input[..taken]);
        self.have += taken;
        self.check()?;
        Ok((taken, (self.have == LENGTH).then(|| self.read())))
    }

    fn check(&self) -> Result<(), ProtocolError> {
        let known = &self.bytes[..self.have];
        let wrong = |at: usize, right: fn(u8) -> bool| known.get(at).is_some_and(|&byte| !right(byte));
        if wrong(0, |byte| byte == 0xff) || wrong(SIGNATURE_END, |byte| byte & 1 == 1) {
            return Err(ProtocolError::Signature);
        }
        match known.get(MAJOR) {
            Some(&major) if major < VERSION[0] => Err(ProtocolError::Version(major)),
            _ => Ok(()),
        }
    }

    fn read(&self) -> Greeted {
        let mut mechanism = [0; 20];
        mechanism.copy_from_slice(&self.bytes[MECHANISM]);
        let newer = self.bytes[MAJOR] > VERSION[0];
        Greeted { minor: if newer { u8::MAX } else { self.bytes[MINOR] }, mechanism }
    }
}

impl Greeted {
    /// Both sides must name the same mechanism.
    pub(crate) fn expect_mechanism(&self, wanted: &[u8]) -> Result<(), ProtocolError> {
        let length = self.mechanism.iter().position(|&byte| byte == 0).unwrap_or(self.mechanism.len());
        let (name, padding) = self.mechanism.split_at(length);
        if name == wanted && padding.iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        Err(ProtocolError::Mechanism(printable(name)))
    }
}
