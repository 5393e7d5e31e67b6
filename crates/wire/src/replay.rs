//! The frames around a payload: live messages, replay requests and replay replies.
//!
//! ```text
//! live          [topic, sequence, payload]
//! request       ["", first sequence]
//! reply         ["", sequence, payload]            vLLM to 0.25
//!               ["", topic, sequence, payload]     since 0.26
//! end of reply  the same with sequence ff x 8 and an empty payload
//! ```
//!
//! A sequence is eight bytes, big-endian. Nothing says which of the two framings a publisher has, so a
//! reply is read from its tail. An end marker must be one in both its parts: an empty payload under a
//! number, or a payload under ff x 8, is an error and not the end.

/// The sequence of an end marker. No batch has it.
pub const END_SEQUENCE: u64 = u64::MAX;

/// Which frames a replay reply has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing<'a> {
    /// Delimiter, sequence, payload.
    Plain,
    /// Delimiter, topic, sequence, payload.
    WithTopic(&'a [u8]),
}

/// One message of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'f> {
    /// A batch that the publisher still had.
    Batch {
        /// Its number.
        sequence: u64,
        /// Its bytes, as they were published.
        payload: &'f [u8],
    },
    /// There is no more.
    End,
}

/// One live message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live<'f> {
    /// The topic, perhaps empty.
    pub topic: &'f [u8],
    /// Its number.
    pub sequence: u64,
    /// Its bytes.
    pub payload: &'f [u8],
}

/// Why frames are not the message that was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ReplyError {
    /// Too few or too many frames.
    #[error("unexpected number of frames: {0}")]
    Frames(usize),
    /// The frame before the payload is not eight bytes long.
    #[error("sequence frame of {0} bytes")]
    Sequence(usize),
    /// The first frame should be empty.
    #[error("no empty delimiter frame")]
    Delimiter,
    /// An empty payload under a number, or a payload under the number of the end.
    #[error("half an end marker")]
    HalfEnd,
}

/// Reads one replay reply, of either framing.
pub fn parse_reply(frames: &[impl AsRef<[u8]>]) -> Result<Reply<'_>, ReplyError> {
    let ([delimiter, sequence, payload] | [delimiter, _, sequence, payload]) = frames else {
        return Err(ReplyError::Frames(frames.len()));
    };
    if !delimiter.as_ref().is_empty() {
        return Err(ReplyError::Delimiter);
    }
    let payload = payload.as_ref();
    match (number(sequence.as_ref())?, payload.is_empty()) {
        (END_SEQUENCE, true) => Ok(Reply::End),
        (END_SEQUENCE, false) | (_, true) => Err(ReplyError::HalfEnd),
        (sequence, false) => Ok(Reply::Batch { sequence, payload }),
    }
}

/// Reads one live message.
pub fn parse_live(frames: &[impl AsRef<[u8]>]) -> Result<Live<'_>, ReplyError> {
    let [topic, sequence, payload] = frames else { return Err(ReplyError::Frames(frames.len())) };
    Ok(Live { topic: topic.as_ref(), sequence: number(sequence.as_ref())?, payload: payload.as_ref() })
}

/// Reads a replay request as a publisher gets it, behind the client's identity: the first number wanted.
pub fn parse_request(frames: &[impl AsRef<[u8]>]) -> Result<u64, ReplyError> {
    let [delimiter, sequence] = frames else { return Err(ReplyError::Frames(frames.len())) };
    if !delimiter.as_ref().is_empty() {
        return Err(ReplyError::Delimiter);
    }
    number(sequence.as_ref())
}

/// The frames of a live message.
pub fn live_frames(topic: &[u8], sequence: u64, payload: &[u8]) -> Vec<Vec<u8>> {
    vec![topic.to_vec(), sequence.to_be_bytes().to_vec(), payload.to_vec()]
}

/// The frames of a replay request, as a dealer socket must send them.
pub fn request_frames(first: u64) -> Vec<Vec<u8>> {
    vec![Vec::new(), first.to_be_bytes().to_vec()]
}

/// The frames of one replayed batch, behind the client's identity.
pub fn reply_frames(framing: Framing<'_>, sequence: u64, payload: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = vec![Vec::new()];
    if let Framing::WithTopic(topic) = framing {
        frames.push(topic.to_vec());
    }
    frames.push(sequence.to_be_bytes().to_vec());
    frames.push(payload.to_vec());
    frames
}

/// The frames of the end marker. Its topic is empty, whatever the topic of the batches was.
pub fn end_frames(framing: Framing<'_>) -> Vec<Vec<u8>> {
    let framing = if framing == Framing::Plain { framing } else { Framing::WithTopic(b"") };
    reply_frames(framing, END_SEQUENCE, b"")
}

fn number(frame: &[u8]) -> Result<u64, ReplyError> {
    frame.try_into().map(u64::from_be_bytes).map_err(|_| ReplyError::Sequence(frame.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_framings_read_alike() {
        for framing in [Framing::Plain, Framing::WithTopic(b"kv"), Framing::WithTopic(b"")] {
            let frames = reply_frames(framing, 258, b"payload");
            assert_eq!(frames.len(), if framing == Framing::Plain { 3 } else { 4 });
            assert_eq!(parse_reply(&frames), Ok(Reply::Batch { sequence: 258, payload: b"payload" }));
            assert_eq!(parse_reply(&end_frames(framing)), Ok(Reply::End));
        }
        assert_eq!(end_frames(Framing::WithTopic(b"kv")), [&b""[..], b"", &[0xff; 8], b""]);
        assert_eq!(end_frames(Framing::Plain), [&b""[..], &[0xff; 8], b""]);
    }

    #[test]
    fn a_topic_of_eight_bytes_is_no_sequence() {
        let frames = reply_frames(Framing::WithTopic(&[0xff; 8]), 3, b"x");
        assert_eq!(parse_reply(&frames), Ok(Reply::Batch { sequence: 3, payload: b"x" }));
    }

    #[test]
    fn half_an_end_is_an_error() {
        let one = 1u64.to_be_bytes();
        assert_eq!(parse_reply(&[&b""[..], &one, b""]), Err(ReplyError::HalfEnd));
        assert_eq!(parse_reply(&[&b""[..], &[0xff; 8], b"x"]), Err(ReplyError::HalfEnd));
        assert_eq!(parse_reply(&[&b""[..], &[0xff; 7], b"x"]), Err(ReplyError::Sequence(7)));
        assert_eq!(parse_reply(&[&b"id"[..], &one, b"x"]), Err(ReplyError::Delimiter));
        assert_eq!(parse_reply(&[&b""[..]]), Err(ReplyError::Frames(1)));
        assert_eq!(parse_reply(&[&one[..], b"x"]), Err(ReplyError::Frames(2)));
        assert_eq!(parse_reply(&[b""; 5]), Err(ReplyError::Frames(5)));
    }

    #[test]
    fn live_and_request() {
        let frames = live_frames(b"kv@pod", 7, b"p");
        assert_eq!(parse_live(&frames), Ok(Live { topic: b"kv@pod", sequence: 7, payload: b"p" }));
        assert_eq!(parse_live(&frames[1..]), Err(ReplyError::Frames(2)));
        assert_eq!(parse_request(&request_frames(u64::MAX - 1)), Ok(u64::MAX - 1));
        assert_eq!(parse_request(&[[0u8; 8]]), Err(ReplyError::Frames(1)));
    }
}
