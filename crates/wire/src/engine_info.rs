//! What engines say of themselves over gRPC, as far as it tells where and how they publish.
//!
//! ```text
//! vllm.Control (vLLM's rust/proto/control.proto)
//!   GetKvEventSources   1* KvEventSource
//!   KvEventSource       1 transport   2 endpoint   3 topic   4 replay_endpoint   5 data_parallel_rank   6 encoding
//!   GetServerInfo       6 kv_block_size   14 effective_attention_block_size
//! SMG's services
//!   GetServerInfo       vLLM: 9 data_parallel_size   12 block_size
//!                       SGLang, TokenSpeed: 1 server_args, a google.protobuf.Struct
//!   Struct              1* entry: 1 key   2 Value
//!   Value               one of: 1 null   2 number (double)   3 text   4 flag   5 Struct   6 list
//! ```
//!
//! Other fields are passed over.

use crate::smg::fields::{Fault, Fields, Value};

/// More publishers than any engine has; a message with more is not read to its end.
const MAX_SOURCES: usize = 4096;
/// More arguments than any server has.
const MAX_ARGS: usize = 65_536;

/// The bytes are another message, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherMessage;

impl From<Fault> for OtherMessage {
    fn from(_: Fault) -> Self {
        Self
    }
}

/// One publisher.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventSource<'f> {
    /// How it publishes: `zmq`.
    pub transport: &'f str,
    /// Where, as the engine has it.
    pub endpoint: &'f str,
    /// Topic of every message.
    pub topic: &'f str,
    /// Where it can be asked; empty if nowhere.
    pub replay_endpoint: &'f str,
    /// Whose it is.
    pub rank: Option<u32>,
    /// How batches are written: `msgpack`.
    pub encoding: &'f str,
}

/// Numbers that concern all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Data-parallel ranks.
    pub ranks: Option<u32>,
    /// Tokens per block.
    pub block_size: Option<u32>,
}

/// The value of an argument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg<'f> {
    /// A text.
    Text(&'f str),
    /// A number; `Struct` has no integers.
    Number(f64),
    /// True or false.
    Flag(bool),
    /// None.
    Null,
}

/// The answer to `vllm.Control/GetKvEventSources`.
pub fn kv_event_sources(message: &[u8]) -> Result<Vec<EventSource<'_>>, OtherMessage> {
    let mut sources = Vec::new();
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        if number == 1 {
            sources.push(event_source(value.bytes()?)?);
        }
        if sources.len() > MAX_SOURCES {
            return Err(OtherMessage);
        }
    }
    Ok(sources)
}

fn event_source(message: &[u8]) -> Result<EventSource<'_>, OtherMessage> {
    let mut source = EventSource::default();
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => source.transport = value.text()?,
            2 => source.endpoint = value.text()?,
            3 => source.topic = value.text()?,
            4 => source.replay_endpoint = value.text()?,
            5 => source.rank = Some(value.number()?),
            6 => source.encoding = value.text()?,
            _ => {}
        }
    }
    Ok(source)
}

/// The answer to `vllm.Control/GetServerInfo`.
pub fn control_server_info(message: &[u8]) -> Result<Sizes, OtherMessage> {
    let (mut configured, mut effective) = (None, None);
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            6 => configured = positive(value)?,
            14 => effective = positive(value)?,
            _ => {}
        }
    }
    Ok(Sizes { ranks: None, block_size: effective.or(configured) })
}

/// The answer to `vllm.grpc.engine.VllmEngine/GetServerInfo`.
pub fn vllm_server_info(message: &[u8]) -> Result<Sizes, OtherMessage> {
    let mut sizes = Sizes::default();
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        match number {
            9 => sizes.ranks = positive(value)?,
            12 => sizes.block_size = positive(value)?,
            _ => {}
        }
    }
    Ok(sizes)
}

/// A number; 0 is how protobuf leaves one out.
fn positive(value: Value<'_>) -> Result<Option<u32>, OtherMessage> {
    Ok(Some(value.number()?).filter(|number| *number > 0))
}

/// The arguments in an answer of `SGLang` or `TokenSpeed` to `GetServerInfo`; lists and structures among them
/// are left out.
pub fn server_args(message: &[u8]) -> Result<Vec<(&str, Arg<'_>)>, OtherMessage> {
    let mut args = Vec::new();
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        if number != 1 {
            continue;
        }
        let mut entries = Fields::of(value.bytes()?);
        while let Some((number, entry)) = entries.next()? {
            if number == 1 {
                args.extend(argument(entry.bytes()?)?);
            }
            if args.len() > MAX_ARGS {
                return Err(OtherMessage);
            }
        }
    }
    Ok(args)
}

fn argument(entry: &[u8]) -> Result<Option<(&str, Arg<'_>)>, OtherMessage> {
    let (mut key, mut arg) = ("", None);
    let mut fields = Fields::of(entry);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => key = value.text()?,
            2 => arg = self::value(value.bytes()?)?,
            _ => {}
        }
    }
    Ok(arg.map(|arg| (key, arg)))
}

fn value(message: &[u8]) -> Result<Option<Arg<'_>>, OtherMessage> {
    let mut arg = None;
    let mut fields = Fields::of(message);
    while let Some((number, value)) = fields.next()? {
        arg = match (number, value) {
            (1, Value::Varint(_)) => Some(Arg::Null),
            (2, Value::Fixed64(bits)) => Some(Arg::Number(f64::from_bits(bits))),
            (3, Value::Bytes(_)) => Some(Arg::Text(value.text()?)),
            (4, Value::Varint(flag)) => Some(Arg::Flag(flag != 0)),
            (1..=4, _) => return Err(OtherMessage),
            _ => None,
        };
    }
    Ok(arg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(number: u8, text: &str) -> Vec<u8> {
        bytes(number, text.as_bytes())
    }

    fn bytes(number: u8, bytes: &[u8]) -> Vec<u8> {
        assert!(bytes.len() < 128 && number < 16);
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    #[test]
    fn publishers_of_vllm_s_control_service() {
        let first = [
            text(1, "zmq"),
            text(2, "tcp://*:5557"),
            text(3, "kv"),
            vec![5 << 3, 0],
            text(6, "msgpack"),
            vec![7 << 3, 1],
            vec![8 << 3, 0x90, 0x4e],
        ]
        .concat();
        let second =
            [text(1, "zmq"), text(2, "tcp://*:5558"), text(4, "tcp://*:5658"), vec![5 << 3, 1]].concat();
        let message = [bytes(1, &first), bytes(1, &second)].concat();
        let sources = kv_event_sources(&message).unwrap();
        let expected = EventSource {
            transport: "zmq",
            endpoint: "tcp://*:5557",
            topic: "kv",
            replay_endpoint: "",
            rank: Some(0),
            encoding: "msgpack",
        };
        assert_eq!(sources[0], expected);
        assert_eq!((sources[1].rank, sources[1].replay_endpoint), (Some(1), "tcp://*:5658"));
        assert_eq!(kv_event_sources(&[]), Ok(Vec::new()));
        assert_eq!(kv_event_sources(b"<html>"), Err(OtherMessage));
        assert_eq!(kv_event_sources(&bytes(1, b"").repeat(5000)), Err(OtherMessage));
    }

    #[test]
    fn numbers_of_both_services() {
        let info = [text(1, "0.32.0"), vec![6 << 3, 16], vec![14 << 3, 64]].concat();
        assert_eq!(control_server_info(&info), Ok(Sizes { ranks: None, block_size: Some(64) }));
        assert_eq!(control_server_info(&[6 << 3, 16]).unwrap().block_size, Some(16));
        let info = [vec![9 << 3, 2], text(11, "auto"), vec![12 << 3, 32]].concat();
        assert_eq!(vllm_server_info(&info), Ok(Sizes { ranks: Some(2), block_size: Some(32) }));
        // A negative number.
        assert_eq!(vllm_server_info(&[&[9 << 3][..], &[0xff; 9], &[1]].concat()), Err(OtherMessage));
    }

    #[test]
    fn arguments_of_a_server() {
        let number = [&[2 << 3 | 1][..], &2.0_f64.to_le_bytes()].concat();
        let entries = [
            [text(1, "dp_size"), bytes(2, &number)].concat(),
            [text(1, "kv_events_config"), bytes(2, &text(3, "{}"))].concat(),
            [text(1, "device"), bytes(2, &[1 << 3, 0])].concat(),
            [text(1, "trust"), bytes(2, &[4 << 3, 1])].concat(),
            [text(1, "list"), bytes(2, &bytes(6, b""))].concat(),
        ];
        let args = entries.iter().flat_map(|entry| bytes(1, entry)).collect::<Vec<_>>();
        assert!(args.len() < 128);
        let message = bytes(1, &args);
        let expected = [
            ("dp_size", Arg::Number(2.0)),
            ("kv_events_config", Arg::Text("{}")),
            ("device", Arg::Null),
            ("trust", Arg::Flag(true)),
        ];
        assert_eq!(server_args(&message).unwrap(), expected);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            crate::checks::engine_info(&bytes);
        }
    }
}
