//! One operation, from its plan to its summary.
//!
//! A listener may be slow: updates wait in an outbox, which holds no more than a few reports for
//! each rank, and the operation goes on. Above all a stream is fenced as soon as its engine has answered.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kvplane_access::Caller;
use kvplane_ingest::Engine;
use kvplane_ops::{Answer, Asked, FanOut, Limits, Meaning, Remainder, Verb, VerbName};
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tracing::warn;

use super::plan::{Bystanders, Target, TargetRank};
use super::proof::{Asking, At, Nudge, Proof, Proving, Watched};
use super::remark::left_alone;
use super::report::{Phase, Plan, RankReport, Update};
use super::tally::{Order, Tally};
use super::verdict::{RankPlace, Sight, Wanted, judge, may_have_happened, reports_success};
use super::{Operations, Request};

/// Of the servers that may be asked at a time, those that are nudged, where that is wanted.
const NUDGES: usize = 8;
/// How long a caller that does not read may keep an operation that is over, and its place among those at the
/// same time.
const READ_WITHIN: Duration = Duration::from_secs(30);

pub(super) async fn run(
    operations: Arc<Operations>,
    caller: Option<Caller>,
    request: Request,
    engines: Vec<Arc<Engine>>,
    updates: mpsc::Sender<Update>,
    place: Arc<OwnedSemaphorePermit>,
) {
    let verb = &request.verb;
    let (all, wanted) = (operations.plane.engines(), verb.clone());
    // Off the runtime's workers: it reads the files with the engines' keys.
    let planned = tokio::task::spawn_blocking(move || -> Arc<[Target]> {
        let bystanders = Bystanders::of(&engines, &all);
        engines.iter().map(|engine| Target::new(engine, &wanted, &bystanders)).collect()
    });
    // It fails only while the runtime shuts down, and then nobody is asked.
    let Ok(targets) = planned.await else { return };
    let mut limits = Limits::of(verb);
    limits.deadline = request.deadline.unwrap_or(limits.deadline);
    if request.nudge {
        limits.in_flight -= NUDGES;
    }
    let asking = Arc::new(Asking::default());
    let backends = targets.iter().enumerate();
    let backends: Vec<_> = backends
        .filter_map(|(number, target)| Some((number, target.backend.as_ref().ok()?.clone())))
        .collect();
    let fan_out = FanOut::new(backends, verb.clone(), limits).before_each({
        let (asking, targets) = (asking.clone(), targets.clone());
        let watch = verb.name() == VerbName::Flush;
        move |numbers| asking.begin(numbers, &targets, watch)
    });
    let fan_out = fan_out.before_again({
        let asking = asking.clone();
        move |numbers| asking.begin_again(numbers)
    });
    let plan = Plan {
        operation: request.id.to_string(),
        verb: verb.name().as_str(),
        ranks: targets.iter().flat_map(Target::planned).collect(),
        backends: fan_out.waiting(),
    };
    let ranks = plan.ranks.len();
    if request.dry_run {
        // The caller may have gone.
        let _ = updates.send(Update::Plan(plan)).await;
        return;
    }
    let (sender, proofs) = mpsc::channel(ranks.max(1));
    let order = Order {
        operation: request.id.to_string(),
        verb: verb.name(),
        caller,
        selection: request.selection.to_string(),
        options: request.options(),
    };
    let operation = Operation {
        wanted: Wanted {
            verb: verb.name(),
            all_tiers: matches!(verb, Verb::Flush(flush) if flush.reset_external),
        },
        request,
        targets,
        asking,
        outbox: VecDeque::from([Update::Plan(plan)]),
        sender,
        pending: HashMap::new(),
        tally: Tally::default(),
        began: Instant::now(),
        nudges: Arc::new(Semaphore::new(NUDGES)),
        place,
    };
    operation.run(&operations, &order, fan_out, proofs, &updates).await;
}

/// Hands out what is left, as long as the caller reads. A caller that stops learns from the missing summary
/// that this was not all.
async fn deliver(
    outbox: VecDeque<Update>,
    updates: &mpsc::Sender<Update>,
    operation: &str,
    within: Duration,
) {
    let left = outbox.len();
    for (sent, update) in outbox.into_iter().enumerate() {
        match updates.send_timeout(update, within).await {
            Ok(()) => {}
            Err(SendTimeoutError::Closed(_)) => return,
            Err(SendTimeoutError::Timeout(_)) => {
                warn!(operation, unread = left - sent, "caller stopped reading; result dropped");
                return;
            }
        }
    }
}

struct Operation {
    request: Request,
    wanted: Wanted,
    targets: Arc<[Target]>,
    asking: Arc<Asking>,
    /// Updates that are still to be sent.
    outbox: VecDeque<Update>,
    sender: mpsc::Sender<Proof>,
    /// Ranks whose streams are watched after their engine answered.
    pending: HashMap<At, Answered>,
    tally: Tally,
    began: Instant,
    nudges: Arc<Semaphore>,
    place: Arc<OwnedSemaphorePermit>,
}

/// What a rank's engine answered.
#[derive(Clone)]
struct Answered {
    asked: Arc<Asked<usize>>,
    /// It is the rank that answers for all, where one does.
    first: bool,
    /// The first rank of its server: what the server said of itself is reported once.
    has_detail: bool,
}

impl Operation {
    async fn run(
        mut self,
        operations: &Operations,
        order: &Order,
        mut fan_out: FanOut<usize>,
        mut proofs: mpsc::Receiver<Proof>,
        updates: &mpsc::Sender<Update>,
    ) {
        self.refuse_unreadable();
        let (asking, mut is_asking, mut is_listened_to) = (self.asking.clone(), true, true);
        let mut is_stopped = false;
        while is_listened_to && (is_asking || !self.pending.is_empty()) {
            tokio::select! {
                biased;
                () = updates.closed() => is_listened_to = false,
                () = operations.stop.cancelled() => (is_listened_to, is_stopped) = (false, true),
                asked = fan_out.next(), if is_asking => match asked {
                    Some(asked) => self.answered(asked),
                    None => is_asking = false,
                },
                Some(proof) = proofs.recv() => self.proven(proof),
                () = asking.news.notified() => self.tell_begun(),
                Ok(room) = updates.reserve(), if !self.outbox.is_empty() => {
                    if let Some(update) = self.outbox.pop_front() {
                        room.send(update);
                    }
                }
            }
        }
        if !is_listened_to {
            self.leave(fan_out.cancel().await);
        }
        let took = self.began.elapsed();
        self.tally.close(order, !is_listened_to, took, operations.counters());
        if is_stopped {
            // A listener learns from the missing summary that this was not the end of it.
            return;
        }
        self.outbox.push_back(Update::Summary(self.tally.summary(took)));
        // Nothing is awaited from here on but the caller, who may have stopped reading.
        let Self { outbox, sender, place, .. } = self;
        drop((proofs, sender));
        deliver(outbox, updates, &order.operation, READ_WITHIN).await;
        drop(place);
    }

    /// Engines whose key cannot be read are not asked.
    fn refuse_unreadable(&mut self) {
        for target in self.targets.clone().iter() {
            let Err(why) = &target.backend else { continue };
            let answer = Answer {
                meaning: Meaning::Failed,
                why: why.clone(),
                asked: None,
                sent: false,
                open: false,
                detail: None,
            };
            let asked = Asked { targets: Vec::new(), number: 0, answer, took: Duration::ZERO };
            let answered = Answered { asked: Arc::new(asked), first: false, has_detail: false };
            for rank in &target.ranks {
                let report = self.judged(rank, &answered, None, Duration::ZERO);
                self.tell(report);
            }
        }
    }

    fn tell(&mut self, report: RankReport) {
        self.outbox.push_back(Update::Rank(report));
    }

    fn tell_begun(&mut self) {
        let targets = self.targets.clone();
        for number in self.asking.begun() {
            for rank in targets.get(number).into_iter().flat_map(|target| &target.ranks) {
                self.tell(RankReport::new(rank.name.clone(), Phase::Asking));
            }
        }
    }

    /// A server answered: its ranks have their verdicts, or their streams are watched on.
    fn answered(&mut self, asked: Asked<usize>) {
        self.tell_begun();
        let asked = Arc::new(asked);
        let (wanted, first) = (self.wanted, self.first_of(&asked.targets));
        let targets = self.targets.clone();
        let behind: usize =
            asked.targets.iter().filter_map(|&number| targets.get(number)).map(Target::ranks_behind).sum();
        let is_open = |at: At| {
            let place = RankPlace { first: first == Some(at), alone: behind == 1 };
            wanted.verb == VerbName::Flush && may_have_happened(&asked.answer, place)
        };
        let (mut watched, mut has_detail) = (Vec::new(), true);
        for &number in &asked.targets {
            for watch in self.asking.take(number) {
                if is_open(watch.at) {
                    watched.push(watch);
                } else {
                    watch.refused();
                }
            }
            let Some(target) = targets.get(number) else { continue };
            for (at, rank) in target.ranks.iter().enumerate() {
                let at = (number, at);
                let answered = Answered { asked: asked.clone(), first: first == Some(at), has_detail };
                has_detail = false;
                if is_open(at) {
                    let mut report = self.described(rank, &answered, Phase::Proving);
                    report.why.clone_from(&asked.answer.why);
                    self.tell(report);
                    self.pending.insert(at, answered);
                } else {
                    let report = self.judged(rank, &answered, None, Duration::ZERO);
                    self.tell(report);
                }
            }
        }
        let said_yes = matches!(asked.answer.meaning, Meaning::Accepted { .. });
        self.prove(watched, said_yes);
    }

    /// The rank that a server's answer is about where it is one rank's. If several may be it, none is.
    fn first_of(&self, numbers: &[usize]) -> Option<At> {
        let mut first = None;
        for &number in numbers {
            for (at, rank) in self.targets.get(number)?.watched().enumerate() {
                if rank.name.rank == 0 && first.replace((number, at)).is_some() {
                    return None;
                }
            }
        }
        first
    }

    /// Watches on, whether anybody listens or not.
    fn prove(&self, watched: Vec<Watched>, said_yes: bool) {
        let Some(target) = watched.first().and_then(|watched| self.targets.get(watched.at.0)) else { return };
        let nudge = match &target.backend {
            Ok(backend) => {
                let model = target.ranks.first().map_or("", |rank| &rank.name.model);
                Nudge::new(backend, model, self.request.nudge, &self.nudges)
            }
            Err(_) => Nudge::Needless,
        };
        let proving = Proving {
            watched,
            timeout: self.request.proof_timeout,
            said_yes,
            nudge,
            sender: self.sender.clone(),
            place: self.place.clone(),
        };
        kvplane_runtime::spawn("prove a flush", proving.run());
    }

    fn proven(&mut self, proof: Proof) {
        let Proof { at, sight, took } = proof;
        let Some(answered) = self.pending.remove(&at) else { return };
        let targets = self.targets.clone();
        let Some(rank) = targets.get(at.0).and_then(|target| target.ranks.get(at.1)) else { return };
        let report = self.judged(rank, &answered, Some(&sight), took);
        self.tell(report);
    }

    fn judged(
        &mut self,
        rank: &TargetRank,
        answered: &Answered,
        sight: Option<&Sight>,
        took: Duration,
    ) -> RankReport {
        let ruling = judge(self.wanted, &answered.asked.answer, answered.first, sight);
        self.tally.rule(&rank.name, ruling.verdict);
        if let Some(said) = ruling.said(self.wanted.verb) {
            rank.stream.remark(said);
        }
        let mut report = self.described(rank, answered, Phase::Over);
        report.verdict = Some(ruling.verdict);
        report.why = ruling.why;
        report.reach = ruling.reach;
        report.may_still_complete = ruling.may_still_complete;
        report.proven_after = took;
        report
    }

    fn described(&self, rank: &TargetRank, answered: &Answered, phase: Phase) -> RankReport {
        let Asked { number, answer, took, .. } = &*answered.asked;
        let reported_success = reports_success(answer, answered.first);
        let profile_id = (self.wanted.verb == VerbName::StartProfile && reported_success)
            .then(|| self.request.id.of_backend(*number).to_string());
        RankReport {
            asked: answer.asked.clone().unwrap_or_default(),
            answered_after: *took,
            detail: answer.detail.clone().filter(|_| answered.has_detail),
            profile_id,
            reported_success,
            ..RankReport::new(rank.name.clone(), phase)
        }
    }

    /// Nobody listens any more. What was not asked is not asked; what was is watched to its end.
    fn leave(&mut self, remainder: Remainder<usize>) {
        let Remainder { answered, sent, not_sent } = remainder;
        for asked in answered {
            self.answered(asked);
        }
        let targets = self.targets.clone();
        for at in std::mem::take(&mut self.pending).into_keys() {
            if let Some(rank) = targets.get(at.0).and_then(|target| target.ranks.get(at.1)) {
                self.leave_open(rank);
            }
        }
        for number in sent {
            self.prove(self.asking.take(number), false);
            for rank in targets.get(number).into_iter().flat_map(|target| &target.ranks) {
                self.leave_open(rank);
            }
        }
        for number in not_sent {
            self.asking.take(number).into_iter().for_each(Watched::refused);
            for rank in targets.get(number).into_iter().flat_map(|target| &target.ranks) {
                self.tally.leave_out(&rank.name);
            }
        }
    }

    fn leave_open(&mut self, rank: &TargetRank) {
        self.tally.leave_open(&rank.name);
        if let Some(said) = left_alone(self.wanted.verb) {
            rank.stream.remark(said);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::report::RankName;

    fn rank(rank: u32) -> Update {
        let name = RankName { engine: "a".to_owned(), rank, model: String::new(), kind: "vllm" };
        Update::Rank(RankReport::new(Arc::new(name), Phase::Over))
    }

    #[tokio::test]
    async fn a_caller_that_stops_reading_does_not_keep_an_operation() {
        let (updates, mut listener) = mpsc::channel(1);
        let outbox = || VecDeque::from([rank(0), rank(1), rank(2)]);
        // Far above what it takes: only a hang reaches it.
        let deadline = Duration::from_secs(30);
        let stalled = deliver(outbox(), &updates, "o", Duration::from_millis(20));
        tokio::time::timeout(deadline, stalled).await.expect("it waits for ever");
        assert!(listener.recv().await.is_some() && listener.is_empty());
        // One that reads gets everything, however long it takes.
        let reading = async {
            for _ in 0..3 {
                assert!(listener.recv().await.is_some());
            }
        };
        tokio::join!(deliver(outbox(), &updates, "o", deadline), reading);
    }
}
