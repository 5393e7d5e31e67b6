//! What is counted of operations, and the line that says who asked for what.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvplane_access::Caller;
use kvplane_ops::VerbName;
use tracing::info;

use super::report::{Outcome, RankName, Summary};
use super::verdict::Verdict;

/// Ranks that a line names; of the others it has the number.
const NAMED_MAX: usize = 16;
/// Characters of what a caller selected that a line shows.
const SELECTION_MAX: usize = 512;

/// How operations can end.
const ENDS: [&str; 4] = ["all", "partly", "none", "cancelled"];

/// What is counted over all operations.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    operations: [[AtomicU64; ENDS.len()]; VerbName::ALL.len()],
    ranks: [[AtomicU64; Verdict::ALL.len()]; VerbName::ALL.len()],
}

/// A verb, an outcome or a verdict, and how often.
pub(crate) type Counts = Vec<(&'static str, &'static str, u64)>;

impl Counters {
    /// Operations that ended, by verb and outcome.
    pub(crate) fn operations(&self) -> Counts {
        counts(&self.operations, ENDS)
    }

    /// Ranks, by verb and verdict.
    pub(crate) fn ranks(&self) -> Counts {
        counts(&self.ranks, Verdict::ALL.map(Verdict::as_str))
    }
}

fn counts<const N: usize>(
    counted: &[[AtomicU64; N]; VerbName::ALL.len()],
    names: [&'static str; N],
) -> Counts {
    let verbs = VerbName::ALL.into_iter().zip(counted);
    let all = verbs
        .flat_map(|(verb, row)| names.into_iter().zip(row).map(move |(name, count)| (verb, name, count)));
    let rows = all.map(|(verb, name, count)| (verb.as_str(), name, count.load(Ordering::Relaxed)));
    rows.filter(|(.., count)| *count > 0).collect()
}

/// Who asked for what.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) operation: String,
    pub(super) verb: VerbName,
    pub(super) caller: Option<Caller>,
    pub(super) selection: String,
    /// What the verb takes, as far as it was set.
    pub(super) options: String,
}

/// The verdicts of one operation so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    verdicts: [u32; Verdict::ALL.len()],
    /// Ranks that are neither proven nor done.
    bad: Named,
    /// Ranks that were asked, and of which nobody waited for the end.
    may_still_complete: Named,
    /// Ranks that were not asked because the caller had gone.
    not_asked: Named,
}

/// Some names, and how many more there are.
#[derive(Debug, Default)]
struct Named {
    names: Vec<String>,
    count: usize,
}

impl Named {
    fn add(&mut self, name: &RankName, what: &str) {
        self.count += 1;
        if self.names.len() < NAMED_MAX {
            self.names.push(format!("{}/{}{what}", name.engine, name.rank));
        }
    }

    fn shown(&self) -> String {
        match self.count - self.names.len() {
            0 => self.names.join(" "),
            more => format!("{} and {more} more", self.names.join(" ")),
        }
    }
}

impl Tally {
    pub(super) fn rule(&mut self, name: &RankName, verdict: Verdict) {
        self.verdicts[verdict as usize] += 1;
        if !verdict.is_good() {
            self.bad.add(name, &format!("={}", verdict.as_str()));
        }
    }

    pub(super) fn leave_open(&mut self, name: &RankName) {
        self.may_still_complete.add(name, "");
    }

    pub(super) fn leave_out(&mut self, name: &RankName) {
        self.not_asked.add(name, "");
    }

    pub(super) fn summary(&self, took: Duration) -> Summary {
        let verdicts = Verdict::ALL.into_iter().map(|verdict| (verdict, self.verdicts[verdict as usize]));
        let verdicts: BTreeMap<_, _> = verdicts
            .filter(|(_, count)| *count > 0)
            .map(|(verdict, count)| (verdict.as_str(), count))
            .collect();
        let good: u32 =
            Verdict::ALL.iter().filter(|verdict| verdict.is_good()).map(|v| self.verdicts[*v as usize]).sum();
        let outcome = match good {
            0 => Outcome::None,
            good if good == self.verdicts.iter().sum::<u32>() => Outcome::All,
            _ => Outcome::Partly,
        };
        Summary { verdicts, outcome, took }
    }

    /// Counts the operation and writes the line of it. Every operation has one, however it ended.
    pub(super) fn close(&self, order: &Order, cancelled: bool, took: Duration, counters: &Counters) {
        let summary = self.summary(took);
        let end = if cancelled { "cancelled" } else { summary.outcome.as_str() };
        let verb = VerbName::ALL.iter().position(|verb| *verb == order.verb).unwrap_or(0);
        if let Some(at) = ENDS.iter().position(|name| *name == end) {
            counters.operations[verb][at].fetch_add(1, Ordering::Relaxed);
        }
        for (verdict, count) in self.verdicts.iter().enumerate() {
            counters.ranks[verb][verdict].fetch_add(u64::from(*count), Ordering::Relaxed);
        }
        let verdicts: Vec<_> =
            summary.verdicts.iter().map(|(verdict, count)| format!("{verdict}={count}")).collect();
        let caller = order.caller.as_ref();
        let peer = caller
            .and_then(|caller| caller.peer)
            .map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
        info!(
            target: "kvplane::audit",
            operation = order.operation,
            verb = order.verb.as_str(),
            options = order.options,
            caller = caller.map_or("anyone", |caller| &*caller.name),
            proof = caller.map_or("nothing", |caller| caller.proof.as_str()),
            peer,
            selection = shortened(&order.selection),
            outcome = end,
            verdicts = verdicts.join(" "),
            not_good = self.bad.shown(),
            may_still_complete = self.may_still_complete.shown(),
            not_asked = self.not_asked.shown(),
            took_s = took.as_secs_f64(),
            "operation"
        );
    }
}

/// What callers write is cut short, and never breaks a line.
fn shortened(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(SELECTION_MAX).collect()
}
