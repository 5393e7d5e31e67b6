//! Printing messages of kvplane.v1, for people and for programs. Token values only when asked for: they are
//! prompts.

use std::io::{self, ErrorKind, StdoutLock, Write as _};

use kvplane_core::StateDigest;
use kvplane_proto::kvplane::v1::subscribe_response::Item;
use kvplane_proto::kvplane::v1::{self as proto, event::Kind};
use serde_json::{Value, json};

use crate::commands::page::harmless;

/// Whether anybody still reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    Yes,
    ReaderGone,
}

/// Prints to standard output.
pub(crate) struct Printer {
    json: bool,
    tokens: bool,
    out: StdoutLock<'static>,
}

impl Printer {
    pub(crate) fn new(json: bool, tokens: bool) -> Self {
        Self { json, tokens, out: io::stdout().lock() }
    }

    /// One message of a subscription.
    pub(crate) fn print(&mut self, message: &proto::SubscribeResponse) -> io::Result<Written> {
        if self.json {
            return self.line(&self.message_json(message).to_string());
        }
        let stream = format!("{}/{}", message.engine, message.rank);
        let number = number(message);
        match &message.item {
            Some(Item::Reset(reset)) => {
                self.line(&format!("{stream} {number} reset: {}", word(reset.reason().as_str_name())))
            }
            Some(Item::Snapshot(chunk)) => {
                let blocks: usize = chunk.stored.iter().map(|stored| stored.blocks.len()).sum();
                let end = if chunk.last { ", complete" } else { "" };
                self.line(&format!("{stream} {number} snapshot chunk {}: {blocks} blocks{end}", chunk.index))
            }
            Some(Item::Batch(batch)) => self.batch_lines(&stream, &number, batch),
            Some(Item::Gone(_)) => self.line(&format!("{stream} {number} gone: removed from the plane")),
            Some(Item::Standing(standing)) => {
                self.line(&format!("{stream} {number} {}", word(standing.continuity().as_str_name())))
            }
            None => Ok(Written::Yes),
        }
    }

    /// One chunk of a snapshot, as the state that it is.
    pub(crate) fn print_state(&mut self, message: &proto::SubscribeResponse) -> io::Result<Written> {
        if self.json {
            return self.line(&self.message_json(message).to_string());
        }
        let Some(Item::Snapshot(chunk)) = &message.item else { return Ok(Written::Yes) };
        let mut written = Written::Yes;
        for stored in &chunk.stored {
            let place = stored.place.as_ref().map_or_else(|| "hole".to_owned(), place_text);
            for block in &stored.blocks {
                let parent = match (block.root, block.parent) {
                    (true, _) => "root".to_owned(),
                    (false, Some(parent)) => format!("{parent:016x}"),
                    (false, None) => "unknown".to_owned(),
                };
                let content =
                    block.content_hash.map_or_else(|| "-".to_owned(), |hash| format!("{hash:016x}"));
                let mut line = format!(
                    "{:016x} {place} copies {} parent {parent} content {content}",
                    block.hash, block.copies
                );
                if self.tokens {
                    line.push_str(&format!(" tokens {:?}", block.token_ids));
                }
                written = self.line(&line)?;
            }
        }
        if chunk.last {
            let trust = chunk.trust.as_ref().map_or_else(String::new, trust_text);
            let continuity = word(chunk.continuity().as_str_name());
            let sequence = chunk.engine_sequence.map_or_else(|| "none".to_owned(), |s| s.to_string());
            written = self.line(&format!(
                "# {}/{} epoch {} engine sequence {sequence}: {continuity}, {trust}, digest {}",
                message.engine,
                message.rank,
                message.epoch,
                chunk.digest.as_ref().map(digest_text).unwrap_or_default(),
            ))?;
        }
        Ok(written)
    }

    fn batch_lines(&mut self, stream: &str, number: &str, batch: &proto::Batch) -> io::Result<Written> {
        let head = match batch.engine_sequence {
            Some(sequence) => format!("{stream} {number} seq {sequence}"),
            None => format!("{stream} {number}"),
        };
        let mut written = Written::Yes;
        for event in &batch.events {
            let Some(kind) = &event.kind else { continue };
            written = self.line(&format!("{head} {}", self.event_text(kind)))?;
        }
        if batch.events.is_empty() && batch.engine_sequence.is_some() {
            written = self.line(&format!("{head} nothing"))?;
        }
        if let Some(trust) = &batch.trust {
            written = self.line(&format!("{head} trust: {}", trust_text(trust)))?;
        }
        if batch.continuity() != proto::Continuity::Unspecified {
            written = self.line(&format!("{head} continuity: {}", word(batch.continuity().as_str_name())))?;
        }
        Ok(written)
    }

    fn event_text(&self, kind: &Kind) -> String {
        match kind {
            Kind::Stored(stored) => {
                let verb = match stored.cause() {
                    proto::StoreCause::Announced => "stored",
                    proto::StoreCause::Proven => "proven",
                    proto::StoreCause::Attached => "attached",
                };
                let blocks: Vec<String> = stored
                    .blocks
                    .iter()
                    .map(|block| {
                        let copies =
                            if block.copies == 1 { String::new() } else { format!("x{}", block.copies) };
                        let tokens =
                            if self.tokens { format!("{:?}", block.token_ids) } else { String::new() };
                        format!("{:016x}{copies}{tokens}", block.hash)
                    })
                    .collect();
                let place = stored.place.as_ref().map_or_else(String::new, place_text);
                let parent =
                    stored.parent_hash.map_or_else(|| "root".to_owned(), |hash| format!("{hash:016x}"));
                format!("{verb} {place} {} blocks after {parent}: {}", blocks.len(), blocks.join(" "))
            }
            Kind::Removed(removed) => {
                let place = removed.place.as_ref().map_or_else(String::new, place_text);
                let blocks: Vec<String> = removed
                    .blocks
                    .iter()
                    .map(|block| {
                        let left = if block.copies == 0 {
                            String::new()
                        } else {
                            format!("({} left)", block.copies)
                        };
                        format!("{:016x}{left}", block.hash)
                    })
                    .collect();
                format!("removed {place} {} blocks: {}", blocks.len(), blocks.join(" "))
            }
            Kind::Cleared(cleared) => {
                let places: Vec<String> = cleared.places.iter().map(place_text).collect();
                format!(
                    "cleared {}",
                    if places.is_empty() { "nothing: it was empty".to_owned() } else { places.join(", ") }
                )
            }
            Kind::Dropped(dropped) => format!("dropped everything: {}", dropped.reason),
        }
    }

    fn message_json(&self, message: &proto::SubscribeResponse) -> Value {
        let mut object = json!({
            "engine": message.engine,
            "rank": message.rank,
            "epoch": message.epoch,
            "sequence": message.sequence.to_string(),
        });
        let item = match &message.item {
            Some(Item::Gone(_)) => ("gone", json!({})),
            Some(Item::Standing(standing)) => {
                ("standing", json!({ "continuity": continuity_json(standing.continuity()) }))
            }
            Some(Item::Reset(reset)) => ("reset", json!({ "reason": word(reset.reason().as_str_name()) })),
            Some(Item::Snapshot(chunk)) => (
                "snapshot",
                json!({
                    "index": chunk.index,
                    "last": chunk.last,
                    "stored": chunk.stored.iter().map(|stored| self.stored_json(stored)).collect::<Vec<_>>(),
                    "trust": chunk.trust.as_ref().map(trust_json),
                    "continuity": continuity_json(chunk.continuity()),
                    "engine_sequence": chunk.engine_sequence,
                    "known_from": chunk.known_from,
                    "digest": chunk.digest.as_ref().map(digest_text),
                }),
            ),
            Some(Item::Batch(batch)) => (
                "batch",
                json!({
                    "engine_sequence": batch.engine_sequence,
                    "timestamp": batch.timestamp,
                    "events": batch.events.iter().filter_map(|e| e.kind.as_ref()).map(|k| self.event_json(k)).collect::<Vec<_>>(),
                    "trust": batch.trust.as_ref().map(trust_json),
                    "continuity": continuity_json(batch.continuity()),
                    "last_event_id": batch.last_event_id.to_string(),
                    "digest": batch.digest.as_ref().map(digest_text),
                }),
            ),
            None => return object,
        };
        object[item.0] = item.1;
        object
    }

    fn event_json(&self, kind: &Kind) -> Value {
        match kind {
            Kind::Stored(stored) => json!({ "stored": self.stored_json(stored) }),
            Kind::Removed(removed) => json!({ "removed": {
                "place": removed.place.as_ref().map(place_json),
                "blocks": removed.blocks.iter().map(|block| json!({
                    "hash": block.hash.to_string(), "copies": block.copies,
                })).collect::<Vec<_>>(),
            }}),
            Kind::Cleared(cleared) => {
                json!({ "cleared": { "places": cleared.places.iter().map(place_json).collect::<Vec<_>>() } })
            }
            Kind::Dropped(dropped) => json!({ "dropped": { "reason": dropped.reason } }),
        }
    }

    fn stored_json(&self, stored: &proto::Stored) -> Value {
        let blocks: Vec<Value> = stored.blocks.iter().map(|block| self.block_json(block)).collect();
        let mut object = json!({
            "cause": word(stored.cause().as_str_name()),
            "place": stored.place.as_ref().map(place_json),
            "layout": word(stored.layout().as_str_name()),
            "block_size": stored.block_size,
            "parent": stored.parent_hash.map(|hash| hash.to_string()),
            "lora_id": stored.lora_id,
            "lora_name": stored.lora_name,
            "cache_salt": stored.cache_salt.as_ref().map(|_| "set"),
            "bigrams": stored.bigrams,
            "session_id": stored.session_id,
            "blocks": blocks,
        });
        if self.tokens && !stored.span_token_ids.is_empty() {
            object["span_token_ids"] = json!(stored.span_token_ids);
        }
        object
    }

    fn block_json(&self, block: &proto::Block) -> Value {
        let mut object = json!({
            "hash": block.hash.to_string(),
            "copies": block.copies,
            "parent": block.parent.map(|hash| hash.to_string()),
            "root": block.root,
            "content_hash": block.content_hash.map(|hash| hash.to_string()),
            "tokens": block.token_ids.len(),
        });
        if !block.digest.is_empty() {
            let digest: String = block.digest.iter().map(|byte| format!("{byte:02x}")).collect();
            object["digest"] = json!(digest);
        }
        if self.tokens {
            object["token_ids"] = json!(block.token_ids);
        }
        object
    }

    fn line(&mut self, line: &str) -> io::Result<Written> {
        match writeln!(self.out, "{}", harmless(line)) {
            Ok(()) => Ok(Written::Yes),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Written::ReaderGone),
            Err(error) => Err(error),
        }
    }
}

fn digest_text(digest: &proto::Digest) -> String {
    StateDigest::from_parts(digest.low, digest.high).to_string()
}

/// kvplane's position within its epoch, short enough to read.
fn number(message: &proto::SubscribeResponse) -> String {
    format!("{}+{}", message.epoch, message.sequence.wrapping_sub(message.epoch << 20))
}

/// `RESET_REASON_NEW_EPOCH` as people write it.
pub(crate) fn word(name: &str) -> String {
    const PREFIXES: [&str; 9] = [
        "RESET_REASON_",
        "CONTINUITY_",
        "TRUST_LEVEL_",
        "STORE_CAUSE_",
        "LAYOUT_",
        "TIER_",
        "PHASE_",
        "VERDICT_",
        "OUTCOME_",
    ];
    let bare = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    bare.to_lowercase()
}

fn place_text(place: &proto::Place) -> String {
    let mut text = word(place.tier().as_str_name());
    if let Some(group) = place.group.filter(|&group| group > 0) {
        text.push_str(&format!(" group {group}"));
    }
    text
}

fn place_json(place: &proto::Place) -> Value {
    json!({
        "tier": word(place.tier().as_str_name()),
        "medium": place.medium,
        "locality": place.locality,
        "ownership": place.ownership,
        "group": place.group,
        "spec_kind": place.spec_kind,
        "sliding_window": place.sliding_window,
    })
}

fn trust_text(trust: &proto::Trust) -> String {
    let reasons: Vec<&str> = trust.degradations.iter().map(|d| d.reason.as_str()).collect();
    let level = word(trust.level().as_str_name());
    if reasons.is_empty() { level } else { format!("{level} ({})", reasons.join(", ")) }
}

fn trust_json(trust: &proto::Trust) -> Value {
    json!({
        "level": word(trust.level().as_str_name()),
        "reasons": trust.degradations.iter().map(|d| json!({"reason": d.reason, "since_ms": d.since_ms})).collect::<Vec<_>>(),
    })
}

fn continuity_json(continuity: proto::Continuity) -> Option<String> {
    (continuity != proto::Continuity::Unspecified).then(|| word(continuity.as_str_name()))
}
