//! `kvplane query`: who holds how much of a prompt.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use http::Method;
use kvplane_prompt::Json;
use serde_json::{Value, json};

use super::http_client::{ask, ask_text};
use super::page::{aligned, print};
use super::{Failure, query_hints, usage};
use crate::args::{QueryArgs, TableOutput};
use crate::config::usual_server;

/// Fields of a chat request that decide about its tokens.
const CHAT_FIELDS: [&str; 5] =
    ["messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"];
pub(crate) async fn run(args: QueryArgs) -> Result<(), Failure> {
    if args.tenant.is_some() {
        return query_hints::run(args).await;
    }
    let text = text_fields(&args).map_err(usage)?;
    let ids = if text.is_some() { String::new() } else { read(&args.file)? };
    let keys = args.extra_keys.as_deref().map(read).transpose()?;
    let question = question(&args, text.is_none().then_some(&ids), keys.as_deref()).map_err(usage)?;
    let server = &args.server.clone().unwrap_or_else(usual_server);
    let body = with_text(&question, text.unwrap_or_default());
    let answer = ask_text(server, &args.key, Method::POST, "/v1/query", Some(body)).await?;
    match args.output {
        TableOutput::Json => print(&format!("{answer}\n")),
        TableOutput::Table => {
            let note = short_prompt(&args, &question, &answer).await;
            print(&format!("{}{note}", table(&answer)))
        }
    }
}

/// A line about a prompt that is too short to be found, where a stream found nothing of it; else nothing.
async fn short_prompt(args: &QueryArgs, question: &Value, answer: &Value) -> String {
    let counted = answer["tokenized"]["tokens"].as_u64().map(|tokens| tokens as usize);
    let Some(tokens) = question["token_ids"].as_array().map(Vec::len).or(counted) else {
        return String::new();
    };
    let count = |name: &str| answer["counts"][name].as_u64().unwrap_or(0);
    if count("holders") > 0 && count("empty") == 0 {
        return String::new();
    }
    let server = &args.server.clone().unwrap_or_else(usual_server);
    // The answer stands without it.
    let status = ask(server, &args.key, Method::GET, "/v1/status", None).await.unwrap_or_default();
    short_prompt_note(tokens, &args.model, &status)
}

/// Which streams have blocks that are longer than the prompt, or blocks of a size that nobody knows yet.
fn short_prompt_note(tokens: usize, model: &str, status: &Value) -> String {
    const NAMES_MAX: usize = 3;
    let named = |mut names: Vec<String>| {
        let more = names.len().saturating_sub(NAMES_MAX);
        names.truncate(NAMES_MAX);
        if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") }
    };
    let mut longer: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    let mut unknown = Vec::new();
    let engines = status["engines"].as_array().into_iter().flatten();
    for engine in engines.filter(|engine| engine["model"] == model) {
        for rank in engine["ranks"].as_array().into_iter().flatten() {
            let name = format!("{}/{}", engine["id"].as_str().unwrap_or_default(), rank["rank"]);
            match rank["block_size"].as_u64() {
                Some(size) if size > tokens as u64 => longer.entry(size).or_default().push(name),
                Some(_) => {}
                None => unknown.push(name),
            }
        }
    }
    let mut note = String::new();
    for (size, names) in longer {
        note.push_str(&format!(
            "note: the prompt has {tokens} tokens, and a block of {} has {size}: engines cache whole blocks only\n",
            named(names)
        ));
    }
    if !unknown.is_empty() {
        note.push_str(&format!(
            "note: {} has published no block yet: a prompt shorter than one block is never cached (vLLM: 16 tokens, on a CPU 128)\n",
            named(unknown)
        ));
    }
    note
}

pub(super) fn read(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// The fields of a prompt that is given as text; `None` where it is given as ids.
fn text_fields(args: &QueryArgs) -> anyhow::Result<Option<Vec<(String, Json)>>> {
    let prompt = |text: &str| Ok(Some(vec![("prompt".to_owned(), Json::from(text))]));
    if let Some(text) = &args.prompt {
        return prompt(text);
    }
    let Some(file) = &args.chat else {
        let given = args.file.to_str().filter(|given| given.contains(char::is_whitespace));
        let is_text = !args.hashes && args.tenant.is_none() && !args.file.exists();
        return given.filter(|_| is_text).map_or(Ok(None), prompt);
    };
    match Json::parse(read(file)?.as_bytes()).context("the chat is not JSON")? {
        messages @ Json::Array(_) => Ok(Some(vec![("messages".to_owned(), messages)])),
        Json::Object(pairs) => {
            let own = |name: &str| {
                CHAT_FIELDS.contains(&name) || (name == "cache_salt" && args.cache_salt.is_none())
            };
            Ok(Some(pairs.into_iter().filter(|(name, _)| own(name)).collect()))
        }
        other => bail!("the chat is {}, neither a list of messages nor a request", other.kind()),
    }
}

/// The question as JSON, with fields whose keys have an order that counts.
fn with_text(question: &Value, fields: Vec<(String, Json)>) -> String {
    let mut body = question.to_string();
    if !fields.is_empty() {
        let fields = Json::Object(fields).to_text();
        body.truncate(body.len() - 1);
        body = format!("{body},{}", &fields[1..]);
    }
    body
}

/// The question: fields that were not given are not in it.
fn question(args: &QueryArgs, ids: Option<&String>, keys: Option<&str>) -> anyhow::Result<Value> {
    let numbers = ids.map(|text| numbers(text)).transpose()?;
    let mut question = json!({ "model": args.model });
    let mut add = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            question[field] = value;
        }
    };
    if !args.hashes
        && let Some(at) = numbers.iter().flatten().position(|&number| u32::try_from(number).is_err())
    {
        bail!("number {at} is not a token id (0 to {}): ask for hashes with --hashes", u32::MAX);
    }
    add(if args.hashes { "block_hashes" } else { "token_ids" }, numbers.map(|numbers| json!(numbers)));
    add("block_size", args.block_size.map(Value::from));
    add("chained", args.chained.then_some(Value::Bool(true)));
    add("lora_name", args.lora_name.clone().map(Value::from));
    add("lora_id", args.lora_id.map(Value::from));
    add("cache_salt", args.cache_salt.clone().map(Value::from));
    add("multimodal", (!args.multimodal.is_empty()).then(|| json!(args.multimodal)));
    let keys = keys.map(serde_json::from_str).transpose();
    add("extra_keys", keys.context("the extra keys are not JSON: write a list for each block, or null")?);
    add("groups", args.groups.then_some(Value::Bool(true)));
    add("limit", args.listing.limit.map(Value::from));
    add("min_tokens", args.listing.min_tokens.map(Value::from));
    add("all", args.listing.all.then_some(Value::Bool(true)));
    Ok(question)
}

/// Whole numbers: a JSON list, or separated by commas or white space.
pub(super) fn numbers(text: &str) -> anyhow::Result<Vec<u64>> {
    let text = text.trim();
    let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    // The word itself is part of a prompt and is not repeated.
    words
        .enumerate()
        .map(|(at, word)| {
            word.parse().with_context(|| format!("number {at} is not a whole number of 64 bits: write ids with commas or spaces between, or as a JSON list"))
        })
        .collect()
}

/// One line per stream, below it one per group where there are any; those that are not credited last, and
/// what the whole is worth.
fn table(answer: &Value) -> String {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let list = |of: &Value, name: &str| of[name].as_array().cloned().unwrap_or_default();
    let tiers = existing_tiers(answer);
    // A stream, or a group of it: what it is called, its length, and what that is worth.
    let row = |name: String, rank: &Value, length: &Value, worth: &Value| {
        let mut row = vec![name, text(rank)];
        row.extend(["blocks", "tokens", "cached_tokens"].map(|field| text(&length[field])));
        row.extend(tiers.iter().map(|tier| tokens_in(length, tier)));
        row.extend([text(&worth["trust"]), text(&worth["reason"])]);
        row
    };
    let none = Value::Null;
    let mut titles: Vec<String> =
        ["ENGINE", "RANK", "BLOCKS", "TOKENS", "CACHED"].map(str::to_owned).to_vec();
    titles.extend(tiers.iter().map(|tier| tier.to_uppercase()));
    titles.extend(["TRUST", "REASON"].map(str::to_owned));
    let mut rows = vec![titles];
    let mut notes = String::new();
    for found in list(answer, "matches") {
        if found["note"] == "prompt_shorter_than_block" {
            let (engine, rank, size) = (&found["engine"], &found["rank"], &found["block_size"]);
            let (engine, rank, size) = (text(engine), text(rank), text(size));
            notes += &format!(
                "note: the prompt is shorter than one block of {engine}/{rank} ({size} tokens): nothing of it can be cached\n"
            );
        }
        rows.push(row(text(&found["engine"]), &found["rank"], &found, &found));
        if found["main"].is_object() {
            rows.push(row("  main group".to_owned(), &none, &found["main"], &none));
        }
        for group in list(&found, "groups") {
            let name = format!("  group {} ({})", text(&group["group"]), text(&group["kind"]));
            rows.push(row(name, &none, &group, &none));
        }
    }
    for passed in list(answer, "not_credited") {
        rows.push(row(text(&passed["engine"]), &passed["rank"], &none, &passed));
    }
    notes += &unlisted(answer);
    let best: Vec<String> = list(answer, "best")
        .iter()
        .map(|best| format!("{}/{}", text(&best["engine"]), text(&best["rank"])))
        .collect();
    let best = if best.is_empty() { "none".to_owned() } else { best.join(", ") };
    if let Some(tokens) = answer["tokenized"]["tokens"].as_u64() {
        let parity = text(&answer["tokenized"]["parity"]);
        notes +=
            &format!("note: the text has {tokens} tokens; parity with the engines' tokenizer: {parity}\n");
    }
    format!("{}{notes}best: {best}; trust of the answer: {}\n", aligned(&rows), text(&answer["trust"]))
}

/// Tiers, warmest first.
const TIERS: [&str; 4] = ["device", "host", "disk", "remote"];

/// The device, and the tiers behind it that hold something of the prompt.
fn existing_tiers(answer: &Value) -> Vec<&'static str> {
    let matches = answer["matches"].as_array().map(Vec::as_slice).unwrap_or_default();
    let groups = matches.iter().flat_map(|found| found["groups"].as_array().into_iter().flatten());
    let lengths: Vec<&Value> =
        matches.iter().chain(matches.iter().map(|found| &found["main"])).chain(groups).collect();
    let exists = |tier: &&str| {
        *tier == "device"
            || lengths.iter().any(|length| !matches!(tokens_in(length, tier).as_str(), "-" | "0"))
    };
    TIERS.into_iter().filter(exists).collect()
}

/// Tokens in a tier itself: answers have each tier with everything warmer.
fn tokens_in(length: &Value, tier: &str) -> String {
    let at = TIERS.iter().position(|known| *known == tier).unwrap_or(0);
    let Some(up_to) = length["tiers"][tier].as_u64() else { return "-".to_owned() };
    let warmer = at.checked_sub(1).and_then(|at| length["tiers"][TIERS[at]].as_u64()).unwrap_or(0);
    up_to.saturating_sub(warmer).to_string()
}

/// How many streams there are besides those that are listed.
fn unlisted(answer: &Value) -> String {
    let count = |name: &str| answer["counts"][name].as_u64().unwrap_or(0);
    let listed = |name: &str| answer[name].as_array().map_or(0, Vec::len) as u64;
    let credited = (count("holders") + count("empty")).saturating_sub(listed("matches"));
    let holders = count("holders").saturating_sub(listed("matches"));
    let others = [
        (holders, "more hold something"),
        (credited - holders, "hold nothing"),
        (count("not_credited").saturating_sub(listed("not_credited")), "more are not credited"),
    ];
    let others = others.iter().filter(|(count, _)| *count > 0);
    let others: Vec<String> = others.map(|(count, what)| format!("{count} {what}")).collect();
    if others.is_empty() { String::new() } else { format!("not listed: {}\n", others.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_people_and_programs_write_them() {
        for text in ["[1, 2,3]", "1 2 3", "1,2\n3\n", " [1,2,\n3] "] {
            assert_eq!(numbers(text).unwrap(), [1, 2, 3], "{text:?}");
        }
        assert!(numbers("").unwrap().is_empty());
        assert_eq!(numbers("18446744073709551615").unwrap(), [u64::MAX]);
        for text in ["1 x", "-1", "1.5", "[1", "{}"] {
            let error = numbers(text).unwrap_err().to_string();
            assert!(error.contains("is not a whole number"), "{error}");
        }
    }

    #[test]
    fn text_keeps_the_order_of_its_keys() {
        let tools =
            Json::parse(br#"[{"type":"function","function":{"name":"f","description":"d"}}]"#).unwrap();
        let body = with_text(&json!({"model": "m"}), vec![("tools".to_owned(), tools)]);
        assert_eq!(
            body,
            r#"{"model":"m","tools":[{"type":"function","function":{"name":"f","description":"d"}}]}"#
        );
        assert_eq!(with_text(&json!({"model": "m"}), Vec::new()), r#"{"model":"m"}"#);
    }

    #[test]
    fn the_table_says_what_it_is_worth() {
        let answer = json!({
            "matches": [{
                "engine": "a", "rank": 0, "blocks": 2, "tokens": 32, "cached_tokens": 16, "trust": "exact", "reason": null,
                "block_size": 16, "note": "prompt_shorter_than_block", "tiers": { "device": 16, "host": 32, "disk": 32, "remote": 32 },
            }],
            "best": [{ "engine": "a", "rank": 0 }],
            "trust": "lower",
            "not_credited": [{ "engine": "b", "rank": 1, "trust": "exact", "reason": "down" }],
            "counts": { "holders": 3, "best": 1, "empty": 7, "not_credited": 5 },
        });
        let expected = "ENGINE  RANK  BLOCKS  TOKENS  CACHED  DEVICE  HOST  TRUST  REASON\n\
            a       0     2       32      16      16      16    exact  -\n\
            b       1     -       -       -       -       -     exact  down\n\
            note: the prompt is shorter than one block of a/0 (16 tokens): nothing of it can be cached\n\
            not listed: 2 more hold something, 7 hold nothing, 4 more are not credited\n\
            best: a/0; trust of the answer: lower\n";
        assert_eq!(table(&answer), expected);
    }

    #[test]
    fn a_prompt_shorter_than_a_block_is_noted() {
        let engine = |id: &str, model: &str, size: Value| json!({"id": id, "model": model, "ranks": [{"rank": 0, "block_size": size}]});
        let status = |engines: &[Value]| json!({ "engines": engines });
        let cpu =
            [engine("a", "m", json!(128)), engine("b", "m", json!(16)), engine("c", "other", json!(128))];
        let note = short_prompt_note(40, "m", &status(&cpu));
        assert!(note.contains("40 tokens") && note.contains("a block of a/0 has 128"), "{note}");
        assert!(!note.contains("b/0") && !note.contains("c/0") && note.lines().count() == 1, "{note}");
        assert_eq!(short_prompt_note(128, "m", &status(&cpu)), "");
        let new = short_prompt_note(40, "m", &status(&[engine("a", "m", Value::Null)]));
        assert!(new.contains("a/0 has published no block yet"), "{new}");
        let many: Vec<Value> = (0..5).map(|at| engine(&format!("e{at}"), "m", json!(64))).collect();
        assert!(short_prompt_note(1, "m", &status(&many)).contains("e0/0, e1/0, e2/0 and 2 more has 64"));
        assert_eq!(short_prompt_note(40, "m", &Value::Null), "");
    }

    #[test]
    fn the_table_has_a_line_per_group() {
        let length = |tokens: u64| json!({ "blocks": tokens / 16, "tokens": tokens, "tiers": { "device": tokens, "host": tokens } });
        let mut found = length(32);
        found["engine"] = json!("a");
        found["rank"] = json!(0);
        found["trust"] = json!("exact");
        found["main"] = length(64);
        found["groups"] = json!([length(32)]);
        found["groups"][0]["group"] = json!(1);
        found["groups"][0]["kind"] = json!("sliding");
        let answer = json!({ "matches": [found], "best": [], "trust": "exact", "not_credited": [] });
        let expected = "ENGINE               RANK  BLOCKS  TOKENS  CACHED  DEVICE  TRUST  REASON\n\
            a                    0     2       32      -       32      exact  -\n  \
            main group         -     4       64      -       64      -      -\n  \
            group 1 (sliding)  -     2       32      -       32      -      -\n\
            best: none; trust of the answer: exact\n";
        assert_eq!(table(&answer), expected);
    }
}
