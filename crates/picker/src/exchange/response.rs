//! The answer, as it passes: who gave it, its usage and its end.

use std::collections::HashMap;

use bytes::Bytes;
use kvplane_proto::envoy as proto;
use prost_types::Struct;

use crate::message::{header, number, text};
use crate::names;
use crate::usage::{Format, Scanner, Usage, Withhold};

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
    /// And its end was told.
    Ended,
}

/// What passed of the answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    picked: Picked,
    status: u16,
    scanner: Option<Scanner>,
    streamed: bool,
    first: bool,
    served: Option<String>,
    attempts: Option<u32>,
    withhold: Option<Withhold>,
}

impl Answer {
    pub(super) fn picked(&mut self) {
        self.picked = Picked::Yes;
    }

    pub(super) fn withhold(&mut self, withhold: bool) {
        self.withhold = withhold.then(Withhold::default);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.status != 0
    }

    /// Who answered, where Envoy says so: by its load balancer, or by its connection.
    pub(super) fn place(&mut self, metadata: Option<&proto::Metadata>, attributes: &HashMap<String, Struct>) {
        if self.served.is_some() && self.attempts.is_some() {
            return;
        }
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
        let is_answer = matches!(self.picked, Picked::Yes) && (200..300).contains(&self.status);
        self.scanner = format.filter(|_| is_answer).map(Scanner::new);
    }

    /// What is passed on of a chunk: all of it, but for an event that the client did not ask for.
    pub(super) fn pass(&mut self, chunk: &Bytes, end: bool) -> Bytes {
        match &mut self.withhold {
            Some(withhold) => withhold.pass(chunk, end),
            None => chunk.clone(),
        }
    }

    /// Reads a chunk. Says whether it was the first of a streamed answer.
    pub(super) fn chunk(&mut self, chunk: &[u8]) -> bool {
        if let Some(scanner) = &mut self.scanner {
            scanner.feed(chunk);
        }
        let is_first = self.streamed && !self.first && !chunk.is_empty() && self.scanner.is_some();
        self.first |= is_first;
        is_first
    }

    /// The end, if it was not told yet.
    pub(super) fn end(&mut self, end: End) -> Option<Ending> {
        let Picked::Yes = self.picked else { return None };
        self.picked = Picked::Ended;
        let usage = self.scanner.take().map(|scanner| scanner.usage()).unwrap_or_default();
        let served = self.served.take();
        Some(Ending { end, status: self.status, usage, served, attempts: self.attempts })
    }
}
