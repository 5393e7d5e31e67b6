use proptest::prelude::*;

use super::command::PingContext;
use super::frame::{MAX_FRAMES_COUNTED, put_command, put_message};
use super::session::{Event, Session};
use super::{ProtocolError, checks, greeting};

const LIMIT: usize = 1 << 20;

/// What libzmq 4.3 sends when a PUB meets a subscriber.
const LIBZMQ_GREETING: &[u8; 64] =
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const PUB_READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";
const ROUTER_READY: &[u8] = b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0";

/// An event, with the frames of a message.
type Fed = (Event, Vec<Vec<u8>>);

/// Feeds everything; the events, with the frames of messages.
fn feed(session: &mut Session, mut input: &[u8]) -> Result<Vec<Fed>, ProtocolError> {
    let mut events = Vec::new();
    while !input.is_empty() {
        let (taken, event) = session.feed(input)?;
        input = &input[taken..];
        if let Some(event) = event {
            let frames = match event {
                Event::Message => session.message().frames().unwrap_or_default().to_vec(),
                _ => Vec::new(),
            };
            events.push((event, frames));
        }
    }
    Ok(events)
}

fn established() -> Session {
    let mut session = Session::subscriber(vec![b"kv".to_vec()], LIMIT);
    feed(&mut session, &[&LIBZMQ_GREETING[..], PUB_READY].concat()).unwrap();
    let count = session.out().len();
    session.sent(count);
    session
}

fn error_of(input: &[u8]) -> ProtocolError {
    let mut session = Session::subscriber(vec![Vec::new()], LIMIT);
    feed(&mut session, input).unwrap_err()
}

#[test]
fn the_handshake_of_a_subscriber_is_these_bytes() {
    let mut session = Session::subscriber(vec![b"kv@".to_vec(), Vec::new()], LIMIT);
    assert_eq!(session.out(), LIBZMQ_GREETING, "our greeting is libzmq's");
    session.sent(64);
    assert!(feed(&mut session, LIBZMQ_GREETING).unwrap().is_empty());
    assert_eq!(session.out(), b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB");
    session.sent(27);
    assert_eq!(feed(&mut session, PUB_READY).unwrap(), [(Event::Established, vec![])]);
    assert_eq!(session.out(), b"\x04\x0d\x09SUBSCRIBEkv@\x04\x0a\x09SUBSCRIBE");
}

#[test]
fn a_peer_of_version_3_0_is_subscribed_to_with_messages() {
    let mut greeting = *LIBZMQ_GREETING;
    greeting[11] = 0;
    let mut session = Session::subscriber(vec![b"kv@".to_vec(), Vec::new()], LIMIT);
    session.sent(64);
    feed(&mut session, &[&greeting[..], PUB_READY].concat()).unwrap();
    assert_eq!(&session.out()[27..], b"\0\x04\x01kv@\0\x01\x01");
}

#[test]
fn the_handshake_of_a_dealer_is_these_bytes() {
    let mut session = Session::dealer(LIMIT);
    session.sent(64);
    let events = feed(&mut session, &[&LIBZMQ_GREETING[..], ROUTER_READY].concat()).unwrap();
    assert_eq!(events, [(Event::Established, vec![])]);
    session.send(&[b"", &7_u64.to_be_bytes()]);
    let expected =
        b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0\x01\0\0\x08\0\0\0\0\0\0\0\x07";
    assert_eq!(session.out(), expected);
}

#[test]
fn later_versions_and_other_fillers_are_accepted() {
    let mut greeting = *LIBZMQ_GREETING;
    (greeting[10], greeting[11], greeting[32], greeting[40]) = (4, 0, 1, 9);
    greeting[1..9].fill(0x55);
    let mut session = Session::subscriber(vec![Vec::new()], LIMIT);
    let events = feed(&mut session, &[&greeting[..], PUB_READY].concat()).unwrap();
    assert_eq!(events, [(Event::Established, vec![])]);
}

#[test]
fn other_protocols_are_rejected_at_their_first_wrong_byte() {
    assert_eq!(error_of(b"G"), ProtocolError::Signature);
    assert_eq!(error_of(b"\xff\0\0\0\0\0\0\0\x01\x7e"), ProtocolError::Signature);
    assert_eq!(error_of(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01"), ProtocolError::Version(1));
    assert_eq!(error_of(b"\xff\0\0\0\0\0\0\0\x01\x7f\x02"), ProtocolError::Version(2));
    assert_eq!(error_of(&greeting::ours(b"CURVE")), ProtocolError::Mechanism("CURVE".to_owned()));
    assert_eq!(error_of(&greeting::ours(b"NULLX")), ProtocolError::Mechanism("NULLX".to_owned()));
}

#[test]
fn a_handshake_that_goes_wrong_has_its_reason() {
    let after_greeting = |rest: &[u8]| error_of(&[&LIBZMQ_GREETING[..], rest].concat());
    let not_a_publisher =
        |found: &str| ProtocolError::SocketType { found: found.to_owned(), expected: "PUB or XPUB" };
    assert_eq!(after_greeting(ROUTER_READY), not_a_publisher("ROUTER"));
    assert_eq!(after_greeting(b"\x04\x06\x05READY"), not_a_publisher(""));
    assert_eq!(after_greeting(b"\0\0"), ProtocolError::EarlyMessage);
    assert_eq!(after_greeting(b"\x04\x05\xffjunk"), ProtocolError::Command("nameless"));
    assert_eq!(after_greeting(b"\x04\0"), ProtocolError::Command("nameless"));
    assert_eq!(after_greeting(b"\x04\x05\x04PONG"), ProtocolError::Command("handshake"));
    assert_eq!(after_greeting(b"\x04\x0a\x05ERROR\x03no\n"), ProtocolError::Rejected("no.".to_owned()));
    // A property that is longer than its command.
    let lying = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x04PUB";
    assert_eq!(after_greeting(lying), ProtocolError::Command("READY"));
}

#[test]
fn flags_and_lengths_are_checked_before_anything_is_allocated() {
    let error = |rest: &[u8]| {
        let mut session = established();
        let memory = session.memory();
        let error = feed(&mut session, rest).unwrap_err();
        assert!(session.memory() <= memory + 128, "memory for a length that was rejected");
        error
    };
    for flags in [0x08, 0x10, 0x80, 0xff, 0x05] {
        assert_eq!(error(&[flags]), ProtocolError::Flags(flags));
    }
    let huge = |flags: u8, length: u64| [&[flags][..], &length.to_be_bytes()].concat();
    for length in [LIMIT as u64 + 1, u64::from(u32::MAX), 1 << 63, u64::MAX] {
        let expected = ProtocolError::MessageTooLarge { size: length, limit: LIMIT as u64 };
        assert_eq!(error(&huge(2, length)), expected);
    }
    assert_eq!(error(&huge(6, 5000)), ProtocolError::CommandTooLarge(5000));
    // Small frames that are too much together.
    let part = [&[3][..], &(LIMIT as u64 / 2).to_be_bytes(), &vec![0; LIMIT / 2]].concat();
    let mut session = established();
    feed(&mut session, &part).unwrap();
    feed(&mut session, &part).unwrap();
    let expected = ProtocolError::MessageTooLarge { size: LIMIT as u64 + 1, limit: LIMIT as u64 };
    assert_eq!(feed(&mut session, b"\0\x01").unwrap_err(), expected);
    // And many of nothing.
    let mut session = established();
    feed(&mut session, &b"\x01\0".repeat(MAX_FRAMES_COUNTED)).unwrap();
    assert_eq!(feed(&mut session, b"\x01\0").unwrap_err(), ProtocolError::TooManyFrames);
}

#[test]
fn memory_follows_what_came_and_not_what_was_announced() {
    let mut session = Session::subscriber(vec![Vec::new()], 64 << 20);
    feed(&mut session, &[&LIBZMQ_GREETING[..], PUB_READY].concat()).unwrap();
    feed(&mut session, &[&[2][..], &(60_u64 << 20).to_be_bytes(), &[0; 100]].concat()).unwrap();
    assert!(session.memory() < 70 << 10, "{}", session.memory());
    feed(&mut session, &vec![0; 1 << 20]).unwrap();
    assert!(session.memory() < 3 << 20, "{}", session.memory());
}

#[test]
fn a_large_frame_is_read_into_its_own_buffer() {
    let payload: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
    let mut bytes = Vec::new();
    put_message(&[b"kv", &[0; 8], &payload], &mut bytes);
    let mut session = established();
    let header = bytes.len() - payload.len();
    assert!(feed(&mut session, &bytes[..header + 10]).unwrap().is_empty());
    let mut at = 10;
    let mut event = None;
    while event.is_none() {
        let Some(space) = session.space() else {
            event = feed(&mut session, &bytes[header + at..]).unwrap().pop().map(|(event, _)| event);
            break;
        };
        let count = space.len().min(50_000);
        space[..count].copy_from_slice(&payload[at..at + count]);
        at += count;
        event = session.filled(count).unwrap();
    }
    assert_eq!(event, Some(Event::Message));
    assert_eq!(session.message().take(2), payload);
}

#[test]
fn pings_are_answered_and_pongs_reported() {
    let mut session = established();
    assert!(session.ping(60, &PingContext::counter(258)));
    assert_eq!(session.out(), b"\x04\x0f\x04PING\0\x3c\0\0\0\0\0\0\x01\x02");
    let count = session.out().len();
    session.sent(count);
    assert!(feed(&mut session, b"\x04\x0a\x04PING\0\x01abc").unwrap().is_empty());
    assert_eq!(session.out(), b"\x04\x08\x04PONGabc");
    let events = feed(&mut session, b"\x04\x0d\x04PONG\0\0\0\0\0\0\x01\x02").unwrap();
    assert_eq!(events, [(Event::Pong(PingContext::counter(258)), vec![])]);
    assert_eq!(feed(&mut session, b"\x04\x06\x04PING\0").unwrap_err(), ProtocolError::Command("PING"));
    let long = [&b"\x04\x18\x04PING\0\0"[..], &[0; 17]].concat();
    assert_eq!(feed(&mut established(), &long).unwrap_err(), ProtocolError::Command("PING"));
}

#[test]
fn a_peer_that_pings_and_does_not_read_costs_little() {
    let mut session = established();
    feed(&mut session, &b"\x04\x07\x04PING\0\0".repeat(100_000)).unwrap();
    assert!(session.out().len() < 20 << 10, "{}", session.out().len());
    assert!(!session.ping(1, &PingContext::default()));
}

#[test]
fn commands_between_frames_and_unknown_ones_do_no_harm() {
    let mut session = established();
    let mut bytes = b"\x01\x02kv".to_vec();
    put_command(b"\x04PING\0\0", &mut bytes);
    put_command(b"\x05HELLOyou", &mut bytes);
    bytes.extend_from_slice(b"\0\x01x");
    let events = feed(&mut session, &bytes).unwrap();
    assert_eq!(events, [(Event::Message, vec![b"kv".to_vec(), b"x".to_vec()])]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { ProptestConfig::default().cases }))]

    /// Cut at every byte boundary, a conversation says the same.
    #[test]
    fn pieces_make_no_difference(
        messages in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..6), 0..6),
        cut in 0_usize..2000,
    ) {
        let mut bytes = [&LIBZMQ_GREETING[..], PUB_READY].concat();
        for message in &messages {
            put_command(b"\x04PING\0\x01ctx", &mut bytes);
            let frames: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
            put_message(&frames, &mut bytes);
        }
        let mut whole = Session::subscriber(vec![Vec::new()], LIMIT);
        let expected = feed(&mut whole, &bytes).unwrap();
        prop_assert_eq!(expected.len(), messages.len() + 1);
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        let mut session = Session::subscriber(vec![Vec::new()], LIMIT);
        let mut events = feed(&mut session, first).unwrap();
        events.extend(feed(&mut session, second).unwrap());
        prop_assert_eq!(&events, &expected);
        let mut session = Session::subscriber(vec![Vec::new()], LIMIT);
        let each: Result<Vec<_>, _> = bytes.chunks(1).map(|byte| feed(&mut session, byte)).collect();
        let each: Vec<_> = each.unwrap().concat();
        prop_assert_eq!(&each, &expected);
        prop_assert_eq!(session.out(), whole.out());
    }

    /// The fuzz target's check.
    #[test]
    fn any_bytes_are_events_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        checks::zmtp_session(&bytes);
    }

    /// Bytes that are nearly right get further.
    #[test]
    fn damaged_conversations_are_events_or_an_error(
        mode in any::<u8>(),
        pieces in any::<u8>(),
        lengths in prop::collection::vec(0_usize..70_000, 0..4),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let mut bytes = vec![mode | 1, pieces];
        for length in lengths {
            put_message(&[b"kv", &[0; 8], &vec![7; length]], &mut bytes);
            put_command(b"\x04PING\0\x01ctx", &mut bytes);
            put_command(b"\x09SUBSCRIBEkv", &mut bytes);
            put_message(&[b"\x01kv"], &mut bytes);
            put_command(b"\x06CANCELkv", &mut bytes);
        }
        if let Some((at, value)) = damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        checks::zmtp_session(&bytes);
    }
}
