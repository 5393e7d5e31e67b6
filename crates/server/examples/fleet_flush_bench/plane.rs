//! `kvplane serve` over a fleet, in a process of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvplane_proto::kvplane::v1::admin_client::AdminClient;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use kvplane_proto::kvplane::v1::progress::Item;
use kvplane_proto::kvplane::v1::{FlushRequest, OperationRequest, StatusRequest};
use tonic::transport::{Channel, Endpoint};

use crate::engines::Fleet;

/// Far beyond anything that should take.
const PATIENCE: Duration = Duration::from_mins(2);
/// Batches of each stream that are kept. With the usual 10,000 the windows alone would grow with every clear.
const WINDOW: usize = 4;
/// How often memory is looked at during a flush.
const SAMPLE: Duration = Duration::from_millis(50);

pub(crate) struct Served {
    process: Child,
    channel: Channel,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Served {
    pub(crate) async fn start(binary: &str, fleet: &Fleet) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut config = format!(
            "[listen]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:{port}\"\n[journal]\nmax_batches = {WINDOW}\n"
        );
        for (number, (http, events)) in fleet.addresses.iter().enumerate() {
            write!(
                config,
                "[[engine]]\nid = \"e{number}\"\nkind = \"vllm\"\nmodel = \"m\"\nevents = \"{events}\"\nhttp = \"http://{http}\"\n"
            )
            .unwrap();
        }
        let file = std::env::temp_dir().join(format!("kvplane-fleet-{}.toml", std::process::id()));
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(binary);
        command.args(["serve", "--log", "error", "--config"]).arg(&file).stdout(Stdio::null());
        let process = command.spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        let channel = loop {
            match Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap().connect().await {
                Ok(channel) => break channel,
                Err(error) => assert!(Instant::now() < deadline, "kvplane never listened: {error}"),
            }
            tokio::time::sleep(SAMPLE).await;
        };
        std::fs::remove_file(&file).unwrap();
        Self { process, channel }
    }

    /// Waits until every engine is known to hold this many blocks.
    pub(crate) async fn until_held(&self, blocks: u32, engines: usize) {
        let mut plane = PlaneClient::new(self.channel.clone()).max_decoding_message_size(64 << 20);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = plane.status(StatusRequest::default()).await.unwrap().into_inner();
            let ranks = status.engines.iter().flat_map(|engine| &engine.ranks);
            let held = ranks.filter(|rank| rank.blocks.get("device") == Some(&u64::from(blocks))).count();
            if held == engines {
                return;
            }
            assert!(Instant::now() < deadline, "{held} of {engines} engines hold their blocks");
            tokio::time::sleep(SAMPLE).await;
        }
    }

    /// Flushes everything. Returns the number of ranks by verdict, and the most memory meanwhile, in MiB.
    pub(crate) async fn flush(&self, deadline: Duration, proof: Duration) -> (BTreeMap<String, u32>, f64) {
        let mut admin = AdminClient::new(self.channel.clone()).max_decoding_message_size(64 << 20);
        let operation =
            OperationRequest { deadline_s: Some(deadline.as_secs_f64()), ..OperationRequest::default() };
        let request = FlushRequest {
            operation: Some(operation),
            proof_timeout_s: Some(proof.as_secs_f64()),
            ..FlushRequest::default()
        };
        let mut progress = admin.flush(request).await.unwrap().into_inner();
        let mut most: f64 = 0.0;
        let mut samples = tokio::time::interval(SAMPLE);
        loop {
            tokio::select! {
                _ = samples.tick() => most = most.max(self.rss()),
                reported = progress.message() => {
                    if let Some(Item::Summary(summary)) = reported.unwrap().expect("a summary").item {
                        return (summary.verdicts.into_iter().collect(), most);
                    }
                }
            }
        }
    }

    /// Memory in use, in MiB.
    pub(crate) fn rss(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
    }
}
