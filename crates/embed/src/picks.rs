//! Decisions of the plane that is followed, and reports of what came of them: the only calls that wait for
//! the plane.

use std::time::Duration;

use kvplane_core::{ErrorCode, PublicError};
use kvplane_proto::Bearer;
use kvplane_proto::kvplane::v1 as proto;
use kvplane_proto::kvplane::v1::plane_client::PlaneClient;
use kvplane_proto::kvplane::v1::routing_client::RoutingClient;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::client::Client;

/// Calls to a plane's routing service, with the token that it wants.
pub(crate) type Routes = RoutingClient<InterceptedService<Channel, Bearer>>;

/// Calls to a plane about its streams.
pub(crate) type Calls = PlaneClient<InterceptedService<Channel, Bearer>>;

impl Client {
    /// The ids of a prompt that is given as text.
    pub fn tokenize(
        &self,
        request: proto::QueryRequest,
        within: Duration,
    ) -> Result<proto::TokenizeResponse, PublicError> {
        let open = self.open()?;
        let mut calls = open.calls.clone();
        let mut request = Request::new(request);
        request.set_timeout(within);
        let answered =
            open.handle.block_on(async { tokio::time::timeout(within, calls.tokenize(request)).await });
        answer(answered)
    }

    /// Where a prompt should go. Books the best endpoint, unless the request says otherwise.
    pub fn pick(
        &self,
        request: proto::PickRequest,
        within: Duration,
    ) -> Result<proto::PickResponse, PublicError> {
        let open = self.open()?;
        let mut routes = open.routes.clone();
        let mut request = Request::new(request);
        request.set_timeout(within);
        let answered =
            open.handle.block_on(async { tokio::time::timeout(within, routes.pick(request)).await });
        answer(answered)
    }

    /// How far a request is, or what was delivered.
    pub fn report(
        &self,
        report: proto::DeliveryReport,
        within: Duration,
    ) -> Result<proto::DeliveryAccount, PublicError> {
        let open = self.open()?;
        let mut routes = open.routes.clone();
        let mut request = Request::new(report);
        request.set_timeout(within);
        let answered =
            open.handle.block_on(async { tokio::time::timeout(within, routes.report(request)).await });
        answer(answered)
    }
}

fn answer<T>(
    answered: Result<Result<tonic::Response<T>, Status>, tokio::time::error::Elapsed>,
) -> Result<T, PublicError> {
    let late = |_| PublicError::new(ErrorCode::Unavailable, "the plane did not answer in time");
    answered.map_err(late)?.map(tonic::Response::into_inner).map_err(|status| refusal(&status))
}

/// What the plane refused, in the words of its own errors.
fn refusal(status: &Status) -> PublicError {
    let code = match status.code() {
        Code::InvalidArgument => ErrorCode::InvalidArgument,
        Code::NotFound => ErrorCode::NotFound,
        Code::ResourceExhausted => ErrorCode::LimitReached,
        Code::AlreadyExists | Code::Aborted | Code::FailedPrecondition => ErrorCode::Conflict,
        Code::Internal | Code::Unknown | Code::DataLoss => ErrorCode::Internal,
        _ => ErrorCode::Unavailable,
    };
    let words = if status.message().is_empty() { status.code().description() } else { status.message() };
    PublicError::new(code, words)
}
