//! The answer, as it passes: who gave it, its usage and its end.

use std::collections::HashMap;

use bytes::Bytes;
use kvplane_proto::envoy as proto;
use prost_types::Struct;

use kvplane_inference::{Format, Rename, Scanner, Usage, Withhold};

use super::Renamed;
use crate::message::{header, number, text};
use crate::names;

/// How what was picked came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The whole answer passed.
    Finished,
    /// The client, Envoy or the engine went before that.
    Aborted,
}

/// The end, and what is known by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) end: End,
    /// The answer's HTTP status; 0 where there was none.
    pub(crate) status: u16,
    pub(crate) usage: Usage,
    pub(crate) served: Option<String>,
    pub(crate) attempts: Option<u32>,
}

#[derive(Debug, Default)]
enum Picked {
    #[default]
    No,
    Yes,
    /// And its end was sent.
    Ended,
}

/// What passed of the answer.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own about what has passed")]
pub(super) struct Answer {
    picked: Picked,
    status: u16,
    scanner: Option<Scanner>,
    streamed: bool,
    /// What was asked for, and no error.
    succeeded: bool,
    first: bool,
    served: Option<String>,
    attempts: Option<u32>,
    withhold: Option<Withhold>,
    renamed: Option<Renamed>,
    rename: Option<Rename>,
    /// Who answered was looked for in a chunk.
    looked: bool,
}

impl Answer {
    pub(super) fn picked(&mut self) {
        self.picked = Picked::Yes;
    }

    /// What of the answer is to be changed.
    pub(super) fn change(&mut self, withhold: bool, renamed: Option<Renamed>) {
        self.withhold = withhold.then(Withhold::default);
        self.renamed = renamed;
    }

    /// Whether anything of its body may be changed.
    pub(super) fn changes(&self) -> bool {
        self.withhold.is_some() || self.rename.is_some()
    }

    /// Whether it is not known yet who answered.
    pub(super) fn wants_place(&self) -> bool {
        !self.looked && (self.served.is_none() || self.attempts.is_none())
    }

    pub(super) fn has_begun(&self) -> bool {
        self.status != 0
    }

    /// Who answered, where Envoy says so: by its load balancer, or by its connection.
    pub(super) fn place(&mut self, metadata: Option<&proto::Metadata>, attributes: &HashMap<String, Struct>) {
        if !self.wants_place() {
            return;
        }
        self.looked = self.has_begun();
        let lb = metadata.and_then(|metadata| metadata.filter_metadata.get(names::LB));
        let attribute = |key: &str| attributes.values().find(|one| one.fields.contains_key(key));
        let served = text(lb, names::SERVED)
            .or_else(|| text(attribute(names::UPSTREAM_ADDRESS), names::UPSTREAM_ADDRESS));
        if let Some(served) = served.filter(|served| !served.is_empty() && served.len() <= 256) {
            self.served = Some(served.to_owned());
        }
        let attempts = number(attribute(names::UPSTREAM_ATTEMPTS), names::UPSTREAM_ATTEMPTS);
        self.attempts = attempts.map(|attempts| attempts as u32).or(self.attempts);
    }

    pub(super) fn headers(&mut self, headers: &proto::HttpHeaders) {
        let Some(map) = &headers.headers else { return };
        self.status = header(map, ":status").and_then(|status| status.parse().ok()).unwrap_or(0);
        let encoded = header(map, "content-encoding").is_some_and(|encoding| encoding != "identity");
        let format = header(map, "content-type").filter(|_| !encoded).and_then(Format::of);
        self.streamed = format == Some(Format::Events);
        if !self.streamed {
            self.withhold = None;
        }
        let succeeded = matches!(self.picked, Picked::Yes) && (200..300).contains(&self.status);
        self.succeeded = succeeded;
        match (format, self.renamed.take()) {
            // It reads the usage, too.
            (Some(format), Some(Renamed { client, engine })) => {
                self.rename = Some(Rename::new(format, &engine, &client));
            }
            _ => self.scanner = format.filter(|_| succeeded).map(Scanner::new),
        }
    }

    /// What is passed on of a chunk where something is changed: with the client's name of the model, and
    /// without an event that it did not ask for.
    pub(super) fn pass(&mut self, chunk: &Bytes, end: bool) -> Vec<Bytes> {
        let mut out = Vec::with_capacity(3);
        match &mut self.rename {
            Some(rename) => {
                rename.pass(chunk, &mut out);
                if end {
                    rename.finish(&mut out);
                }
            }
            None => out.push(chunk.clone()),
        }
        match &mut self.withhold {
            Some(withhold) => {
                let joined = match <[Bytes; 1]>::try_from(out) {
                    Ok([whole]) => whole,
                    Err(pieces) => pieces.concat().into(),
                };
                vec![withhold.pass(joined, end)]
            }
            None => out,
        }
    }

    /// Reads a chunk. Says whether it was the first of a streamed answer.
    pub(super) fn chunk(&mut self, chunk: &[u8]) -> bool {
        if let Some(scanner) = &mut self.scanner {
            scanner.feed(chunk);
        }
        let is_first = self.streamed && !self.first && !chunk.is_empty() && self.succeeded;
        self.first |= is_first;
        is_first
    }

    /// The end, if it was not sent yet.
    pub(super) fn end(&mut self, end: End) -> Option<Ending> {
        let Picked::Yes = self.picked else { return None };
        self.picked = Picked::Ended;
        let scanner = self.scanner.as_ref().or_else(|| self.rename.as_ref().map(Rename::scanner));
        let usage = scanner.filter(|_| self.succeeded).map(Scanner::usage).unwrap_or_default();
        let served = self.served.take();
        Some(Ending { end, status: self.status, usage, served, attempts: self.attempts })
    }
}
