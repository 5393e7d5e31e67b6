//! Connections that ask one question after the other, over HTTP or gRPC.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use kvplane_proto::kvplane::v1::QueryRequest;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::engines::MODEL;
use crate::servers::Server;

/// Connections that are kept, with one question at a time on each.
pub(crate) const CONNECTIONS: usize = 8;
/// Until all connections are made and the server has seen some questions.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_mins(1);

/// What is asked over and over.
#[derive(Clone)]
pub(crate) enum Questions {
    /// Bodies for a path, each with the length of the answer that it must get; of any length where it is
    /// always another.
    Http { server: SocketAddr, path: &'static str, asked: Arc<[(Bytes, Option<usize>)]> },
    /// Prompts for `Query`, each with the blocks that the best stream holds of it.
    Grpc { server: SocketAddr, asked: Arc<[(Vec<u32>, u32)]> },
}

impl Questions {
    /// Bodies for a path. Everything is asked once to learn how long its answer is.
    pub(crate) async fn http(server: SocketAddr, path: &'static str, bodies: &[Bytes]) -> Self {
        let mut caller = HttpCaller::connect_patiently(server).await;
        let mut asked = Vec::new();
        for body in bodies {
            asked.push((body.clone(), Some(caller.post(path, body.clone()).await.1.len())));
        }
        Self::Http { server, path, asked: asked.into() }
    }

    /// Bodies for a path whose answers are never the same.
    pub(crate) fn changing(server: SocketAddr, path: &'static str, bodies: &[Bytes]) -> Self {
        Self::Http { server, path, asked: bodies.iter().map(|body| (body.clone(), None)).collect() }
    }

    /// Prompts of which the best stream holds this many blocks.
    pub(crate) fn grpc(server: SocketAddr, prompts: Vec<Vec<u32>>, blocks: u32) -> Self {
        Self::Grpc { server, asked: prompts.into_iter().map(|prompt| (prompt, blocks)).collect() }
    }

    /// Asks for so long, and gives how many answers came per second of the server's processor time, and per
    /// second.
    pub(crate) async fn measure(&self, server: &Server, length: Duration) -> (f64, f64) {
        let answered = Arc::new(AtomicU64::new(0));
        let local = LocalSet::new();
        let ask = |_| local.spawn_local(self.clone().ask_for_ever(answered.clone()));
        let callers: Vec<_> = (0..CONNECTIONS).map(ask).collect();
        let measured = async {
            tokio::time::sleep(WARM_UP).await;
            let (count, cpu, start) = (answered.load(Ordering::Relaxed), server.cpu(), Instant::now());
            tokio::time::sleep(length).await;
            let (cpu, elapsed) = (server.cpu() - cpu, start.elapsed().as_secs_f64());
            let count = (answered.load(Ordering::Relaxed) - count) as f64;
            (count / cpu, count / elapsed)
        };
        let measured = local.run_until(measured).await;
        // One that ended has met a wrong answer.
        assert!(callers.iter().all(|caller| !caller.is_finished()), "a caller gave up");
        measured
    }

    async fn ask_for_ever(self, answered: Arc<AtomicU64>) {
        match self {
            Self::Http { server, path, asked } => {
                let mut caller = HttpCaller::connect(server).await.unwrap();
                for (body, length) in asked.iter().cycle() {
                    let (status, answer) = caller.post(path, body.clone()).await;
                    assert_eq!((status, answer.len()), (200, length.unwrap_or(answer.len())), "{answer}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
            Self::Grpc { server, asked } => {
                let mut client = PlaneClient::connect(format!("http://{server}")).await.unwrap();
                for (token_ids, blocks) in asked.iter().cycle() {
                    let (model, token_ids) = (MODEL.to_owned(), token_ids.clone());
                    let request = QueryRequest { model, token_ids, ..QueryRequest::default() };
                    let answer = client.query(request).await.unwrap().into_inner();
                    assert_eq!(answer.matches[0].blocks, *blocks);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// One connection that is kept.
pub(crate) struct HttpCaller(SendRequest<Full<Bytes>>);

impl HttpCaller {
    async fn connect(server: SocketAddr) -> std::io::Result<Self> {
        let socket = TcpStream::connect(server).await?;
        socket.set_nodelay(true)?;
        let (send, connection) = handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        Ok(Self(send))
    }

    /// Waits for a server that is starting.
    pub(crate) async fn connect_patiently(server: SocketAddr) -> Self {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Self::connect(server).await {
                Ok(caller) => return caller,
                Err(error) => assert!(Instant::now() < deadline, "the server never listened: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Sends a body and reads the whole answer.
    pub(crate) async fn post(&mut self, path: &str, body: Bytes) -> (u16, String) {
        let request = Request::post(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body));
        self.0.ready().await.unwrap();
        let response = self.0.send_request(request.unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let answer = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(answer.into()).unwrap())
    }
}
