//! The picker over a plane that always picks the first endpoint and knows no tokenizer: what messages cost,
//! and nothing else. `make bench-picker` measures it beside `noop_picker`.
//!
//! `alone_picker LISTEN ENDPOINT`

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a tool for measurements"
)]

use std::sync::Arc;

use futures::StreamExt as _;
use kvplane_inference::{Ask, Chosen, Endpoint, Found, NoTokens, PickError, Plane, Report, Tokens};
use kvplane_picker::{Options, Paced, Picker, Rules};
use kvplane_prompt::PromptInput;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

struct First;

impl Plane for First {
    fn tokenize(&self, _model: &str, _prompt: PromptInput) -> Result<Tokens, NoTokens> {
        Err(NoTokens::NoTokenizer)
    }

    fn pick(&self, _ask: &Ask<'_>) -> Result<Chosen, PickError> {
        let first = Found { place: 0, rank: None, cached: 0, cost: 1.0, kind: "vllm" };
        Ok(Chosen { endpoints: vec![first], receipt: "r".to_owned() })
    }

    fn first_byte(&self, _receipt: &str) {}

    fn ended(&self, _receipt: &str, _report: Report) {}

    fn is_ready(&self) -> bool {
        true
    }
}

#[tokio::main]
async fn main() {
    let mut words = std::env::args().skip(1);
    let listen = words.next().expect("LISTEN");
    let endpoint = words.next().expect("ENDPOINT").parse().expect("ENDPOINT is an address");
    let rules = watch::channel(Rules::of(vec![Endpoint::at(endpoint)])).1;
    let picker = Picker::new(Arc::new(First), Options::default(), rules);
    let listener = tokio::net::TcpListener::bind(listen).await.unwrap();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let paced = incoming.map(|connection| {
        connection.map(|stream| {
            stream.set_nodelay(true).unwrap();
            Paced::new(stream)
        })
    });
    tonic::transport::Server::builder()
        .initial_stream_window_size(Some(256 << 10))
        .initial_connection_window_size(Some(8 << 20))
        .add_routes(picker.routes(CancellationToken::new()))
        .serve_with_incoming(paced)
        .await
        .unwrap();
}
