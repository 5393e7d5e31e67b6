//! What is to be said to a server about one replica, and what comes next. No IO: calls are handed out, and
//! their ends are reported.
//!
//! For every prefix there is where the replica holds it (*wanted*) and what the server believes (*reported*).
//! Where they differ, a call is due; one that failed leaves `Perhaps`, which differs from everything. So
//! nothing is lost by a failure, and nothing is a log.
//!
//! ```text
//! nothing is vouched for ──> ALL_CLEARED, alone ──┐
//!                                                 v
//! window over, or enough ──> cycle: adds, one call after the other ──> evictions, several at a time ──> next cycle
//! ```
//!
//! A cycle takes what was due when it began. So no eviction goes before the adds that came before it, and no
//! two calls about a prefix are ever under way.

mod adapters;
mod holdings;
mod lap;
mod late;
mod queue;
#[cfg(test)]
mod tests;
mod words;

use std::time::Duration;

use kvplane_core::Backoff;
use kvplane_hints::{CacheTier, Note, Prefix, Stats};

use adapters::NO_ADAPTER;
use holdings::{Holdings, Queued, Reported, SlotId};
use lap::Lap;
use late::Late;
use queue::{Queue, is_live};
use words::Issued;
pub use words::{Add, Call, Next, OutboxCounts, OutboxOptions, Outcome, Pending, Saying, Ticket};

/// After a failed call nothing is tried for this long at first, and at most.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// An entry takes at most this many bytes on the wire, besides its adapter's name.
const ENTRY_BYTES: usize = 32;

/// What a cycle still has to take from the queues.
#[derive(Debug, Clone, Copy)]
struct Cycle {
    adds: usize,
    evictions: usize,
}

/// What is to be said about one replica.
#[derive(Debug)]
pub struct Outbox {
    options: OutboxOptions,
    holdings: Holdings,
    adds: Queue,
    evictions: Queue,
    next_entry: u32,
    /// Changes when everything that was known is void: calls of an earlier life say nothing about what is
    /// known now.
    life: u32,
    link: LinkState,
    clear: bool,
    in_flight: usize,
    adds_in_flight: bool,
    stats: StatsState,
    cycle: Option<Cycle>,
    waiting_since: Option<Duration>,
    pause: Backoff,
    paused_until: Duration,
    lap: Lap,
    late: Late,
    closing: bool,
    counts: OutboxCounts,
}

/// How the way to the server is.
#[derive(Debug, Default)]
struct LinkState {
    /// Of the latest connection.
    number: u32,
    up: bool,
}

/// What the replica said of itself, and whether the server knows.
#[derive(Debug, Default)]
struct StatsState {
    latest: Option<Stats>,
    due: bool,
    in_flight: bool,
}

impl Outbox {
    /// A replica of which nothing is known. The server may remember an earlier life of it: everything is
    /// cleared first.
    ///
    /// A call without an answer may still be applied for as long as `grace` after it was given up.
    pub fn new(options: OutboxOptions, grace: Duration) -> Self {
        Self {
            options,
            holdings: Holdings::default(),
            adds: Queue::default(),
            evictions: Queue::default(),
            next_entry: 0,
            life: 0,
            link: LinkState::default(),
            clear: true,
            in_flight: 0,
            adds_in_flight: false,
            stats: StatsState::default(),
            cycle: None,
            waiting_since: None,
            pause: Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE),
            paused_until: Duration::ZERO,
            lap: Lap::default(),
            late: Late::new(grace),
            closing: false,
            counts: OutboxCounts::default(),
        }
    }

    /// What happened so far.
    pub fn counts(&self) -> OutboxCounts {
        self.counts
    }

    /// What waits.
    pub fn pending(&self) -> Pending {
        Pending {
            adds: self.adds.live(),
            evictions: self.evictions.live(),
            clear: self.clear,
            maybe_reported: self.holdings.maybe_reported(),
        }
    }

    /// Everything was reported, as far as is known.
    pub fn is_settled(&self) -> bool {
        !self.clear
            && self.in_flight == 0
            && self.adds.live() == 0
            && self.evictions.live() == 0
            && !self.stats.due
            && !self.stats.in_flight
    }

    /// What changed for the replica. Returns whether there is now something to do earlier than there was.
    pub fn note(&mut self, notes: &[Note], now: Duration) -> bool {
        let waited = self.waiting_since.is_some() && self.adds.live() < self.options.max_batch;
        for note in notes {
            match note {
                Note::Held(prefix) => self.held(prefix, now),
                Note::Gone { fingerprint, adapter } => {
                    if let Some(id) = self.holdings.find(*fingerprint, adapter) {
                        self.holdings.slot_mut(id).wanted = None;
                        self.settle(id, now);
                    }
                }
                Note::Nothing => self.nothing(),
            }
        }
        if self.cycle.is_none() {
            self.adds.tidy(&self.holdings, Queued::Add);
            self.evictions.tidy(&self.holdings, Queued::Eviction);
        }
        if self.evictions.live() > self.options.max_evictions {
            self.collapse(now);
        }
        !waited || self.clear || self.adds.live() >= self.options.max_batch
    }

    /// What the replica says of itself now.
    pub fn set_stats(&mut self, stats: Stats) {
        self.stats.latest = Some(stats);
        self.stats.due = true;
    }

    /// There is a new connection. It may be to another server, which knows nothing: everything held is
    /// reported again.
    pub fn connected(&mut self, now: Duration) {
        self.counts.resyncs += u64::from(self.link.number > 0);
        self.link.number += 1;
        self.link.up = true;
        self.cycle = None;
        self.pause.reset();
        self.paused_until = now;
        self.lap.walked = now;
        self.stats.due = self.stats.latest.is_some();
        for id in 0..self.holdings.len() as SlotId {
            self.doubt(id, now);
        }
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.link.up = false;
        self.cycle = None;
    }

    /// Nothing more will be noted: what waits is reported at once.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// What comes next. To be asked again after every call that it hands out, and whenever something
    /// happened.
    pub fn next(&mut self, now: Duration) -> Next {
        if !self.link.up {
            return Next::Wait(None);
        }
        if now < self.paused_until {
            return Next::Wait(Some(self.paused_until));
        }
        if self.clear {
            return if self.in_flight == 0 && !self.stats.in_flight {
                self.clear = false;
                self.issue(Saying::Clear, Issued::Clear)
            } else {
                Next::Wait(None)
            };
        }
        if let Some(stats) = self.stats.latest
            && self.stats.due
            && !self.stats.in_flight
            && !self.is_clearing()
        {
            self.stats.due = false;
            return self.issue(Saying::Stats(stats), Issued::Stats);
        }
        self.walk(now);
        self.tell_late(now);
        if self.cycle.is_none()
            && let Some(wait) = self.begin(now)
        {
            return wait;
        }
        self.go_on(now)
    }

    /// A call has ended.
    pub fn done(&mut self, ticket: Ticket, outcome: Outcome, now: Duration) {
        let Ticket { link, life, issued } = ticket;
        // An answer of a server that may be gone by now says nothing about this one.
        let answered = outcome != Outcome::Unanswered;
        let outcome = if link == self.link.number || !answered { outcome } else { Outcome::Failed };
        let ours = life == self.life;
        let failed = match &issued {
            // Of an add that is refused nothing false follows: it waits for its refresh, and holds up no
            // eviction.
            Issued::Adds(_) => matches!(outcome, Outcome::Failed | Outcome::Unanswered),
            _ => outcome != Outcome::Taken,
        };
        if matches!(issued, Issued::Stats) {
            // The next ones are about to come; until then nothing else waits for them.
            self.stats.in_flight = false;
            return;
        }
        if !answered {
            self.late.until = now + self.late.grace;
        }
        self.in_flight -= 1;
        match issued {
            Issued::Clear => self.cleared(failed, now),
            Issued::Adds(adds) => {
                self.adds_in_flight = false;
                match outcome {
                    Outcome::Taken => self.counts.reported_blocks += adds.len() as u64,
                    Outcome::Refused => self.counts.refused_blocks += adds.len() as u64,
                    Outcome::Failed | Outcome::Unanswered => {}
                }
                for (id, tier) in adds.into_iter().filter(|_| ours) {
                    self.holdings.slot_mut(id).in_flight = false;
                    self.holdings
                        .set_reported(id, if failed { Reported::Perhaps } else { Reported::At(tier) });
                    if !answered {
                        self.is_late(id, now);
                    }
                    self.settle(id, now);
                }
            }
            Issued::Eviction { id, fingerprint, adapter } => {
                self.counts.evicted_blocks += u64::from(!failed);
                if ours {
                    self.holdings.slot_mut(id).in_flight = false;
                    self.holdings.set_reported(id, if failed { Reported::Perhaps } else { Reported::Absent });
                    if !answered {
                        self.is_late(id, now);
                    }
                    self.settle(id, now);
                    self.evicted_elsewhere(fingerprint, adapter, answered, now);
                }
            }
            Issued::Stats => {}
        }
        if failed {
            self.counts.retries += 1;
        }
        if failed && link == self.link.number {
            self.cycle = None;
            if self.adds.live() + self.evictions.live() > 0 {
                self.waiting_since.get_or_insert(now);
            }
            // Several evictions of a cycle fail together: that is one failure.
            if now >= self.paused_until {
                self.paused_until = now + self.pause.wait();
            }
        } else if !failed {
            self.pause.reset();
        }
    }
}

impl Outbox {
    fn held(&mut self, prefix: &Prefix, now: Duration) {
        let id = self.holdings.find_or_add(prefix.fingerprint, &prefix.adapter);
        let slot = self.holdings.slot_mut(id);
        slot.wanted = Some(prefix.tier);
        // What was not sure may be long forgotten.
        let other = slot.tokens != prefix.tokens || prefix.sure && !slot.sure;
        slot.sure = prefix.sure;
        slot.tokens = prefix.tokens;
        if other && matches!(slot.reported, Reported::At(_)) {
            self.holdings.set_reported(id, Reported::Perhaps);
        }
        self.settle(id, now);
    }

    /// Everything that waits is superseded. What is under way is waited for.
    fn nothing(&mut self) {
        // A server that holds nothing needs no clear.
        self.clear |= self.holdings.maybe_reported() > 0 || self.late.next().is_some();
        self.holdings = Holdings::default();
        self.adds.clear();
        self.evictions.clear();
        self.waiting_since = None;
        self.cycle = None;
        self.lap.at = 0;
        self.late.clear();
        self.life += 1;
    }

    /// Begins again with a clear, which takes one call where evictions take one each.
    fn collapse(&mut self, now: Duration) {
        self.counts.collapses += 1;
        self.clear = true;
        self.life += 1;
        self.cycle = None;
        self.adds.clear();
        self.evictions.clear();
        self.late.clear();
        for id in 0..self.holdings.len() as SlotId {
            if self.holdings.slot(id).is_used() {
                let slot = self.holdings.slot_mut(id);
                slot.in_flight = false;
                slot.late = 0;
                // What is reported only once is not reported after a clear.
                slot.wanted = slot.wanted.filter(|_| slot.sure);
                slot.queued = Queued::No;
                self.holdings.set_reported(id, Reported::Absent);
                self.settle(id, now);
            }
        }
    }

    /// A clear is under way: it is alone, and it is the only call that waits for no cycle.
    fn is_clearing(&self) -> bool {
        self.in_flight > 0 && self.cycle.is_none()
    }

    fn cleared(&mut self, failed: bool, now: Duration) {
        if failed {
            self.clear = true;
        } else {
            self.counts.clears += 1;
            // The server has dropped them too.
            self.stats.due = self.stats.latest.is_some();
            if now < self.late.until {
                // An earlier call may still be applied. Until then nothing is reported, and then it is
                // cleared again.
                self.clear = true;
                self.paused_until = self.late.until;
            }
        }
    }

    /// The server takes an eviction without an adapter for all of them: what others hold must be reported
    /// again.
    fn evicted_elsewhere(&mut self, fingerprint: u64, adapter: u32, answered: bool, now: Duration) {
        if adapter != NO_ADAPTER {
            return;
        }
        for other in self.holdings.of_other_adapters(fingerprint, adapter) {
            if !answered {
                self.is_late(other, now);
            }
            self.doubt(other, now);
        }
    }

    /// The server may have forgotten what it took. What is reported only once is not reported again.
    fn doubt(&mut self, id: SlotId, now: Duration) {
        let slot = self.holdings.slot(id);
        if matches!(slot.reported, Reported::At(_)) && (slot.sure || slot.wanted.is_none()) {
            self.holdings.set_reported(id, Reported::Perhaps);
            self.settle(id, now);
        }
    }

    /// Puts a prefix where it belongs: into a queue, out of it, or away.
    fn settle(&mut self, id: SlotId, now: Duration) {
        let slot = self.holdings.slot(id);
        if slot.in_flight {
            return;
        }
        let due = match (slot.wanted, slot.reported) {
            (Some(wanted), Reported::At(reported)) if wanted == reported && !slot.refreshed => Queued::No,
            (Some(_), _) => Queued::Add,
            (None, Reported::Absent) => Queued::No,
            (None, _) => Queued::Eviction,
        };
        self.queue(id, due, now);
        if !self.holdings.slot(id).is_used() {
            self.holdings.free(id);
        }
    }

    fn queue(&mut self, id: SlotId, due: Queued, now: Duration) {
        let entry = self.next_entry;
        let slot = self.holdings.slot_mut(id);
        if slot.queued == due {
            return;
        }
        match slot.queued {
            Queued::No => {}
            Queued::Add => self.adds.left(),
            Queued::Eviction => self.evictions.left(),
        }
        slot.queued = due;
        slot.refreshed = false;
        match due {
            Queued::No => return,
            Queued::Add => self.adds.push(id, entry),
            Queued::Eviction => self.evictions.push(id, entry),
        }
        slot.entry = entry;
        self.next_entry = entry.wrapping_add(1);
        self.waiting_since.get_or_insert(now);
    }

    /// Begins a cycle, or says until when there is none.
    fn begin(&mut self, now: Duration) -> Option<Next> {
        if self.in_flight > 0 {
            // A clear, or the last calls of a cycle that failed.
            return Some(Next::Wait(None));
        }
        let walk = (self.holdings.len() > 0).then(|| self.lap.walked + self.refresh_step());
        let walk = walk.into_iter().chain(self.late.next()).min();
        let Some(since) = self.waiting_since.filter(|_| self.adds.live() + self.evictions.live() > 0) else {
            self.waiting_since = None;
            return Some(Next::Wait(walk));
        };
        let due = since + self.options.window;
        if now < due && self.adds.live() < self.options.max_batch && !self.closing {
            return Some(Next::Wait(Some(walk.map_or(due, |walk| walk.min(due)))));
        }
        self.waiting_since = None;
        self.cycle = Some(Cycle { adds: self.adds.len(), evictions: self.evictions.len() });
        None
    }

    /// The next call of the cycle.
    fn go_on(&mut self, now: Duration) -> Next {
        let Some(mut cycle) = self.cycle else { return Next::Wait(None) };
        if self.adds_in_flight {
            return Next::Wait(None);
        }
        if cycle.adds > 0 {
            let (adds, issued) = self.take_adds(&mut cycle);
            self.cycle = Some(cycle);
            if !adds.is_empty() {
                self.adds_in_flight = true;
                return self.issue(Saying::Adds(adds), Issued::Adds(issued));
            }
        }
        while cycle.evictions > 0 && self.in_flight < self.options.concurrency {
            let Some((id, entry)) = self.evictions.front() else { break };
            self.evictions.pop();
            cycle.evictions -= 1;
            self.cycle = Some(cycle);
            if is_live(&self.holdings, id, entry, Queued::Eviction) {
                self.evictions.left();
                let slot = self.holdings.slot_mut(id);
                slot.queued = Queued::No;
                slot.in_flight = true;
                let (fingerprint, adapter) = (slot.fingerprint, slot.adapter);
                let saying =
                    Saying::Eviction { fingerprint, adapter: self.holdings.adapter(adapter).clone() };
                return self.issue(saying, Issued::Eviction { id, fingerprint, adapter });
            }
        }
        if self.in_flight > 0 {
            return Next::Wait(None);
        }
        self.cycle = None;
        self.begin(now).unwrap_or_else(|| self.go_on(now))
    }

    /// As many adds of the cycle as fit into one message.
    fn take_adds(&mut self, cycle: &mut Cycle) -> (Vec<Add>, Vec<(SlotId, CacheTier)>) {
        let room = cycle.adds.min(self.options.max_batch);
        let (mut adds, mut issued) = (Vec::with_capacity(room), Vec::with_capacity(room));
        let mut bytes = 0;
        while cycle.adds > 0 && adds.len() < self.options.max_batch {
            let Some((id, entry)) = self.adds.front() else { break };
            let live = is_live(&self.holdings, id, entry, Queued::Add);
            if live {
                let adapter = self.holdings.adapter(self.holdings.slot(id).adapter);
                bytes += ENTRY_BYTES + adapter.len();
                if bytes > self.options.max_message && !adds.is_empty() {
                    break;
                }
            }
            self.adds.pop();
            cycle.adds -= 1;
            if !live {
                continue;
            }
            self.adds.left();
            let slot = self.holdings.slot_mut(id);
            slot.queued = Queued::No;
            let Some(tier) = slot.wanted else { continue };
            slot.in_flight = true;
            self.counts.refreshed_blocks += u64::from(std::mem::take(&mut slot.refreshed));
            let (fingerprint, tokens, adapter) = (slot.fingerprint, slot.tokens, slot.adapter);
            // From here on the server may hold it.
            self.holdings.set_reported(id, Reported::Perhaps);
            adds.push(Add { fingerprint, tokens, tier, adapter: self.holdings.adapter(adapter).clone() });
            issued.push((id, tier));
        }
        (adds, issued)
    }

    fn issue(&mut self, saying: Saying, issued: Issued) -> Next {
        match issued {
            Issued::Stats => self.stats.in_flight = true,
            _ => self.in_flight += 1,
        }
        let ticket = Ticket { link: self.link.number, life: self.life, issued };
        Next::Call(Call { saying, ticket })
    }
}
