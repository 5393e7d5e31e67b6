//! What keeps a stream's source from being heard, and when that began and ended.

use kvplane_core::Trouble;

use super::Stream;
use crate::chronicle::Said;
use crate::trouble::Reporter;

impl Stream {
    /// What keeps the source from being heard from now on; `None` once it is over.
    pub(crate) fn set_trouble(&self, trouble: Option<Trouble>) {
        self.note_trouble(Reporter::Source, trouble);
    }

    /// What the engine's word about itself leaves open from now on; `None` once nothing is.
    pub(crate) fn set_discovery_trouble(&self, trouble: Option<Trouble>) {
        self.note_trouble(Reporter::Discovery, trouble);
    }

    fn note_trouble(&self, reporter: Reporter, trouble: Option<Trouble>) {
        let mut inner = self.inner.lock();
        // A stream that is not recorded any more stays as it is.
        if inner.closed {
            return;
        }
        let before = inner.troubles.now();
        inner.troubles.set(reporter, trouble);
        let now = inner.troubles.now();
        // Under the lock, so that the last report is the current state.
        match (before, now) {
            _ if before == now => {}
            (_, Some(now)) => self.remark(Said::trouble(now)),
            (Some(over), None) => self.remark(Said::trouble_over(over)),
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use kvplane_core::{EngineId, StreamId};
    use kvplane_stream::{JournalOptions, Options};

    use super::*;
    use crate::chronicle::Mood;

    #[test]
    fn troubles_are_reported_when_they_begin_and_when_they_end() {
        let id = StreamId::new(EngineId::new("a"), 0);
        let stream = Stream::in_process(id, Options::default(), JournalOptions::default());
        stream.set_trouble(Some(Trouble::Unreached));
        stream.set_trouble(Some(Trouble::Unreached));
        stream.set_discovery_trouble(Some(Trouble::BlockSize)); // behind the other
        stream.set_trouble(None);
        stream.set_discovery_trouble(None);
        stream.feed(|_, _| panic!("a defect, on purpose"));
        stream.set_trouble(None);
        assert_eq!(stream.status().trouble, Some(Trouble::Defect), "it stays");
        let over = format!("resolved: {}", Trouble::BlockSize.words());
        let wanted = [
            (Mood::Bad, Trouble::Unreached.words()),
            (Mood::Bad, Trouble::BlockSize.words()),
            (Mood::Good, &over),
            (Mood::Bad, Trouble::Defect.words()),
        ];
        let remarks = stream.chronicle.after(0);
        let remarked: Vec<_> = remarks.iter().map(|remark| (remark.said.mood, &*remark.said.words)).collect();
        assert_eq!(remarked, wanted);
    }
}
