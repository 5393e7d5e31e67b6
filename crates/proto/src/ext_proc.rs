//! External processing without what an endpoint picker does not look at: the two messages that pass for every
//! chunk of a body.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{
    DecodeContext, WireType, decode_varint, encode_key, encode_varint, encoded_len_varint,
};
use prost::{DecodeError, Message};

use crate::envoy::{ProcessingRequest, ProcessingResponse};

/// Fields of `ProcessingRequest` that Envoy repeats in every message.
const METADATA: u32 = 8;
const ATTRIBUTES: u32 = 9;
/// Fields whose message has one value of bytes.
const REQUEST_BODY: u32 = 4;
const RESPONSE_BODY: u32 = 5;

/// Bytes of everything but bodies: an empty header is two bytes here and a hundred in memory. Envoy's own limit
/// of headers is 60 KiB.
const MAX_BESIDES: usize = 1 << 20;
/// What a field that is not read takes in memory, besides its bytes.
const UNREAD: usize = size_of::<(u32, Bytes)>();

/// A `ProcessingRequest` whose metadata and attributes are read when they are wanted: Envoy sends them with
/// every chunk.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Received {
    /// Everything else.
    pub message: ProcessingRequest,
    /// Fields as they came, by their number.
    unread: Vec<(u32, Bytes)>,
    /// Bytes of everything but bodies.
    besides: usize,
}

/// An error in the library's own words: it has none that others may make.
fn refused(tag: u32, context: DecodeContext) -> Result<(), DecodeError> {
    prost::encoding::skip_field(WireType::SixtyFourBit, tag, &mut &[][..], context)
}

impl Received {
    /// The whole message.
    pub fn read(mut self) -> Result<ProcessingRequest, DecodeError> {
        for (tag, value) in self.unread {
            let mut field = BytesMut::with_capacity(value.len() + 10);
            encode_varint(value.len() as u64, &mut field);
            field.put_slice(&value);
            self.message.merge_field(tag, WireType::LengthDelimited, &mut field, DecodeContext::default())?;
        }
        Ok(self.message)
    }
}

impl From<ProcessingRequest> for Received {
    fn from(message: ProcessingRequest) -> Self {
        Self { message, unread: Vec::new(), besides: 0 }
    }
}

impl Message for Received {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        self.message.encode_raw(buffer);
        for (tag, value) in &self.unread {
            encode_key(*tag, WireType::LengthDelimited, buffer);
            encode_varint(value.len() as u64, buffer);
            buffer.put_slice(value);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        let is_unread = matches!((tag, wire_type), (METADATA | ATTRIBUTES, WireType::LengthDelimited));
        if matches!(tag, REQUEST_BODY | RESPONSE_BODY) || wire_type != WireType::LengthDelimited {
            return self.message.merge_field(tag, wire_type, buffer, context);
        }
        let length = decode_varint(buffer)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        // What an entry of a list takes counts too.
        self.besides = self.besides.saturating_add(length).saturating_add(UNREAD);
        // A value that is not all there, or too long.
        if length > buffer.remaining() || self.besides > MAX_BESIDES {
            return refused(tag, context);
        }
        let value = buffer.copy_to_bytes(length);
        if is_unread {
            self.unread.push((tag, value));
            return Ok(());
        }
        let mut field = BytesMut::with_capacity(length + 10);
        encode_varint(length as u64, &mut field);
        field.put_slice(&value);
        self.message.merge_field(tag, wire_type, &mut field, context)
    }

    fn encoded_len(&self) -> usize {
        let field = |(tag, value): &(u32, Bytes)| {
            encoded_len_varint(u64::from(*tag << 3)) + encoded_len_varint(value.len() as u64) + value.len()
        };
        self.message.encoded_len() + self.unread.iter().map(field).sum::<usize>()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Which body a chunk belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The client's.
    Request,
    /// The engine's.
    Response,
}

impl Side {
    /// The field of `ProcessingResponse`.
    fn tag(self) -> u32 {
        match self {
            Self::Request => 3,
            Self::Response => 4,
        }
    }
}

/// Pieces in one message: each takes memory besides its bytes.
const MAX_PIECES: usize = 64;

/// Bytes of a body that are sent back, as `streamed_response`: in pieces that are written one after the
/// other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    side: Side,
    pieces: Vec<Bytes>,
    size: usize,
    end_of_stream: bool,
}

impl Passed {
    /// Without any bytes yet.
    pub fn new(side: Side) -> Self {
        Self { side, pieces: Vec::new(), size: 0, end_of_stream: false }
    }

    /// Which body.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Its bytes, in pieces.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// Nothing follows.
    pub fn is_end(&self) -> bool {
        self.end_of_stream
    }

    /// How many more bytes fit below a message's limit.
    pub fn room(&self, limit: usize) -> usize {
        if self.end_of_stream || self.pieces.len() >= MAX_PIECES {
            0
        } else {
            limit.saturating_sub(self.size)
        }
    }

    /// The next bytes.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.size += piece.len();
            self.pieces.push(piece);
        }
    }

    /// Nothing follows.
    pub fn end(&mut self) {
        self.end_of_stream = true;
    }

    /// Lengths of the messages within one another, from the inside: `StreamedBodyResponse`, `BodyMutation`,
    /// `CommonResponse`, `BodyResponse`.
    fn lengths(&self) -> [usize; 4] {
        let size = self.size;
        let bytes = if size == 0 { 0 } else { field(size) };
        let streamed = bytes + 2 * usize::from(self.end_of_stream);
        let mutation = field(streamed);
        let common = field(mutation);
        [streamed, mutation, common, field(common)]
    }
}

/// The length of a field with a value of this length; numbers of fields here are below 16.
fn field(length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}

/// A `ProcessingResponse`.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Bytes of a body.
    Passed(Passed),
    /// Anything.
    Message(Box<ProcessingResponse>),
}

impl Default for Reply {
    fn default() -> Self {
        Self::Message(Box::default())
    }
}

impl From<ProcessingResponse> for Reply {
    fn from(message: ProcessingResponse) -> Self {
        Self::Message(Box::new(message))
    }
}

impl Message for Reply {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        /// Fields of the four messages: `response`, `body_mutation`, `streamed_response`, `body`; then
        /// `end_of_stream`.
        const RESPONSE: u32 = 1;
        const BODY_MUTATION: u32 = 3;
        const STREAMED_RESPONSE: u32 = 3;
        const BODY: u32 = 1;
        const END_OF_STREAM: u32 = 2;
        let passed = match self {
            Self::Message(message) => return message.encode_raw(buffer),
            Self::Passed(passed) => passed,
        };
        let [streamed, mutation, common, body] = passed.lengths();
        let nested = [
            (passed.side.tag(), body),
            (RESPONSE, common),
            (BODY_MUTATION, mutation),
            (STREAMED_RESPONSE, streamed),
        ];
        for (tag, length) in nested {
            encode_key(tag, WireType::LengthDelimited, buffer);
            encode_varint(length as u64, buffer);
        }
        let size = passed.size;
        if size > 0 {
            encode_key(BODY, WireType::LengthDelimited, buffer);
            encode_varint(size as u64, buffer);
            for piece in &passed.pieces {
                buffer.put_slice(piece);
            }
        }
        if passed.end_of_stream {
            encode_key(END_OF_STREAM, WireType::Varint, buffer);
            encode_varint(1, buffer);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        if matches!(self, Self::Passed(_)) {
            self.clear();
        }
        match self {
            Self::Message(message) => message.merge_field(tag, wire_type, buffer, context),
            Self::Passed(_) => Ok(()),
        }
    }

    fn encoded_len(&self) -> usize {
        match self {
            Self::Message(message) => message.encoded_len(),
            Self::Passed(passed) => field(passed.lengths()[3]),
        }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use prost_types::value::Kind;
    use prost_types::{Struct, Value};

    use super::*;
    use crate::envoy::processing_request::Request;
    use crate::envoy::processing_response::Response;
    use crate::envoy::{
        BodyMutation, BodyResponse, CommonResponse, HttpBody, Metadata, StreamedBodyResponse, body_mutation,
    };

    fn namespace() -> Struct {
        let value = Value { kind: Some(Kind::StringValue("10.0.0.1:80".into())) };
        Struct { fields: [("key".to_owned(), value)].into() }
    }

    #[test]
    fn what_is_received_is_the_message() {
        let message = ProcessingRequest {
            request: Some(Request::ResponseBody(HttpBody {
                body: Bytes::from(vec![7; 300]),
                end_of_stream: true,
            })),
            metadata_context: Some(Metadata {
                filter_metadata: HashMap::from([("envoy.lb".to_owned(), namespace())]),
            }),
            attributes: HashMap::from([
                ("envoy.filters.http.ext_proc".to_owned(), namespace()),
                ("x".to_owned(), namespace()),
            ]),
            observability_mode: true,
            protocol_config: None,
        };
        let bytes = message.encode_to_vec();
        let received = Received::decode(&bytes[..]).unwrap();
        assert_eq!(received.message.request, message.request);
        assert!(received.message.metadata_context.is_none() && received.message.attributes.is_empty());
        assert_eq!(received.unread.len(), 3);
        assert_eq!(ProcessingRequest::decode(&received.encode_to_vec()[..]).unwrap(), message);
        assert_eq!(received.read().unwrap(), message);
        for length in 0..bytes.len() {
            let part = Received::decode(&bytes[..length]).and_then(Received::read);
            assert_eq!(part.is_ok(), ProcessingRequest::decode(&bytes[..length]).is_ok(), "{length} bytes");
        }
        // Metadata that is no message is found when it is read.
        let broken = [0x42, 0x02, 0xff, 0xff];
        assert!(Received::decode(&broken[..]).unwrap().read().is_err());
        assert!(ProcessingRequest::decode(&broken[..]).is_err());
    }

    #[test]
    fn what_takes_much_more_memory_than_bytes_is_bounded() {
        // Headers without anything: two bytes each, about a hundred in memory.
        let headers = [0x0a, 0x00].repeat(MAX_BESIDES / 2 + 1);
        for tag in [2, 3, 6, 7] {
            for pieces in [1, 4] {
                let (mut message, piece) = (BytesMut::new(), headers.len() / pieces);
                for part in headers.chunks(piece - piece % 2) {
                    let mut list = BytesMut::new();
                    prost::encoding::bytes::encode(1, &Bytes::copy_from_slice(part), &mut list);
                    prost::encoding::bytes::encode(tag, &list.freeze(), &mut message);
                }
                assert!(Received::decode(&message[..]).is_err(), "{tag}, in {pieces}");
            }
        }
        for tag in [METADATA as u8, ATTRIBUTES as u8] {
            let many = [tag << 3 | 2, 0].repeat(MAX_BESIDES / UNREAD + 1);
            assert!(Received::decode(&many[..]).is_err(), "{tag}");
        }
        // A body may be longer.
        let body = HttpBody { body: Bytes::from(vec![7; 2 * MAX_BESIDES]), end_of_stream: true };
        let message =
            ProcessingRequest { request: Some(Request::RequestBody(body)), ..ProcessingRequest::default() };
        assert_eq!(Received::decode(&message.encode_to_vec()[..]).unwrap().message, message);
    }

    #[test]
    fn what_is_passed_is_the_message() {
        for side in [Side::Request, Side::Response] {
            for end_of_stream in [false, true] {
                for sizes in [vec![], vec![0], vec![1], vec![100, 27, 0, 1], vec![127], vec![20_000, 42_000]]
                {
                    let pieces: Vec<Bytes> = sizes.iter().map(|size| Bytes::from(vec![7; *size])).collect();
                    let streamed = StreamedBodyResponse { body: pieces.concat().into(), end_of_stream };
                    let mutation = Some(body_mutation::Mutation::StreamedResponse(streamed));
                    let common = CommonResponse {
                        body_mutation: Some(BodyMutation { mutation }),
                        ..CommonResponse::default()
                    };
                    let body = BodyResponse { response: Some(common) };
                    let response = match side {
                        Side::Request => Response::RequestBody(body),
                        Side::Response => Response::ResponseBody(body),
                    };
                    let message = ProcessingResponse { response: Some(response), dynamic_metadata: None };
                    let mut passed = Passed::new(side);
                    for piece in pieces {
                        passed.push(piece);
                    }
                    if end_of_stream {
                        passed.end();
                    }
                    let reply = Reply::Passed(passed);
                    let bytes = reply.encode_to_vec();
                    assert_eq!(reply.encoded_len(), bytes.len());
                    assert_eq!(bytes, message.encode_to_vec(), "{sizes:?}");
                    assert_eq!(Reply::decode(&bytes[..]).unwrap(), Reply::from(message));
                }
            }
        }
    }
}
