//! The invariants of the codec that property tests and the fuzz target share.
#![allow(clippy::expect_used, reason = "a check fails by panicking")]

use super::frame::MAX_COMMAND_BYTES;
use super::session::{Event, Session};
use super::{ProtocolError, greeting};

/// Small, so that a fuzzer finds it.
const MAX_MESSAGE_BYTES: usize = 100_000;

/// What a session said about some bytes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    events: Vec<(Event, Vec<Vec<u8>>, usize)>,
    error: Option<ProtocolError>,
    out: Vec<u8>,
}

/// Any bytes, in any pieces, are events or one error; the pieces make no difference, and memory follows what
/// came. The first byte chooses a beginning, the second the pieces.
pub fn zmtp_session(bytes: &[u8]) {
    let [mode, pieces, bytes @ ..] = bytes else { return };
    let mut input = Vec::new();
    if mode & 1 == 1 {
        input.extend_from_slice(&greeting::ours(b"NULL"));
        // Who may be at the other end.
        let kind: &[u8] = match mode & 6 {
            0 => b"\x03PUB",
            2 => b"\x06ROUTER",
            4 => b"\x03SUB",
            _ => b"\x06DEALER",
        };
        input.extend_from_slice(&[4, 21 + kind.len() as u8]);
        input.extend_from_slice(b"\x05READY\x0bSocket-Type\0\0\0");
        input.extend_from_slice(kind);
    }
    input.extend_from_slice(bytes);
    let open = || match mode & 6 {
        0 => Session::subscriber(vec![b"kv".to_vec()], MAX_MESSAGE_BYTES),
        2 => Session::dealer(MAX_MESSAGE_BYTES),
        4 => Session::publisher(),
        _ => Session::router(),
    };
    let whole = run(open(), &input, input.len().max(1), false);
    assert_eq!(whole, run(open(), &input, 1, false));
    assert_eq!(whole, run(open(), &input, usize::from(*pieces).max(1) * 7, true));
}

fn run(mut session: Session, mut input: &[u8], piece: usize, direct: bool) -> Heard {
    let mut heard = Heard::default();
    let mut fed = 0;
    while !input.is_empty() && heard.error.is_none() {
        let most = piece.min(input.len());
        let space = if direct { session.space() } else { None };
        let result = if let Some(space) = space {
            let count = most.min(space.len());
            space[..count].copy_from_slice(&input[..count]);
            session.filled(count).map(|event| (count, event))
        } else {
            session.feed(&input[..most])
        };
        match result {
            Ok((count, event)) => {
                assert!(count > 0, "no progress");
                input = &input[count..];
                fed += count;
                if let Some(Event::Subscribe(carrier) | Event::Cancel(carrier)) = event {
                    let topic = session.topic(carrier).to_vec();
                    heard.events.extend(event.map(|event| (event, vec![topic], 0)));
                } else if let Some(event) = event {
                    let message = session.message();
                    let (kept, count) = (message.count().min(super::frame::MAX_FRAMES), message.count());
                    let frames = (0..kept).map(|index| message.frame(index).to_vec()).collect();
                    if event == Event::Message {
                        heard.events.push((event, frames, count));
                        message.clear();
                    } else {
                        heard.events.push((event, Vec::new(), 0));
                    }
                }
            }
            Err(error) => heard.error = Some(error),
        }
        let bound =
            2 * fed.min(MAX_MESSAGE_BYTES) + (64 << 10) + 2 * MAX_COMMAND_BYTES + session.out().len() * 2;
        assert!(session.memory() <= bound + 1024, "{} bytes of memory for {fed}", session.memory());
    }
    heard.out = session.out().to_vec();
    heard
}
