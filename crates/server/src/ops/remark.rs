//! Verdicts for people who look at the fleet.

use kvplane_ingest::{Mood, Said};
use kvplane_ops::VerbName;

use super::verdict::{Ruling, Verdict};

impl Ruling {
    /// What is said of the rank, if the verb changes anything.
    pub(super) fn said(&self, verb: VerbName) -> Option<Said> {
        let (topic, name) = topic_of(verb)?;
        let mood = match self.verdict {
            Verdict::Proven | Verdict::Done => Mood::Good,
            Verdict::Unsupported => Mood::Plain,
            Verdict::Refused | Verdict::Failed | Verdict::Timeout | Verdict::Unknown => Mood::Bad,
        };
        Some(Said::new(topic, mood, format!("{name}, {}: {}", self.verdict.as_str(), self.why)))
    }
}

/// What is said of a rank that was asked and whose verdict nobody waited for.
pub(super) fn left_alone(verb: VerbName) -> Option<Said> {
    let (topic, name) = topic_of(verb)?;
    let words = format!(
        "{name} requested: the caller disconnected before the verdict; the stream will show the result"
    );
    Some(Said::new(topic, Mood::Plain, words))
}

/// The topic and the name of what changes something.
fn topic_of(verb: VerbName) -> Option<(&'static str, &'static str)> {
    match verb {
        VerbName::Flush => Some(("flush", "flush")),
        VerbName::StartProfile => Some(("profile", "profile to be started")),
        VerbName::StopProfile => Some(("profile", "profile to be stopped")),
        VerbName::Info | VerbName::Loads | VerbName::Health | VerbName::Nudge => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_nothing_is_not_reported() {
        let ruling = |verdict| Ruling {
            verdict,
            why: "its stream shows the clear".to_owned(),
            reach: kvplane_stream::FlushReach::default(),
            may_still_complete: false,
        };
        for verb in VerbName::ALL {
            assert_eq!(ruling(Verdict::Done).said(verb).is_some(), verb.changes() && verb != VerbName::Nudge);
            assert_eq!(left_alone(verb).is_some(), verb.changes() && verb != VerbName::Nudge);
        }
        let said = ruling(Verdict::Proven).said(VerbName::Flush);
        let words = "flush, proven: its stream shows the clear";
        assert_eq!(said, Some(Said::new("flush", Mood::Good, words)));
        assert_eq!(
            ruling(Verdict::Refused).said(VerbName::StopProfile).map(|said| said.mood),
            Some(Mood::Bad)
        );
    }
}
