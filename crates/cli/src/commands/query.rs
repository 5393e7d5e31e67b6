//! `kvplane query`: who holds how much of a prompt.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use http::Method;
use serde_json::{Value, json};

use super::http_client::ask;
use super::page::{aligned, print};
use super::{Failure, usage};
use crate::args::{QueryArgs, TableOutput};

pub(crate) async fn run(args: QueryArgs) -> Result<(), Failure> {
    let text = read(&args.file)?;
    let question = question(&args, &text).map_err(usage)?;
    let answer = ask(&args.server.server, Method::POST, "/v1/query", Some(&question)).await?;
    print(&match args.output {
        TableOutput::Json => format!("{answer}\n"),
        TableOutput::Table => table(&answer),
    })
}

fn read(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

fn question(args: &QueryArgs, text: &str) -> anyhow::Result<Value> {
    let numbers = numbers(text)?;
    if args.hashes {
        let mut question =
            json!({ "model": args.model, "block_hashes": numbers, "block_size": args.block_size });
        if args.chained {
            question["chained"] = json!(true);
        }
        return Ok(question);
    }
    if let Some(at) = numbers.iter().position(|&number| u32::try_from(number).is_err()) {
        bail!("number {at} is not a token id (0 to {})", u32::MAX);
    }
    let (lora_name, cache_salt) = (&args.lora_name, &args.cache_salt);
    Ok(json!({ "model": args.model, "token_ids": numbers, "lora_name": lora_name, "cache_salt": cache_salt }))
}

/// Whole numbers: a JSON list, or separated by commas or white space.
fn numbers(text: &str) -> anyhow::Result<Vec<u64>> {
    let text = text.trim();
    let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    // The word itself is part of a prompt and is not repeated.
    words
        .enumerate()
        .map(|(at, word)| {
            word.parse().with_context(|| format!("number {at} is not a whole number of 64 bits"))
        })
        .collect()
}

/// One line per stream, those that are not credited last, and what the whole is worth.
fn table(answer: &Value) -> String {
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let list = |name: &str| answer[name].as_array().map_or(&[][..], Vec::as_slice);
    let mut rows =
        vec![["ENGINE", "RANK", "BLOCKS", "TOKENS", "DEVICE", "HOST", "TRUST", "REASON"].map(str::to_owned)];
    rows.extend(list("matches").iter().map(|found| {
        let tiers = &found["tiers"];
        let (device, host) = (&tiers["device"], &tiers["host"]);
        [
            &found["engine"],
            &found["rank"],
            &found["blocks"],
            &found["tokens"],
            device,
            host,
            &found["trust"],
            &found["reason"],
        ]
        .map(text)
    }));
    rows.extend(list("not_credited").iter().map(|passed| {
        let none = &Value::Null;
        [&passed["engine"], &passed["rank"], none, none, none, none, &passed["trust"], &passed["reason"]]
            .map(text)
    }));
    let best: Vec<String> = list("best")
        .iter()
        .map(|best| format!("{}/{}", text(&best["engine"]), text(&best["rank"])))
        .collect();
    let best = if best.is_empty() { "nobody".to_owned() } else { best.join(", ") };
    format!("{}best: {best}; trust of the answer: {}\n", aligned(&rows), text(&answer["trust"]))
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
    fn the_table_says_what_it_is_worth() {
        let answer = json!({
            "matches": [{
                "engine": "a", "rank": 0, "blocks": 2, "tokens": 32, "trust": "exact", "reason": null,
                "tiers": { "device": 16, "host": 32, "disk": 32, "remote": 32 },
            }],
            "best": [{ "engine": "a", "rank": 0 }],
            "trust": "lower",
            "not_credited": [{ "engine": "b", "rank": 1, "trust": "exact", "reason": "down" }],
        });
        let expected = "ENGINE  RANK  BLOCKS  TOKENS  DEVICE  HOST  TRUST  REASON\n\
            a       0     2       32      16      32    exact  -\n\
            b       1     -       -       -       -     exact  down\n\
            best: a/0; trust of the answer: lower\n";
        assert_eq!(table(&answer), expected);
    }
}
