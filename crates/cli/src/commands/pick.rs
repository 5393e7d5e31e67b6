//! `kvplane pick`: where a prompt should go. `kvplane ledger`: what was predicted, what was delivered, and
//! where the rest went.

use http::Method;
use serde_json::{Value, json};

use super::http_client::ask;
use super::page::{aligned, print};
use super::query::{numbers, read};
use super::{Failure, usage};
use crate::args::{LedgerArgs, PickArgs, TableOutput};

pub(crate) async fn pick(args: PickArgs) -> Result<(), Failure> {
    let ids = numbers(&read(&args.file)?).map_err(usage)?;
    let mut request = json!({"model": args.model, "token_ids": ids, "dry_run": !args.book});
    let given = [
        ("lora_name", args.lora_name.map(Value::from)),
        ("cache_salt", args.cache_salt.map(Value::from)),
        ("session", args.session.map(Value::from)),
        ("policy", args.policy.map(Value::from)),
        ("limit", args.limit.map(Value::from)),
    ];
    for (field, value) in given {
        if let Some(value) = value {
            request[field] = value;
        }
    }
    let answer = ask(&args.server.server, &args.server.key, Method::POST, "/v1/pick", Some(&request)).await?;
    match args.output {
        TableOutput::Json => print(&format!("{answer}\n")),
        TableOutput::Table => print(&picked(&answer)),
    }
}

pub(crate) async fn ledger(args: LedgerArgs) -> Result<(), Failure> {
    let path = match &args.receipt {
        Some(id) if id.is_empty() || !id.chars().all(|c| c.is_ascii_hexdigit() || c == '-') => {
            return Err(usage(anyhow::anyhow!("{id:?} is not the id of a receipt: /v1/pick gives one")));
        }
        Some(id) => format!("/v1/receipts/{id}"),
        None => format!("/v1/receipts?worst={}", args.worst),
    };
    let answer = ask(&args.server.server, &args.server.key, Method::GET, &path, None).await?;
    match (args.output, &args.receipt) {
        (TableOutput::Json, _) => print(&format!("{answer}\n")),
        (TableOutput::Table, Some(_)) => print(&receipt(&answer)),
        (TableOutput::Table, None) => print(&totals(&answer)),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => format!("{:.4}", number.as_f64().unwrap_or(0.0)),
        other => other.to_string(),
    }
}

fn list<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of[name].as_array().into_iter().flatten()
}

fn picked(answer: &Value) -> String {
    let titles = ["ENGINE", "RANK", "CACHED", "IN FLIGHT", "COST", "QUEUE", "PREFILL", "TRUST", "SKIPPED"];
    let mut rows = vec![titles.map(str::to_owned)];
    for one in list(answer, "endpoints") {
        let terms = &one["terms"];
        let cells =
            [&one["engine"], &one["rank"], &one["cached_tokens"], &one["in_flight_tokens"], &one["cost"]];
        let [engine, rank, cached, flight, cost] = cells.map(text);
        let [queue, prefill, trust] = [&terms["queue_s"], &terms["prefill_s"], &one["trust"]].map(text);
        rows.push([engine, rank, cached, flight, cost, queue, prefill, trust, String::new()]);
    }
    for one in list(answer, "skipped") {
        let [engine, rank, why] = [&one["engine"], &one["rank"], &one["why"]].map(text);
        let none = || "-".to_owned();
        rows.push([engine, rank, none(), none(), none(), none(), none(), none(), why]);
    }
    let receipt = answer["id"].as_str().map(|id| format!("receipt: {id}\n")).unwrap_or_default();
    format!("{}{}: {}\n{receipt}", aligned(&rows), text(&answer["why"]), text(&answer["because"]))
}

fn totals(answer: &Value) -> String {
    let (receipts, tokens) = (&answer["receipts"], &answer["tokens"]);
    let share = |part: &Value| {
        let whole = tokens["prompt"].as_f64().filter(|tokens| *tokens > 0.0);
        whole.map_or_else(String::new, |whole| {
            format!("{:.1} %", 100.0 * part.as_f64().unwrap_or(0.0) / whole)
        })
    };
    let mut rows = vec![["TOKENS".to_owned(), String::new(), "OF PROMPTS".to_owned()]];
    let stages = ["prompt", "seen_before", "fleet", "eligible", "predicted", "delivered", "gained", "random"];
    rows.extend(stages.map(|stage| [stage.to_owned(), text(&tokens[stage]), share(&tokens[stage])]));
    let lost = answer["lost"].as_object().into_iter().flatten();
    let lost = lost.filter(|(_, tokens)| tokens.as_u64() != Some(0));
    rows.extend(lost.map(|(cause, tokens)| [format!("lost: {cause}"), text(tokens), share(tokens)]));
    let mut page = aligned(&rows);
    page += &format!(
        "{} of {} receipts settled, {} as predicted; {} not reported, {} aborted, {} drifts\n",
        text(&receipts["settled"]),
        text(&receipts["decided"]),
        text(&receipts["equal"]),
        text(&receipts["not_reported"]),
        text(&receipts["aborted"]),
        text(&receipts["drifts"]),
    );
    for worst in list(answer, "worst") {
        page += &format!("\n{}", receipt(worst));
    }
    page
}

fn receipt(answer: &Value) -> String {
    let chosen = &answer["candidates"][0];
    let lost = answer["lost"].as_object().into_iter().flatten();
    let lost: Vec<String> = lost.map(|(cause, tokens)| format!("{cause} {tokens}")).collect();
    let drift = answer["drift"]["kind"].as_str().map(|kind| format!("; drift: {kind}")).unwrap_or_default();
    format!(
        "{} {}: {}/{} ({}), prompt {}, predicted {}, delivered {}; lost: {}{drift}\n",
        text(&answer["id"]),
        text(&answer["state"]),
        text(&chosen["engine"]),
        text(&chosen["rank"]),
        text(&answer["why"]),
        text(&answer["prompt_tokens"]),
        text(&answer["predicted_tokens"]),
        text(&answer["delivered"]["cached_tokens"]),
        if lost.is_empty() { "nothing".to_owned() } else { lost.join(", ") },
    )
}
