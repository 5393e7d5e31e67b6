//! What a request has booked, and what has to be reported when it is over: on every path, by being dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use kvplane_inference::{Plane, Report, Usage};
use kvplane_transport::edge::Share;

use crate::fleet::State;
use crate::limits::Meter;
use crate::stats::{Ended, Stats};
use crate::trace::Spans;
use parking_lot::Mutex;

/// A pick for one attempt, with the endpoint that it is for. Dropped before an answer came: given up.
pub(crate) struct Booking {
    plane: Arc<dyn Plane>,
    state: Arc<State>,
    receipt: Option<String>,
    address: String,
    /// The engine chose the rank itself.
    any_rank: bool,
    /// What is cached of its prompt says another engine.
    prefilled: bool,
    first_byte_ms: Option<u64>,
    /// The endpoint's health has its outcome.
    reported: bool,
}

impl Booking {
    pub(crate) fn new(
        plane: Arc<dyn Plane>,
        state: Arc<State>,
        receipt: Option<String>,
        address: String,
    ) -> Self {
        state.in_flight.fetch_add(1, Ordering::Relaxed);
        let (any_rank, prefilled, reported) = (false, false, false);
        Self { plane, state, receipt, address, any_rank, prefilled, first_byte_ms: None, reported }
    }

    pub(crate) fn receipt(&self) -> Option<&str> {
        self.receipt.as_deref()
    }

    /// The endpoint answered, or it is at fault.
    pub(crate) fn tell(&mut self, tell: impl FnOnce(&State)) {
        self.reported = true;
        tell(&self.state);
    }

    /// The rank that was picked was refused, and the engine chose another.
    pub(crate) fn any_rank(&mut self) {
        self.any_rank = true;
    }

    /// Another engine computes its prompt.
    pub(crate) fn prefilled_elsewhere(&mut self) {
        self.prefilled = true;
    }

    pub(crate) fn first_byte(&mut self, after: std::time::Duration) {
        self.first_byte_ms = Some(after.as_millis() as u64);
        if let Some(receipt) = &self.receipt {
            self.plane.first_byte(receipt);
        }
    }

    /// The answer is complete.
    pub(crate) fn finish(mut self, finished: bool, usage: Usage) {
        let cached = usage.cached.filter(|_| !self.prefilled);
        let report = Report {
            finished,
            usage: Usage { cached, ..usage },
            served: Some(std::mem::take(&mut self.address)),
            // Another attempt has a booking of its own.
            attempts: Some(1),
            any_rank: self.any_rank,
            first_byte_ms: self.first_byte_ms,
        };
        if let Some(receipt) = self.receipt.take() {
            self.plane.ended(&receipt, report);
        }
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        self.state.in_flight.fetch_sub(1, Ordering::Relaxed);
        if !self.reported {
            self.state.with_health(crate::health::Health::given_up);
        }
        if let Some(receipt) = self.receipt.take() {
            self.plane.ended(&receipt, Report::default());
        }
    }
}

/// A request under way: counted from its head to the end of its answer.
pub(crate) struct Ticket {
    stats: Arc<Stats>,
    meter: Option<Arc<Mutex<Meter>>>,
    /// Its place among the requests of all.
    pub(crate) place: Option<Share>,
    pub(crate) begun: Instant,
    /// What it cost, once that is known; an estimate before.
    pub(crate) tokens: u64,
    pub(crate) line: Option<Box<Line>>,
    pub(crate) spans: Option<Box<Spans>>,
}

/// What the access log says of a request.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) id: String,
    pub(crate) api: &'static str,
    pub(crate) caller: Arc<str>,
    pub(crate) model: String,
    pub(crate) engine: String,
    pub(crate) receipt: String,
    pub(crate) status: u16,
    pub(crate) attempts: u32,
    pub(crate) queue_us: u64,
    pub(crate) first_ms: Option<u64>,
    pub(crate) usage: Usage,
    pub(crate) ended: Option<&'static str>,
}

impl Ticket {
    pub(crate) fn new(stats: Arc<Stats>, begun: Instant) -> Self {
        stats.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { stats, meter: None, place: None, begun, tokens: 0, line: None, spans: None }
    }

    /// What it costs is counted for its caller.
    pub(crate) fn meter(&mut self, meter: Arc<Mutex<Meter>>) {
        self.meter = Some(meter);
    }

    /// The client is answered with this status.
    pub(crate) fn answered(&mut self, status: u16) {
        if let Some(line) = &mut self.line {
            line.status = status;
        }
        if let Some(spans) = &mut self.spans {
            spans.status = status;
        }
    }

    pub(crate) fn of_model(&mut self, model: &str) {
        if let Some(line) = &mut self.line {
            model.clone_into(&mut line.model);
        }
        if let Some(spans) = &mut self.spans {
            model.clone_into(&mut spans.model);
        }
    }

    /// The first byte of the answer came.
    pub(crate) fn first_byte(&mut self, at: Instant) {
        if let Some(line) = &mut self.line {
            line.first_ms = Some(at.duration_since(self.begun).as_millis() as u64);
        }
        if let Some(spans) = &mut self.spans {
            spans.first = Some(at);
        }
    }

    /// The answer ended this way.
    pub(crate) fn ended(&mut self, ended: Ended, usage: Usage) {
        self.stats.ended(ended);
        if let Some(prompt) = usage.prompt {
            // An engine may say anything.
            self.tokens = prompt.saturating_add(usage.output.unwrap_or(0));
        }
        if let Some(line) = &mut self.line {
            line.ended = Some(ended.as_str());
            line.usage = usage;
        }
        if let Some(spans) = &mut self.spans {
            spans.ended = Some(ended.as_str());
            spans.usage = usage;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.stats.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(meter) = self.meter.take() {
            meter.lock().leave(self.tokens);
        }
        if let Some(spans) = self.spans.take() {
            spans.end();
        }
        let Some(line) = self.line.take() else { return };
        let Line {
            id,
            api,
            caller,
            model,
            engine,
            receipt,
            status,
            attempts,
            queue_us,
            first_ms,
            usage,
            ended,
        } = *line;
        tracing::info!(
            id,
            api,
            caller = &*caller,
            model,
            engine,
            receipt,
            status,
            attempts,
            queue_us,
            first_ms,
            prompt_tokens = usage.prompt,
            cached_tokens = usage.cached,
            output_tokens = usage.output,
            took_ms = self.begun.elapsed().as_millis() as u64,
            ended = ended.unwrap_or("unanswered"),
            "request"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_may_say_any_number() {
        let mut ticket = Ticket::new(Arc::default(), kvplane_runtime::now());
        let usage = Usage { prompt: Some(u64::MAX), cached: Some(u64::MAX), output: Some(u64::MAX) };
        ticket.ended(Ended::Finished, usage);
        assert_eq!(ticket.tokens, u64::MAX);
    }
}
