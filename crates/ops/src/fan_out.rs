//! Asking many backends: a bounded number at a time, each for itself.
//!
//! ```text
//!  targets ──> same server? one group ──> waiting ──> at most 32 tasks ──> answers, in the order in which they come
//! ```
//!
//! A task holds its place until its answer was taken, so that answers do not pile up. Tasks run by
//! themselves: their deadlines hold also while nobody takes answers.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use kvplane_transport::Sent;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use crate::answer::{Answer, Meaning};
use crate::asker::{Limits, ask_and_tell};
use crate::backend::Backend;
use crate::group::{Group, group};
use crate::verb::{Profile, Verb};

/// A backend was asked, and this came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked<T> {
    /// Everybody who is behind the backend: it was asked once for all of them.
    pub targets: Vec<T>,
    /// The how-manieth backend it was, from 0: [`ProfileId::of_backend`](crate::ProfileId::of_backend) has
    /// it.
    pub number: usize,
    /// What came of it.
    pub answer: Answer,
    /// How long it took.
    pub took: Duration,
}

/// What was left when asking ended early.
#[derive(Debug, Clone, PartialEq)]
pub struct Remainder<T> {
    /// Answers that had come, and that nobody had taken.
    pub answered: Vec<Asked<T>>,
    /// Asked, without an answer: the engine may still do it.
    pub sent: Vec<T>,
    /// Never asked. Nothing happened there.
    pub not_sent: Vec<T>,
}

/// Asks backends. A stream of answers; dropping it ends everything that is under way.
pub struct FanOut<T> {
    verb: Arc<Verb>,
    limits: Limits,
    waiting: VecDeque<Group<T>>,
    flights: HashMap<Id, Flight<T>>,
    tasks: JoinSet<(Answer, Duration)>,
    started: usize,
    before: Option<Before<T>>,
    again: Option<Again<T>>,
}

impl<T> std::fmt::Debug for FanOut<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("FanOut");
        shown.field("verb", &self.verb.name()).field("in_flight", &self.flights.len());
        shown.field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

type Before<T> = Box<dyn FnMut(&[T]) + Send>;
type Again<T> = Arc<dyn Fn(&[T]) + Send + Sync>;

struct Flight<T> {
    targets: Vec<T>,
    number: usize,
    sent: Sent,
}

impl<T: Clone + Send + Sync + 'static> FanOut<T> {
    /// Asks every backend once, whatever is behind it. Nothing happens before the first answer is waited for.
    pub fn new(targets: impl IntoIterator<Item = (T, Backend)>, verb: Verb, limits: Limits) -> Self {
        Self {
            verb: Arc::new(verb),
            limits,
            waiting: group(targets),
            flights: HashMap::new(),
            tasks: JoinSet::new(),
            started: 0,
            before: None,
            again: None,
        }
    }

    /// Calls `before` with everybody behind a backend, right before it is asked.
    #[must_use]
    pub fn before_each(mut self, before: impl FnMut(&[T]) + Send + 'static) -> Self {
        self.before = Some(Box::new(before));
        self
    }

    /// Calls `again` with everybody behind a backend, right before each attempt that follows something that
    /// the backend was asked before: its release, a way that it does not have, or the same while it was busy.
    #[must_use]
    pub fn before_again(mut self, again: impl Fn(&[T]) + Send + Sync + 'static) -> Self {
        self.again = Some(Arc::new(again));
        self
    }

    /// How many backends are still to be asked.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many backends are being asked, or have an answer that was not taken.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Ends it now. When this returns, nothing is sent any more.
    pub async fn cancel(mut self) -> Remainder<T> {
        let mut answered = Vec::new();
        while let Some(joined) = self.tasks.try_join_next_with_id() {
            answered.extend(self.landed(joined));
        }
        // Only when a task is over is it known whether it had sent something.
        self.tasks.shutdown().await;
        let (mut sent, mut not_sent) = (Vec::new(), Vec::new());
        for (_, flight) in self.flights.drain() {
            if flight.sent.get() { &mut sent } else { &mut not_sent }.extend(flight.targets);
        }
        not_sent.extend(self.waiting.into_iter().flat_map(|group| group.targets));
        Remainder { answered, sent, not_sent }
    }

    fn start(&mut self, group: Group<T>) {
        let Group { backend, targets } = group;
        if let Some(before) = &mut self.before {
            before(&targets);
        }
        let verb = match &*self.verb {
            // Recordings of backends that write to one folder need different names.
            Verb::StartProfile(profile) => Arc::new(Verb::StartProfile(Profile {
                id: profile.id.of_backend(self.started),
                ..profile.clone()
            })),
            _ => self.verb.clone(),
        };
        let number = self.started;
        self.started += 1;
        let (limits, sent) = (self.limits, Sent::default());
        let mark = sent.clone();
        let again = self.again.clone().map(|again| (again, targets.clone()));
        let task = self.tasks.spawn(async move {
            let began = Instant::now();
            let tell = || {
                if let Some((again, targets)) = &again {
                    again(targets);
                }
            };
            let answer = ask_and_tell(&backend, &verb, &limits, &mark, &tell).await;
            (answer, began.elapsed())
        });
        self.flights.insert(task.id(), Flight { targets, number, sent });
    }

    /// A task is over.
    fn landed(&mut self, joined: Result<(Id, (Answer, Duration)), JoinError>) -> Option<Asked<T>> {
        match joined {
            Ok((id, (answer, took))) => {
                let Flight { targets, number, .. } = self.flights.remove(&id)?;
                Some(Asked { targets, number, answer, took })
            }
            Err(error) => {
                let Flight { targets, number, sent } = self.flights.remove(&error.id())?;
                let answer = Answer {
                    meaning: Meaning::Failed,
                    why: "a defect of kvplane ended the question".to_owned(),
                    asked: None,
                    sent: sent.get(),
                    open: sent.get() && self.verb.name().changes(),
                    detail: None,
                };
                Some(Asked { targets, number, answer, took: Duration::ZERO })
            }
        }
    }
}

impl<T: Clone + Send + Sync + Unpin + 'static> Stream for FanOut<T> {
    type Item = Asked<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Asked<T>>> {
        loop {
            while self.flights.len() < self.limits.in_flight.max(1) {
                let Some(group) = self.waiting.pop_front() else { break };
                self.start(group);
            }
            match self.tasks.poll_join_next_with_id(context) {
                Poll::Ready(Some(joined)) => {
                    if let Some(asked) = self.landed(joined) {
                        return Poll::Ready(Some(asked));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
