//! The answer to a client that speaks plain HTTP to a TLS port.

use std::time::Duration;

use kvplane_core::{ErrorCode, PublicError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::ApiError;

/// The first byte of every TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;
/// How long the client may take to read it.
const READ_WITHIN: Duration = Duration::from_secs(1);
/// Of what the client sends meanwhile. It is read so that the answer is not lost with it.
const DISCARD_MAX: u64 = 64 << 10;
const WORDS: &str = "this port speaks TLS: use https";

/// Whether the client speaks TLS, by its first byte. Nothing is taken from the stream.
pub(super) async fn speaks_tls(stream: &TcpStream) -> std::io::Result<bool> {
    let mut first = [0];
    let length = stream.peek(&mut first).await?;
    Ok(length == 0 || first[0] == TLS_HANDSHAKE)
}

/// Tells a client in its own protocol what is wrong, and lets it go.
pub(super) async fn send_away(mut stream: TcpStream) {
    let mut first = [0; 4];
    let answered = async {
        let length = stream.peek(&mut first).await?;
        let is_http2 = first[..length].starts_with(b"PRI");
        let words = if is_http2 { farewell(INADEQUATE_SECURITY, WORDS) } else { over_http1() };
        stream.write_all(&words).await?;
        stream.shutdown().await?;
        tokio::io::copy(&mut (&mut stream).take(DISCARD_MAX), &mut tokio::io::sink()).await
    };
    // Whatever comes of it, the connection ends.
    let _ = timeout(READ_WITHIN, answered).await;
}

fn over_http1() -> Vec<u8> {
    let error = ApiError(
        PublicError::new(ErrorCode::InvalidArgument, WORDS).with_next("begin the address with https://"),
    );
    let body = error.body().to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

/// HTTP/2's code for a connection that is not secure enough.
const INADEQUATE_SECURITY: u8 = 0xc;

/// What ends a connection over HTTP/2 before it began: our settings, which must come first, and a GOAWAY with
/// a code and fewer than 248 bytes of words.
pub(super) fn farewell(code: u8, words: &str) -> Vec<u8> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const GOAWAY: u8 = 7;
    let mut frames = SETTINGS.to_vec();
    frames.extend([0, 0, 8 + words.len() as u8, GOAWAY, 0, 0, 0, 0, 0]);
    // The last stream that was served: none.
    frames.extend([0, 0, 0, 0, 0, 0, 0, code]);
    frames.extend(words.as_bytes());
    frames
}
