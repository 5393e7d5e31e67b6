//! A server in the place of engines' own HTTP servers, that does as a test says.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kvplane_core::{EngineId, EngineKind};
use kvplane_ingest::{Endpoint, EngineSpec, PlaneOptions, Published, Source};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::rig::Rig;

/// What the server does with a request.
#[derive(Debug, Clone)]
pub enum Act {
    Say(u16, &'static str),
    /// Says nothing until the other side goes.
    Hang,
}

/// A server. The first part of the path selects the engine.
pub struct Scripted {
    pub address: SocketAddr,
    seen: watch::Receiver<Vec<Seen>>,
}

/// A request.
#[derive(Debug, Clone)]
pub struct Seen {
    pub engine: String,
    /// Path and query, without the engine.
    pub path: String,
    pub key: Option<String>,
}

impl Scripted {
    /// A server that decides by the engine.
    pub async fn new(act: impl Fn(&str) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, seen) = watch::channel(Vec::new());
        let (tell, act) = (Arc::new(tell), Arc::new(act));
        let router = Router::new().fallback(async move |request: Request| -> Response {
            let uri = request.uri().path_and_query().unwrap().as_str().to_owned();
            let (engine, path) = uri[1..].split_once('/').unwrap();
            let key = request.headers().get("authorization").map(|key| key.to_str().unwrap().to_owned());
            let act = act(engine);
            let seen = Seen { engine: engine.to_owned(), path: path.to_owned(), key };
            tell.send_modify(|all: &mut Vec<Seen>| all.push(seen));
            match act {
                Act::Say(status, body) => {
                    (StatusCode::from_u16(status).unwrap(), Bytes::from(body)).into_response()
                }
                Act::Hang => std::future::pending().await,
            }
        });
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, seen }
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }

    /// Waits until this many requests have come.
    pub async fn until_seen(&self, count: usize) {
        self.seen.clone().wait_for(|seen| seen.len() >= count).await.unwrap();
    }

    pub fn url(&self, engine: &str) -> String {
        format!("http://{}/{engine}", self.address)
    }

    /// An engine of this server, of which nothing is heard.
    pub fn silent(&self, id: &str, kind: EngineKind, ranks: u32) -> EngineSpec {
        // Nobody publishes on the port that discards everything.
        let events = Endpoint::Connect("tcp://127.0.0.1:9".to_owned());
        let source = Source::Published(Published::at_ports(&events, None, ranks).unwrap());
        EngineSpec {
            worker_id: 1,
            http: Some(self.url(id)),
            ..EngineSpec::new(EngineId::new(id), kind, "m", source)
        }
    }
}

pub async fn rig(specs: Vec<EngineSpec>) -> Rig {
    Rig::of_specs(specs, PlaneOptions::default()).await
}
