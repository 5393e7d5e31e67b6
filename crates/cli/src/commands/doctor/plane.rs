//! A running plane.

use anyhow::anyhow;
use http::{Method, StatusCode};
use kvplane_access::is_loopback;
use kvplane_doctor::{Code, Finding, PlaneSeen, Severity, judge_plane, place_of, without_userinfo};
use serde_json::Value;

use super::{Looked, listed};
use crate::args::DoctorArgs;
use crate::commands::http_client::{answer, append_page, next_page, refusal};
use crate::commands::{Failure, usage};
use crate::config::usual_server;

/// Looks at a running plane.
pub(super) async fn look(args: &DoctorArgs, looked: &mut Looked) -> Result<(), Failure> {
    let server = &args.server.clone().unwrap_or_else(usual_server);
    looked.plane = Some(without_userinfo(server));
    let mut seen = PlaneSeen::looked_at_now(without_userinfo(server));
    for (page, path) in [(&mut seen.status, "/v1/status"), (&mut seen.engines, "/v1/engines")] {
        match read_all(args, server, path).await? {
            Ok(answer) => *page = answer,
            Err(finding) => {
                looked.findings.push(*finding);
                return Ok(());
            }
        }
    }
    // Older planes have no such page, and one without sources says nothing there.
    if let Ok(answer) = read(args, server, "/v1/discover").await? {
        seen.discovered = answer;
    }
    let shows_key = args.key.token().is_ok_and(|token| token.is_some()) || args.key.cert.is_some();
    seen.answers_strangers = !shows_key && !is_here(server);
    if seen.needs_a_second_look() {
        let began = kvplane_runtime::now();
        tokio::time::sleep(args.listen.0).await;
        if let Ok(later) = read_all(args, server, "/v1/status").await? {
            seen.later = Some((later, began.elapsed()));
        }
    }
    let looks_at_engines = !args.plane_only && (args.engines || is_here(server));
    let closer = if looks_at_engines { listed::look(args, &seen, looked).await } else { Vec::new() };
    // What was seen at the engine says more than what the plane says of it.
    let mut found = judge_plane(&seen);
    found.retain(|one| !closer.iter().any(|other| (one.code, &one.subject) == (other.code, &other.subject)));
    found.extend(closer);
    looked.findings.extend(found);
    let engines = seen.engines["engines"].as_array().into_iter().flatten();
    let engines = engines.filter_map(|engine| engine["id"].as_str()).map(str::to_owned);
    let new: Vec<String> = engines.filter(|engine| !looked.engines.contains(engine)).collect();
    looked.engines.extend(new);
    Ok(())
}

/// All pages of a list of engines, as one.
async fn read_all(
    args: &DoctorArgs,
    server: &str,
    path: &str,
) -> Result<Result<Value, Box<Finding>>, Failure> {
    let mut whole = match read(args, server, path).await? {
        Ok(first) => first,
        Err(finding) => return Ok(Err(finding)),
    };
    while let Some(next) = next_page(path, &whole) {
        match read(args, server, &next).await? {
            Ok(page) => append_page(&mut whole, page),
            Err(finding) => return Ok(Err(finding)),
        }
    }
    Ok(Ok(whole))
}

/// A page of the plane, or why it cannot be read. An invalid address is wrong usage.
async fn read(args: &DoctorArgs, server: &str, path: &str) -> Result<Result<Value, Box<Finding>>, Failure> {
    let shown = without_userinfo(server);
    let finding = |code, seen: String, todo: &str| {
        let seen = seen.replace(server, &shown);
        Ok(Err(Box::new(Finding::new(code, Severity::Error, &shown, seen, todo))))
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
        Err(Failure { code: 2, error }) => Err(usage(anyhow!(format!("{error:#}").replace(server, &shown)))),
        Err(Failure { error, .. }) => finding(
            Code::PlaneUnreachable,
            format!("{error:#}"),
            "start it, or give its HTTP address: --server http://host:port; or look at a configuration: --config FILE",
        ),
    }
}

/// Whether only this machine reaches the address that was given.
fn is_here(server: &str) -> bool {
    is_loopback(&format!("tcp://{}", place_of(server)))
}
