//! How operations go wrong, and the JSON for it.
//!
//! ```json
//! {"busy": true} {"busy_ms": 500}                  ranks refuse to flush, until this is lifted or for a time
//! {"no_effect": true}                              they say that they flushed, and keep everything
//! {"clear": "early|next_step|lost"}                how a flush is published: at once, with the next step, not at all
//! {"ranks": [1, 3]}                                all of that holds for these ranks only
//! {"answer": "hang"}                               nothing is done or said; done, and said, when this is lifted
//! {"answer": "late", "delay_ms": 500}              done at once, and said later; without a time when this is lifted
//! {"answer": "error"}                              nothing is done: 500, INTERNAL
//! {"answer": "broken|garbage"}                     done, and the connection ends without an answer, or with nonsense
//! {"verbs": ["flush"]}                             only these questions are answered so
//! {"ill": true}                                    the engine says that it is not well
//! ```
//!
//! Keys combine. A value replaces the one before it: `{}` lifts everything.

use serde::Deserialize;

/// How operations go from now on. The default is: rightly.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Conduct {
    /// Ranks refuse to flush, as if a request held blocks, until this is lifted.
    pub busy: bool,
    /// The same, for this many milliseconds.
    pub busy_ms: Option<u64>,
    /// Ranks say that they flushed, and keep everything.
    pub no_effect: bool,
    /// How a flush is published.
    pub clear: ClearEvent,
    /// The ranks that this holds for; all without.
    pub ranks: Option<Vec<u32>>,
    /// How questions are answered.
    pub answer: Reply,
    /// How late a late answer is, in milliseconds; when this is lifted without.
    pub delay_ms: Option<u64>,
    /// The questions that are answered so; all of an operator's without, nudges not among them.
    pub verbs: Option<Vec<Question>>,
    /// The engine says that it is not well.
    pub ill: bool,
}

/// How a flush is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClearEvent {
    /// As the engine does it: vLLM with the next step, others at once.
    #[default]
    Usual,
    /// At once, before the answer.
    Early,
    /// With the next step.
    NextStep,
    /// Not at all.
    Lost,
}

/// How a question is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// As the engine does it.
    #[default]
    Usual,
    /// Not at all, and nothing is done, until that is lifted.
    Hang,
    /// It is done at once, and said later.
    Late,
    /// With 500 or `INTERNAL`: nothing is done.
    Error,
    /// It is done, and the connection ends.
    Broken,
    /// It is done, and said in bytes that mean nothing.
    Garbage,
}

/// What operators ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// Forget what is cached.
    Flush,
    /// Begin to profile.
    StartProfile,
    /// End that.
    StopProfile,
    /// What are you?
    Info,
    /// How busy are you?
    Loads,
    /// Are you well?
    Health,
    /// A completion.
    Nudge,
}

impl Question {
    /// What a path or a method asks, if it is an operator's.
    pub(crate) fn of(path: &str) -> Option<Self> {
        // A method's path begins with its service.
        let method = path.rsplit('/').next().unwrap_or_default();
        Some(match (path, method) {
            ("/reset_prefix_cache" | "/flush_cache", _) | (_, "FlushCache") => Self::Flush,
            ("/start_profile", _) | (_, "StartProfile") => Self::StartProfile,
            ("/stop_profile", _) | (_, "StopProfile") => Self::StopProfile,
            ("/server_info" | "/get_server_info" | "/version", _) | (_, "GetServerInfo") => Self::Info,
            ("/load" | "/v1/loads" | "/get_load", _) | (_, "GetLoads") => Self::Loads,
            ("/health", _) | (_, "HealthCheck") => Self::Health,
            ("/v1/completions", _) => Self::Nudge,
            _ => return None,
        })
    }
}

impl Conduct {
    /// How this question is answered.
    pub(crate) fn reply(&self, question: Question) -> Reply {
        let concerned = match &self.verbs {
            Some(verbs) => verbs.contains(&question),
            None => question != Question::Nudge,
        };
        if concerned { self.answer } else { Reply::Usual }
    }

    /// Whether what is said of ranks holds for this one.
    pub(crate) fn concerns(&self, rank: u32) -> bool {
        self.ranks.as_ref().is_none_or(|ranks| ranks.contains(&rank))
    }
}
