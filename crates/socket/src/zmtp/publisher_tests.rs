//! The publishing side of a conversation: exact bytes, and every way to break it.

use super::command::PingContext;
use super::frame::{message_length, put_message};
use super::session::{Carrier, Event, Session};
use super::{ProtocolError, greeting};

const SUB_READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
const DEALER_READY: &[u8] = b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0";

/// An event, and the topic of a subscription or the frames of a message.
type Fed = (Event, Vec<Vec<u8>>);

fn feed(session: &mut Session, mut input: &[u8]) -> Result<Vec<Fed>, ProtocolError> {
    let mut events = Vec::new();
    while !input.is_empty() {
        let (taken, event) = session.feed(input)?;
        input = &input[taken..];
        if let Some(event) = event {
            let frames = match event {
                Event::Subscribe(carrier) | Event::Cancel(carrier) => vec![session.topic(carrier).to_vec()],
                Event::Message => session.message().frames().unwrap_or_default().to_vec(),
                _ => Vec::new(),
            };
            events.push((event, frames));
        }
    }
    Ok(events)
}

/// With a greeting of version 3.`minor` and this READY.
fn established(mut session: Session, minor: u8, ready: &[u8]) -> Session {
    let mut greeting = greeting::ours(b"NULL");
    greeting[11] = minor;
    let events = feed(&mut session, &[&greeting[..], ready].concat()).unwrap();
    assert_eq!(events, [(Event::Established, vec![])]);
    session
}

#[test]
fn the_handshake_of_a_publisher_is_these_bytes() {
    let session = established(Session::publisher(), 1, SUB_READY);
    assert_eq!(session.out()[..64], greeting::ours(b"NULL"));
    assert_eq!(&session.out()[64..], b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04XPUB");
    assert!(session.identity().is_empty());
    let session = established(Session::router(), 1, DEALER_READY);
    let expected = b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0";
    assert_eq!(&session.out()[64..], expected);
    assert!(session.identity().is_empty());
}

#[test]
fn who_may_connect_is_checked() {
    let ready = |kind: &str| {
        let body = [b"\x05READY\x0bSocket-Type\0\0\0", &[kind.len() as u8][..], kind.as_bytes()].concat();
        [&greeting::ours(b"NULL")[..], &[4, body.len() as u8], &body].concat()
    };
    let meets = |session: fn() -> Session, kind: &str| feed(&mut session(), &ready(kind)).is_ok();
    for (kind, publisher, router) in [
        ("SUB", true, false),
        ("XSUB", true, false),
        ("PUB", false, false),
        ("XPUB", false, false),
        ("DEALER", false, true),
        ("REQ", false, true),
        ("ROUTER", false, true),
        ("REP", false, false),
        ("PULL", false, false),
        ("", false, false),
    ] {
        assert_eq!(meets(Session::publisher, kind), publisher, "{kind}");
        assert_eq!(meets(Session::router, kind), router, "{kind}");
    }
    let error = feed(&mut Session::publisher(), &ready("DEALER")).unwrap_err();
    assert_eq!(error.to_string(), "the peer is a \"DEALER\" socket: expected SUB or XSUB");
}

#[test]
fn identities_are_read_and_checked() {
    let ready = |identity: &[u8]| {
        let length = (identity.len() as u32).to_be_bytes();
        let body = [&b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity"[..], &length, identity].concat();
        let frame = [&[6][..], &(body.len() as u64).to_be_bytes(), &body].concat();
        [&greeting::ours(b"NULL")[..], &frame].concat()
    };
    for identity in [&b""[..], b"me", &[1; 255]] {
        let mut session = Session::router();
        feed(&mut session, &ready(identity)).unwrap();
        assert_eq!(session.identity(), identity);
    }
    for identity in [&b"\0me"[..], &[1; 256]] {
        let error = feed(&mut Session::router(), &ready(identity)).unwrap_err();
        assert_eq!(error, ProtocolError::Identity(identity.len()));
    }
}

#[test]
fn subscriptions_come_as_commands_and_as_messages() {
    let bytes =
        b"\x04\x0c\x09SUBSCRIBEkv\x04\x0a\x09SUBSCRIBE\x04\x09\x06CANCELkv\0\x03\x01kv\0\x01\x00\0\x01\x01";
    let topic = |topic: &[u8]| vec![topic.to_vec()];
    let expected = [
        (Event::Subscribe(Carrier::Command), topic(b"kv")),
        (Event::Subscribe(Carrier::Command), topic(b"")),
        (Event::Cancel(Carrier::Command), topic(b"kv")),
        (Event::Subscribe(Carrier::Message), topic(b"kv")),
        (Event::Cancel(Carrier::Message), topic(b"")),
        (Event::Subscribe(Carrier::Message), topic(b"")),
    ];
    for minor in [0, 1] {
        let mut session = established(Session::publisher(), minor, SUB_READY);
        assert_eq!(feed(&mut session, bytes).unwrap(), expected);
        // And byte by byte.
        let mut session = established(Session::publisher(), minor, SUB_READY);
        let each: Vec<_> = bytes.chunks(1).flat_map(|byte| feed(&mut session, byte).unwrap()).collect();
        assert_eq!(each, expected);
    }
}

#[test]
fn what_is_no_subscription_means_nothing_to_a_publisher() {
    let mut session = established(Session::publisher(), 1, SUB_READY);
    // Nothing, another first byte, two frames, and a command in between.
    let bytes = b"\0\0\0\x02\x02x\x01\x02\x01x\x04\x09\x06CANCELkv\0\x02\x01y\x04\x06\x05HELLO";
    let events = feed(&mut session, bytes).unwrap();
    assert_eq!(events, [(Event::Cancel(Carrier::Command), vec![b"kv".to_vec()])]);
    // And subscriptions mean nothing to a ROUTER.
    let mut session = established(Session::router(), 1, DEALER_READY);
    let events = feed(&mut session, b"\x04\x0c\x09SUBSCRIBEkv\x01\0\0\x08\0\0\0\0\0\0\0\x07").unwrap();
    assert_eq!(events, [(Event::Message, vec![vec![], 7_u64.to_be_bytes().to_vec()])]);
}

#[test]
fn pings_are_left_to_the_queue() {
    for mut session in
        [established(Session::publisher(), 1, SUB_READY), established(Session::router(), 1, DEALER_READY)]
    {
        let before = session.out().len();
        let events = feed(&mut session, b"\x04\x0f\x04PING\0\x3c\0\0\0\0\0\0\x01\x02").unwrap();
        assert_eq!(events, [(Event::Ping { ttl: 60, context: PingContext::counter(258) }, vec![])]);
        assert_eq!(session.out().len(), before);
        let long = [&b"\x04\x18\x04PING\0\0"[..], &[0; 17]].concat();
        assert_eq!(feed(&mut session, &long).unwrap_err(), ProtocolError::Command("PING"));
    }
}

#[test]
fn little_is_read_of_a_peer() {
    let lengths = [(64 << 10) + 1, u64::from(u32::MAX), u64::MAX];
    for length in lengths {
        let frame = [&[2][..], &length.to_be_bytes()].concat();
        for mut session in
            [established(Session::publisher(), 1, SUB_READY), established(Session::router(), 1, DEALER_READY)]
        {
            let memory = session.memory();
            let error = feed(&mut session, &frame).unwrap_err();
            assert_eq!(error, ProtocolError::MessageTooLarge { size: length, limit: 64 << 10 });
            assert!(session.memory() <= memory + 128);
        }
    }
}

#[test]
fn lengths_of_messages_are_known_before_they_are_encoded() {
    for frames in [&[&b""[..]][..], &[b"kv", &[0; 8], &[1; 255]], &[&[0; 256], b"", &[2; 7000]]] {
        let mut bytes = Vec::new();
        put_message(frames, &mut bytes);
        assert_eq!(message_length(frames), bytes.len());
    }
}
