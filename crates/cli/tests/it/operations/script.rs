//! A plane that says what a test tells it to say.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use kvplane_proto::Encoded;
use kvplane_proto::kvplane::v1::progress::Item;
use kvplane_proto::kvplane::v1::server::admin_server::{Admin, AdminServer};
use kvplane_proto::kvplane::v1::server::plane_server::{Plane, PlaneServer};
use kvplane_proto::kvplane::v1::{
    FlushRequest, OperationRequest, Outcome, Phase, Plan, PlannedRank, Progress, QueryBatch,
    QueryBatchResponse, QueryRequest, QueryResponse, RankReport, StartProfileRequest, StatusRequest,
    StatusResponse, SubscribeRequest, Summary, TokenizeResponse, Verdict,
};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// A call that came.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Asked {
    Flush(FlushRequest),
    StartProfile(StartProfileRequest),
    /// By the name of the method.
    Other(&'static str, OperationRequest),
}

/// What to answer with.
#[derive(Debug, Clone)]
pub(crate) enum Script {
    /// Refuses at once.
    Refuse(Status),
    /// Tells this, and ends.
    Tell(Vec<Progress>),
    /// Tells this, and breaks off.
    BreakOff(Vec<Progress>, Status),
    /// Tells this, and then nothing.
    Hang(Vec<Progress>),
}

/// A running plane. Ends with the test's runtime.
pub(crate) struct Scripted {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Scripted {
    pub(crate) async fn start(script: Script) -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let player = Player { script, asked: asked.clone() };
        let serving = Server::builder()
            .add_service(AdminServer::new(player))
            .add_service(PlaneServer::new(Idle))
            .serve_with_incoming(TcpIncoming::from(listener));
        tokio::spawn(serving);
        Self { url, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }
}

struct Player {
    script: Script,
    asked: Arc<Mutex<Vec<Asked>>>,
}

type ProgressStream = Pin<Box<dyn Stream<Item = Result<Progress, Status>> + Send>>;

impl Player {
    fn answer(&self, asked: Asked) -> Result<Response<ProgressStream>, Status> {
        self.asked.lock().push(asked);
        let (reported, end) = match self.script.clone() {
            Script::Refuse(status) => return Err(status),
            Script::Tell(reported) => (reported, futures::stream::empty().boxed()),
            Script::BreakOff(reported, status) => (reported, futures::stream::iter([Err(status)]).boxed()),
            Script::Hang(reported) => (reported, futures::stream::pending().boxed()),
        };
        Ok(Response::new(futures::stream::iter(reported.into_iter().map(Ok)).chain(end).boxed()))
    }
}

#[tonic::async_trait]
impl Admin for Player {
    type FlushStream = ProgressStream;
    type StartProfileStream = ProgressStream;
    type StopProfileStream = ProgressStream;
    type InfoStream = ProgressStream;
    type LoadsStream = ProgressStream;
    type HealthStream = ProgressStream;

    async fn flush(&self, request: Request<FlushRequest>) -> Result<Response<ProgressStream>, Status> {
        self.answer(Asked::Flush(request.into_inner()))
    }

    async fn start_profile(
        &self,
        request: Request<StartProfileRequest>,
    ) -> Result<Response<ProgressStream>, Status> {
        self.answer(Asked::StartProfile(request.into_inner()))
    }

    async fn stop_profile(
        &self,
        request: Request<OperationRequest>,
    ) -> Result<Response<ProgressStream>, Status> {
        self.answer(Asked::Other("stop_profile", request.into_inner()))
    }

    async fn info(&self, request: Request<OperationRequest>) -> Result<Response<ProgressStream>, Status> {
        self.answer(Asked::Other("info", request.into_inner()))
    }

    async fn loads(&self, request: Request<OperationRequest>) -> Result<Response<ProgressStream>, Status> {
        self.answer(Asked::Other("loads", request.into_inner()))
    }

    async fn health(&self, request: Request<OperationRequest>) -> Result<Response<ProgressStream>, Status> {
        self.answer(Asked::Other("health", request.into_inner()))
    }
}

/// A plane without engines: the command line asks how it is before it asks for more.
struct Idle;

#[tonic::async_trait]
impl Plane for Idle {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<Encoded, Status>> + Send>>;
    type QueryStreamStream = Pin<Box<dyn Stream<Item = Result<QueryBatchResponse, Status>> + Send>>;

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        Ok(Response::new(StatusResponse::default()))
    }

    async fn subscribe(
        &self,
        _: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn query(&self, _: Request<QueryRequest>) -> Result<Response<QueryResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn tokenize(&self, _: Request<QueryRequest>) -> Result<Response<TokenizeResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn query_stream(
        &self,
        _: Request<Streaming<QueryBatch>>,
    ) -> Result<Response<Self::QueryStreamStream>, Status> {
        Err(Status::unimplemented("not in this script"))
    }
}

/// The plan of a flush of engines `e0`, `e1`, … with one rank each.
pub(crate) fn plan(engines: u32) -> Plan {
    let ranks = (0..engines).map(|number| PlannedRank {
        engine: format!("e{number}"),
        rank: 0,
        model: "llama".to_owned(),
        kind: "sglang".to_owned(),
        call: "POST /flush_cache".to_owned(),
        unsupported: String::new(),
    });
    Plan { operation: "op-7".to_owned(), verb: "flush".to_owned(), ranks: ranks.collect(), backends: engines }
}

/// A report of one of them that is not its last.
pub(crate) fn on_the_way(engine: u32, phase: Phase) -> RankReport {
    RankReport { engine: format!("e{engine}"), phase: phase.into(), ..RankReport::default() }
}

/// The last report of one of them.
pub(crate) fn over(engine: u32, verdict: Verdict, why: &str) -> RankReport {
    RankReport {
        verdict: verdict.into(),
        why: why.to_owned(),
        answer_s: 0.25,
        ..on_the_way(engine, Phase::Over)
    }
}

/// Everything that a plane says of an operation in which each engine ends with one of these verdicts.
pub(crate) fn reported(verdicts: &[Verdict]) -> Vec<Progress> {
    let reports = (0..).zip(verdicts).map(|(engine, &verdict)| over(engine, verdict, "as it is"));
    whole(plan(verdicts.len() as u32), reports.collect())
}

/// A plan, reports, and a summary of them.
pub(crate) fn whole(plan: Plan, reports: Vec<RankReport>) -> Vec<Progress> {
    let mut summary = Summary { took_s: 0.5, ..Summary::default() };
    let mut fine = 0;
    for report in reports.iter().filter(|report| report.phase() == Phase::Over) {
        let name = report.verdict().as_str_name().trim_start_matches("VERDICT_").to_lowercase();
        *summary.verdicts.entry(name).or_default() += 1;
        fine += usize::from(matches!(report.verdict(), Verdict::Proven | Verdict::Done));
    }
    let outcome = match fine {
        0 => Outcome::None,
        fine if fine == plan.ranks.len() => Outcome::All,
        _ => Outcome::Partly,
    };
    summary.set_outcome(outcome);
    let mut reported = begun(plan, reports);
    reported.push(Progress { item: Some(Item::Summary(summary)) });
    reported
}

/// A plan and reports, and no end.
pub(crate) fn begun(plan: Plan, reports: Vec<RankReport>) -> Vec<Progress> {
    let reports = reports.into_iter().map(Item::Rank);
    std::iter::once(Item::Plan(plan)).chain(reports).map(|item| Progress { item: Some(item) }).collect()
}
