//! A running plane.

use std::time::Instant;

use http::{Method, StatusCode};
use kvplane_doctor::{Code, Finding, PlaneSeen, Severity, judge_plane};
use kvplane_server::is_loopback;
use serde_json::Value;

use super::{Looked, USUAL_SERVER};
use crate::args::DoctorArgs;
use crate::commands::Failure;
use crate::commands::http_client::{answer, refusal};

/// Looks at a running plane.
pub(super) async fn look(args: &DoctorArgs, looked: &mut Looked) -> Result<(), Failure> {
    let server = args.server.as_deref().unwrap_or(USUAL_SERVER);
    looked.plane = Some(server.to_owned());
    let mut seen = PlaneSeen { address: server.to_owned(), ..PlaneSeen::default() };
    for (page, path) in [(&mut seen.status, "/v1/status"), (&mut seen.engines, "/v1/engines")] {
        match read(args, server, path).await? {
            Ok(answer) => *page = answer,
            Err(finding) => {
                looked.findings.push(*finding);
                return Ok(());
            }
        }
    }
    let shows_key = args.key.token().is_ok_and(|token| token.is_some()) || args.key.cert.is_some();
    seen.answers_strangers = !shows_key && !is_here(server);
    if seen.needs_a_second_look() {
        let began = Instant::now();
        tokio::time::sleep(args.listen.0).await;
        if let Ok(later) = read(args, server, "/v1/status").await? {
            seen.later = Some((later, began.elapsed()));
        }
    }
    let engines = seen.engines["engines"].as_array().into_iter().flatten();
    looked.engines.extend(engines.filter_map(|engine| engine["id"].as_str()).map(str::to_owned));
    looked.findings.extend(judge_plane(&seen));
    Ok(())
}

/// A page of the plane, or why it cannot be had. An address that is none is wrong usage.
async fn read(args: &DoctorArgs, server: &str, path: &str) -> Result<Result<Value, Box<Finding>>, Failure> {
    let finding = |code, seen: String, todo: &str| {
        Ok(Err(Box::new(Finding::new(code, Severity::Error, server, seen, todo))))
    };
    match answer(server, &args.key, Method::GET, path, None).await {
        Ok((StatusCode::OK, page)) => Ok(Ok(page)),
        Ok((status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN), said)) => finding(
            Code::PlaneUnauthorised,
            format!("{path}: {}", refusal(server, status, &said)),
            "give a token of the role read: --token-file FILE, or KVPLANE_TOKEN",
        ),
        Ok((status, said)) => finding(
            Code::PlaneUnreachable,
            format!("{path}: {}", refusal(server, status, &said)),
            "is this the HTTP address of a kvplane?",
        ),
        Err(Failure { code: 2, error }) => Err(Failure { code: 2, error }),
        Err(Failure { error, .. }) => finding(
            Code::PlaneUnreachable,
            format!("{error:#}"),
            "start it, or give its HTTP address: --server http://host:port; or look at a configuration: --config FILE",
        ),
    }
}

/// Whether only this machine reaches the address that was given.
fn is_here(server: &str) -> bool {
    let place = server.split_once("://").map_or(server, |(_, place)| place);
    let authority = place.split('/').next().unwrap_or(place);
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    is_loopback(&if has_port { format!("tcp://{authority}") } else { format!("tcp://{authority}:80") })
}
