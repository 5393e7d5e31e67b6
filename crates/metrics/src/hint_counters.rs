//! What is counted about hints: what was not taken, what could not be used, and how lookups went.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvplane_hints::ReasonCode;
use parking_lot::RwLock;

use crate::latencies::{Latencies, LatenciesRead};

/// A reason with a counter of its own.
pub trait Counted: Copy + Debug + 'static {
    /// Every reason, in the order of its numbers.
    const ALL: &'static [Self];
    /// Its number.
    fn index(self) -> usize;
    /// The name used in metrics.
    fn as_str(self) -> &'static str;
}

/// Reasons with their names in metrics.
macro_rules! counted {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl Counted for $name {
            const ALL: &'static [Self] = &[$(Self::$variant,)*];

            fn index(self) -> usize {
                self as usize
            }

            fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

counted! {
    /// Why a part of a report, or an event, changed nothing.
    Dropped {
        /// Prefixes without a scheme: hashes of different engines would be mixed.
        EmptyScheme = "empty_scheme",
        /// A chain with more hashes than counts, or the other way round.
        UnequalArrays = "unequal_arrays",
        /// An entry or an eviction without a hash.
        EmptyHash = "empty_hash",
        /// A hash that is wider than any hash is.
        WideHash = "wide_hash",
        /// Fewer than no tokens.
        NegativeCount = "negative_count",
        /// A rate that is no number: taken as 0.
        NotANumber = "not_a_number",
        /// A report or event without a replica.
        NoReplica = "no_replica",
        /// The tenant of probes.
        ReservedTenant = "reserved_tenant",
        /// Entries whose scheme or adapter has too long a name, or is one too many.
        Unnamed = "unnamed",
        /// The replica is an engine that is heard here, and speaks for itself.
        Heard = "heard",
        /// An event that says what reports say better.
        PrefixAdded = "prefix_added",
        /// An event of a type that nobody knows.
        UnknownEvent = "unknown_event",
    }
}

counted! {
    /// Why a lookup could not be used: it was answered with no hint.
    Unusable {
        /// It brings text, and there is no tokenizer.
        PromptText = "prompt_text_needs_tokenizer",
        /// It brings text that does not become ids: the template fails, or it takes too long.
        NotTokenized = "prompt_text_not_tokenized",
        /// A chain with more hashes than counts, or the other way round.
        UnequalArrays = "unequal_arrays",
        /// Fewer than no tokens in a block.
        NegativeCount = "negative_count",
        /// More tokens or blocks than a prompt has.
        TooLong = "too_long",
        /// Less than a block, in any size.
        TooShort = "too_short",
        /// It names no prompt at all.
        NoPrompt = "no_prompt",
    }
}

counted! {
    /// Why a call was refused, or ended.
    Refusal {
        /// A write of somebody who is not known.
        Forbidden = "forbidden",
        /// A message of too many bytes.
        Oversized = "oversized",
        /// A report of too many entries.
        TooManyEntries = "too_many_entries",
        /// Too many reports at the same time.
        TooManyReports = "too_many_reports",
        /// A report stream on which nothing came for too long.
        SilentReport = "silent_report",
        /// Too many names, or one that is too long.
        Names = "names",
        /// Too many listeners.
        TooManyListeners = "too_many_listeners",
        /// A listener that was too slow.
        SlowListener = "slow_listener",
    }
}

/// One counter a reason.
#[derive(Debug)]
pub struct ByReason<R: Counted> {
    counts: Box<[AtomicU64]>,
    reasons: &'static [R],
}

impl<R: Counted> Default for ByReason<R> {
    fn default() -> Self {
        Self { counts: R::ALL.iter().map(|_| AtomicU64::new(0)).collect(), reasons: R::ALL }
    }
}

impl<R: Counted> ByReason<R> {
    /// Counts one.
    pub fn count(&self, reason: R) {
        self.add(reason, 1);
    }

    /// Adds to the count.
    pub fn add(&self, reason: R, count: usize) {
        self.counts[reason.index()].fetch_add(count as u64, Ordering::Relaxed);
    }

    /// How often this one.
    pub fn of(&self, reason: R) -> u64 {
        self.counts[reason.index()].load(Ordering::Relaxed)
    }

    /// Every reason by its name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        self.reasons.iter().map(|reason| reason.as_str()).zip(counts)
    }
}

/// All counters.
#[derive(Debug, Default)]
pub struct Counters {
    /// Parts of reports and events that changed nothing.
    pub dropped: ByReason<Dropped>,
    /// Lookups that could not be used.
    pub unusable: ByReason<Unusable>,
    /// Calls that were refused or ended.
    pub refused: ByReason<Refusal>,
    /// Calls of the pages that a controller uses. Those of callers who may not are counted by the gate.
    pub snapshot_page: AtomicU64,
    /// … of the page of policies.
    pub policy_page: AtomicU64,
    /// … of the page of probes.
    pub probe_page: AtomicU64,
    /// How lookups went.
    pub lookups: Lookups,
}

/// Upper ends of the buckets of latency, in seconds: those of the peer's histogram.
const LATENCY_BOUNDS: [f64; 10] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1];

/// Models that have counters of their own. Callers choose names; metrics must not grow with them.
const MAX_MODELS: usize = 1024;
/// The model of all others in metrics.
const OTHER: &str = "other";

/// How lookups of one model went.
#[derive(Debug)]
pub struct OfModel {
    by_reason: [AtomicU64; ReasonCode::ALL.len()],
    took: Latencies,
}

impl Default for OfModel {
    fn default() -> Self {
        Self { by_reason: Default::default(), took: Latencies::new(&LATENCY_BOUNDS) }
    }
}

impl OfModel {
    fn record(&self, reason: ReasonCode, took: Duration) {
        let at = ReasonCode::ALL.iter().position(|code| *code == reason);
        if let Some(count) = at.and_then(|at| self.by_reason.get(at)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.took.record(took);
    }

    /// Lookups by reason code.
    pub fn by_reason(&self) -> impl Iterator<Item = (ReasonCode, u64)> {
        ReasonCode::ALL.into_iter().zip(self.by_reason.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// How long lookups took.
    pub fn took(&self) -> LatenciesRead {
        self.took.read()
    }
}

/// Lookups by model.
#[derive(Debug, Default)]
pub struct Lookups {
    known: RwLock<HashMap<Box<str>, Arc<OfModel>>>,
    other: OfModel,
}

impl Lookups {
    /// The model is known: it gets counters of its own, while there are some left.
    pub fn know(&self, model: &str) {
        if model.is_empty() || self.known.read().contains_key(model) {
            return;
        }
        let mut known = self.known.write();
        if known.len() < MAX_MODELS {
            known.entry(model.into()).or_default();
        }
    }

    /// A lookup was answered. Those of models that nobody knows are counted together.
    pub fn record(&self, model: &str, reason: ReasonCode, took: Duration) {
        if matches!(
            reason,
            ReasonCode::PrefixMatch
                | ReasonCode::TenantHot
                | ReasonCode::AffinityHint
                | ReasonCode::UnknownHashScheme
        ) {
            self.know(model);
        }
        match self.known.read().get(model) {
            Some(counters) => counters.record(reason, took),
            None => self.other.record(reason, took),
        }
    }

    /// The name that a model has in metrics.
    pub fn label<'m>(&self, model: &'m str) -> &'m str {
        if self.known.read().contains_key(model) { model } else { OTHER }
    }

    /// Every model with its counters, by name; the others last.
    pub fn each(&self, mut read: impl FnMut(&str, &OfModel) -> std::fmt::Result) -> std::fmt::Result {
        let mut known: Vec<_> =
            self.known.read().iter().map(|(model, counters)| (model.clone(), counters.clone())).collect();
        known.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (model, counters) in &known {
            read(model, counters)?;
        }
        read(OTHER, &self.other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_callers_do_not_become_metrics() {
        let lookups = Lookups::default();
        lookups.record("nobody-knows", ReasonCode::UnknownModel, Duration::from_micros(100));
        assert_eq!(lookups.label("nobody-knows"), OTHER);
        lookups.record("served", ReasonCode::PrefixMatch, Duration::from_millis(200));
        assert_eq!(lookups.label("served"), "served");
        for at in 0..2 * MAX_MODELS {
            lookups.know(&format!("model-{at}"));
        }
        let mut models = 0;
        lookups
            .each(|_, _| {
                models += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(models, MAX_MODELS + 1);
    }
}
