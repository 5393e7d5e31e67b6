//! The servers that are measured, each a process of its own, and their processor time.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use crate::callers::HttpCaller;
use crate::engines::{BLOCK_SIZE, Engines, MODEL};

/// The kernel counts processor time in these; fixed for user space since ever.
const TICKS_PER_SECOND: f64 = 100.0;

/// A process that answers questions.
pub(crate) struct Server {
    process: Child,
    /// Where it takes HTTP.
    pub(crate) http: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// `kvplane serve`, without engines, with more words; and where it takes gRPC.
    pub(crate) fn kvplane(binary: &str, more: &[&str]) -> (Self, SocketAddr) {
        let (http, grpc) = (free_address(), free_address());
        let mut command = Command::new(binary);
        command.args(["serve", "--http", &http.to_string(), "--grpc", &grpc.to_string(), "--log", "error"]);
        command.args(more);
        (Self::start(&mut command, http), grpc)
    }

    /// Dynamo's indexer, by a Python that has it, without workers.
    pub(crate) fn dynamo(python: &str) -> Self {
        let http = free_address();
        let (port, block_size) = (http.port().to_string(), BLOCK_SIZE.to_string());
        let mut command = Command::new(python);
        command.args(["-m", "dynamo.indexer", "--port", &port, "--block-size", &block_size]);
        Self::start(command.stderr(Stdio::null()), http)
    }

    fn start(command: &mut Command, http: SocketAddr) -> Self {
        let process = command.stdout(Stdio::null()).spawn();
        Self { process: process.expect("the server starts"), http }
    }

    /// Seconds of processor time so far, of all threads, in user space and in the kernel.
    pub(crate) fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().unwrap()).sum();
        ticks / TICKS_PER_SECOND
    }

    /// Tells it of every engine, by the call that both servers have.
    pub(crate) async fn register(&self, engines: &Engines) {
        let mut caller = HttpCaller::connect_patiently(self.http).await;
        for (instance_id, (endpoint, replay_endpoint)) in engines.endpoints().into_iter().enumerate() {
            let registration = serde_json::json!({
                "instance_id": instance_id,
                "model_name": MODEL,
                "block_size": BLOCK_SIZE,
                "endpoint": endpoint,
                "replay_endpoint": replay_endpoint,
            });
            let (status, answer) = caller.post("/register", registration.to_string().into()).await;
            assert_eq!(status, 201, "{answer}");
        }
    }
}

/// An address that nobody listens at.
fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
