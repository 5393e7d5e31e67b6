//! `kvplane journal`: looks at a durable journal, also while a kvplane writes it. Never prints tokens.

use std::collections::BTreeMap;
use std::io::{BufWriter, ErrorKind, StdoutLock, Write, stdout};
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context as _, anyhow};
use kvplane_store::{Disk, Files as _, Kind, Record, Records, Recovery, Segment, read};
use kvplane_stream::Record as Step;
use serde_json::{Value, json};

use super::Failure;
use super::page::harmless;
use crate::args::{JournalArgs, JournalCommand, JournalDir, Output};

pub(crate) async fn run(args: JournalArgs) -> Result<(), Failure> {
    let looked = tokio::task::spawn_blocking(move || match args.command {
        JournalCommand::Verify(dir) => verify(&dir),
        JournalCommand::Ls(dir) => list(&dir),
        JournalCommand::Cat { dir, engine } => print(&dir, engine.as_deref()),
    });
    looked.await.context("the journal could not be read")?
}

fn open(dir: &Path) -> anyhow::Result<Arc<Disk>> {
    Disk::look_at(dir).map(Arc::new).with_context(|| format!("cannot read {}", dir.display()))
}

fn find(dir: &Path) -> anyhow::Result<Recovery> {
    read(open(dir)?).with_context(|| format!("cannot read the journal in {}", dir.display()))
}

fn verify(dir: &JournalDir) -> Result<(), Failure> {
    let found = find(&dir.dir)?;
    let ids: Vec<u32> = found.whole().map(|(id, _)| id).collect();
    let threads = available_parallelism().map_or(1, usize::from);
    let mut wrong: Vec<Value> = found
        .void()
        .map(|(_, stream)| {
            json!({ "engine": stream.name.engine, "rank": stream.name.rank, "error": "a part of it is missing" })
        })
        .collect();
    let mut whole = Vec::new();
    for stream in found.restore(&ids, u64::MAX, threads).context("cannot read the journal")? {
        let (engine, rank) = (&stream.name.engine, stream.name.rank);
        match &stream.memory {
            Ok(memory) => {
                let mark = memory.mark();
                whole.push(json!({
                    "engine": engine, "rank": rank, "steps": stream.next - 1,
                    "epoch": mark.cursor.epoch.as_u64(), "cursor": mark.cursor.sequence.to_string(),
                    "engine_sequence": memory.last().map(|(sequence, _)| sequence),
                    "blocks": memory.ledger().state().blocks_by_tier().iter().sum::<u64>(),
                    "digest": mark.digest.to_string(),
                }));
            }
            Err(error) => {
                wrong.push(json!({ "engine": engine, "rank": rank, "error": error.to_string() }));
            }
        }
    }
    let places: Vec<String> = found
        .troubles
        .iter()
        .map(|trouble| format!("{} at {}: {}", trouble.file, trouble.offset, trouble.cut))
        .collect();
    let torn = found.torn.as_ref().map(|torn| format!("{} at {}: {}", torn.file, torn.offset, torn.cut));
    let page = json!({
        "streams": whole, "damaged": wrong, "unreadable": places, "torn_end": torn, "closed": found.closed,
    });
    show(dir, &page, |page, out| {
        for stream in list_of(page, "streams") {
            writeln!(
                out,
                "{}/{}  whole: {} steps, {} blocks, engine sequence {}, digest {}",
                text(stream, "engine"),
                stream["rank"],
                stream["steps"],
                stream["blocks"],
                stream["engine_sequence"],
                text(stream, "digest")
            )?;
        }
        for stream in list_of(page, "damaged") {
            writeln!(
                out,
                "{}/{}  damaged: {}",
                text(stream, "engine"),
                stream["rank"],
                text(stream, "error")
            )?;
        }
        for place in list_of(page, "unreadable") {
            writeln!(out, "unreadable: {}", place.as_str().unwrap_or_default())?;
        }
        if let Some(torn) = page["torn_end"].as_str() {
            writeln!(out, "torn end, cut off at the next start: {torn}")?;
        }
        Ok(())
    })?;
    let damaged = wrong.len();
    if damaged == 0 && found.troubles.is_empty() {
        return Ok(());
    }
    Err(anyhow!("{damaged} streams cannot be gone on with; they begin anew at the next start").into())
}

fn list(dir: &JournalDir) -> Result<(), Failure> {
    let found = find(&dir.dir)?;
    let files: Vec<Value> = found
        .segments
        .iter()
        .map(|(&number, &bytes)| json!({ "file": Segment::file(number), "bytes": bytes }))
        .collect();
    let streams: Vec<Value> = found
        .streams
        .iter()
        .map(|(id, stream)| {
            json!({
                "stream": id, "engine": stream.name.engine, "rank": stream.name.rank,
                "removed": stream.gone, "first_step": stream.steps.map(|(first, _)| first),
                "last_step": stream.next() - 1, "saved_step": stream.saved(),
                "saved_bytes": stream.saved_bytes(),
            })
        })
        .collect();
    let page = json!({ "files": files, "streams": streams, "closed": found.closed });
    show(dir, &page, |page, out| {
        for file in list_of(page, "files") {
            writeln!(out, "{}  {} bytes", text(file, "file"), file["bytes"])?;
        }
        for stream in list_of(page, "streams") {
            let removed = if stream["removed"] == true { ", removed" } else { "" };
            writeln!(
                out,
                "{}/{}  stream {}: steps {} to {}, saved at {} ({} bytes){removed}",
                text(stream, "engine"),
                stream["rank"],
                stream["stream"],
                stream["first_step"],
                stream["last_step"],
                stream["saved_step"],
                stream["saved_bytes"]
            )?;
        }
        Ok(())
    })
}

/// Prints one document, for programs or for people. That nobody reads it to its end is no failure.
fn show(
    dir: &JournalDir,
    page: &Value,
    lines: impl FnOnce(&Value, &mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let mut out = BufWriter::new(stdout().lock());
    let printed = match dir.output {
        Output::Json => writeln!(out, "{page}"),
        Output::Text => lines(page, &mut out),
    };
    finish(printed.and_then(|()| out.flush()))
}

fn finish(printed: std::io::Result<()>) -> Result<(), Failure> {
    match printed {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed.context("cannot print")?),
    }
}

fn list_of<'v>(page: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    page[name].as_array().into_iter().flatten()
}

fn text(value: &Value, name: &str) -> String {
    harmless(value[name].as_str().unwrap_or_default()).into_owned()
}

/// Which streams there are, as the records say it.
type Names = BTreeMap<u32, (String, u32)>;

fn print(dir: &JournalDir, engine: Option<&str>) -> Result<(), Failure> {
    let disk = open(&dir.dir)?;
    let names = disk.list().context("cannot list the directory")?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| Segment::number_of(name)).collect();
    numbers.sort_unstable();
    let mut known = Names::new();
    let mut out = BufWriter::new(stdout().lock());
    for number in numbers {
        let file = Segment::file(number);
        let bytes = disk.read(&file).with_context(|| format!("cannot read {file}"))?;
        let printed = print_segment((number, &file, &bytes), &mut known, (dir.output, engine), &mut out);
        if let Err(error) = printed {
            return finish(Err(error));
        }
    }
    finish(out.flush())
}

fn print_segment(
    (number, file, bytes): (u64, &str, &[u8]),
    known: &mut Names,
    (output, engine): (Output, Option<&str>),
    out: &mut BufWriter<StdoutLock<'_>>,
) -> std::io::Result<()> {
    let mut records = Records::of(number, bytes);
    if let Err(cut) = Segment::read(bytes) {
        return writeln!(out, "{}", json!({ "file": file, "offset": 0, "unreadable": cut.to_string() }));
    }
    loop {
        let offset = records.offset();
        let record = match records.next() {
            None => return Ok(()),
            Some(Ok(record)) => record,
            Some(Err(cut)) => {
                let line = json!({ "file": file, "offset": offset, "unreadable": cut.to_string() });
                return writeln!(out, "{line}");
            }
        };
        if record.head.kind == Kind::Declare
            && let Some((rank, name)) = record.bytes.split_first_chunk()
        {
            let name = (String::from_utf8_lossy(name).into_owned(), u32::from_le_bytes(*rank));
            known.insert(record.head.stream, name);
        }
        let name = known.get(&record.head.stream);
        if engine.is_some_and(|engine| name.is_none_or(|(name, _)| name != engine)) {
            continue;
        }
        let line = line((file, offset), &record, name);
        match output {
            Output::Json => writeln!(out, "{line}")?,
            Output::Text => writeln!(out, "{}", sentence(&line))?,
        }
    }
}

/// A record, without what is in it of prompts.
fn line((file, offset): (&str, usize), record: &Record<'_>, name: Option<&(String, u32)>) -> Value {
    let head = record.head;
    let mut line = json!({
        "file": file, "offset": offset, "kind": head.kind.as_str(), "number": head.number,
        "bytes": record.bytes.len(),
    });
    if let Some((engine, rank)) = name {
        line["engine"] = json!(engine);
        line["rank"] = json!(rank);
    }
    if head.kind != Kind::Step {
        return line;
    }
    match Step::read(record.bytes) {
        Ok(step) => {
            let mark = step.mark();
            line["step"] = json!(step.kind());
            line["epoch"] = json!(mark.cursor.epoch.as_u64());
            line["cursor"] = json!(mark.cursor.sequence.to_string());
            line["digest"] = json!(mark.digest.to_string());
            if let Some((sequence, payload)) = step.batch() {
                line["engine_sequence"] = json!(sequence);
                line["payload_bytes"] = json!(payload.len());
            }
        }
        Err(error) => line["unreadable"] = json!(error.to_string()),
    }
    line
}

fn sentence(line: &Value) -> String {
    let mut words = vec![format!("{}:{}", text(line, "file"), line["offset"]), text(line, "kind")];
    if line["engine"].is_string() {
        words.push(format!("{}/{} {}", text(line, "engine"), line["rank"], line["number"]));
    }
    for key in ["step", "cursor", "digest", "unreadable"] {
        if line[key].is_string() {
            words.push(format!("{key}={}", text(line, key)));
        }
    }
    for key in ["engine_sequence", "payload_bytes"] {
        if line[key].is_number() {
            words.push(format!("{key}={}", line[key]));
        }
    }
    words.join(" ")
}
