//! What an engine's operator has done to it, and how it takes that.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use super::conduct::{ClearEvent, Conduct, Question, Reply};

/// Questions and recordings that are remembered; enough for any scenario, bounded for long ones.
const REMEMBERED: usize = 1024;

/// Why a recording does not begin or end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProfileError {
    /// One is under way.
    #[error("Profiling is already in progress. Call /stop_profile first.")]
    Already,
    /// None is.
    #[error("Profiling is not in progress. Call /start_profile first.")]
    NotYet,
}

/// What an engine's servers share.
#[derive(Debug)]
pub(crate) struct Desk {
    standing: watch::Sender<Standing>,
    log: Mutex<Log>,
}

/// How operations go, and since when.
#[derive(Debug)]
struct Standing {
    conduct: Conduct,
    since: Instant,
}

impl Standing {
    fn is_busy(&self) -> bool {
        let Conduct { busy, busy_ms, .. } = &self.conduct;
        *busy || busy_ms.is_some_and(|millis| self.since.elapsed() < Duration::from_millis(millis))
    }
}

#[derive(Debug, Default)]
struct Log {
    asked: VecDeque<String>,
    /// The options of every recording.
    profiles: VecDeque<Value>,
    profiling: bool,
}

/// What a rank does with a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It refuses.
    Busy,
    /// It says that it did, and did not.
    Pretends,
    /// It does it, and tells it so.
    Does(ClearEvent),
}

impl Desk {
    pub(crate) fn new(conduct: Conduct) -> Self {
        let (standing, _) = watch::channel(Standing { conduct, since: kvplane_runtime::now() });
        Self { standing, log: Mutex::default() }
    }

    /// How operations go from now on.
    pub(crate) fn set(&self, conduct: Conduct) {
        self.standing.send_replace(Standing { conduct, since: kvplane_runtime::now() });
    }

    /// How a question is answered now.
    pub(crate) fn reply(&self, question: Question) -> Reply {
        self.standing.borrow().conduct.reply(question)
    }

    /// What a rank does with a flush now.
    pub(crate) fn manner(&self, rank: u32) -> Manner {
        let standing = self.standing.borrow();
        let conduct = &standing.conduct;
        if !conduct.concerns(rank) {
            Manner::Does(ClearEvent::Usual)
        } else if standing.is_busy() {
            Manner::Busy
        } else if conduct.no_effect {
            Manner::Pretends
        } else {
            Manner::Does(conduct.clear)
        }
    }

    /// Whether the engine says that it is well.
    pub(crate) fn is_well(&self) -> bool {
        !self.standing.borrow().conduct.ill
    }

    /// Waits until a question that is not answered would be.
    pub(crate) async fn lifted(&self, question: Question, reply: Reply) {
        let mut standing = self.standing.subscribe();
        // The sender is here: this ends when it is lifted, and not otherwise.
        let _ = standing.wait_for(|standing| standing.conduct.reply(question) != reply).await;
    }

    /// Waits until a late answer is due, or no answer is late any more.
    pub(crate) async fn due(&self, question: Question) {
        let delay = self.standing.borrow().conduct.delay_ms;
        match delay {
            Some(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
            None => self.lifted(question, Reply::Late).await,
        }
    }

    /// Remembers a question.
    pub(crate) fn note(&self, asked: String) {
        push(&mut self.log.lock().asked, asked);
    }

    /// Every question so far, the last ones at least: methods and paths.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.log.lock().asked.iter().cloned().collect()
    }

    /// Begins to profile.
    pub(crate) fn start_profile(&self, options: Value) -> Result<(), ProfileError> {
        let log = &mut *self.log.lock();
        if log.profiling {
            return Err(ProfileError::Already);
        }
        log.profiling = true;
        push(&mut log.profiles, options);
        Ok(())
    }

    /// Ends profiling.
    pub(crate) fn stop_profile(&self) -> Result<(), ProfileError> {
        let was = std::mem::take(&mut self.log.lock().profiling);
        if was { Ok(()) } else { Err(ProfileError::NotYet) }
    }

    /// The options of every recording so far, the last ones at least; and whether one is under way.
    pub(crate) fn profiles(&self) -> (Vec<Value>, bool) {
        let log = self.log.lock();
        (log.profiles.iter().cloned().collect(), log.profiling)
    }

    /// A new process records nothing.
    pub(crate) fn restarted(&self) {
        self.log.lock().profiling = false;
    }
}

fn push<T>(log: &mut VecDeque<T>, entry: T) {
    if log.len() == REMEMBERED {
        log.pop_front();
    }
    log.push_back(entry);
}
