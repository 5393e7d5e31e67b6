//! What keeps a stream's source from being heard, and when that began and ended.

use super::Stream;
use crate::chronicle::Said;
use crate::trouble::Teller;

impl Stream {
    /// What keeps the source from being heard from now on; `None` once it is over.
    pub(crate) fn set_trouble(&self, trouble: Option<&'static str>) {
        self.note_trouble(Teller::Source, trouble);
    }

    /// What the engine's word about itself leaves open from now on; `None` once nothing is.
    pub(crate) fn set_discovery_trouble(&self, trouble: Option<&'static str>) {
        self.note_trouble(Teller::Discovery, trouble);
    }

    fn note_trouble(&self, teller: Teller, trouble: Option<&'static str>) {
        let mut inner = self.inner.lock();
        // A stream that is not recorded any more stays as it is.
        if inner.closed {
            return;
        }
        let before = inner.troubles.now();
        inner.troubles.set(teller, trouble);
        let now = inner.troubles.now();
        // Under the lock, so that what is told last is what is so.
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
    use crate::trouble::{BLOCK_SIZE, DEFECT, UNREACHED, trouble_words};

    #[test]
    fn troubles_are_told_when_they_begin_and_when_they_end() {
        let id = StreamId::new(EngineId::new("a"), 0);
        let stream = Stream::in_process(id, Options::default(), JournalOptions::default());
        stream.set_trouble(Some(UNREACHED));
        stream.set_trouble(Some(UNREACHED));
        stream.set_discovery_trouble(Some(BLOCK_SIZE)); // behind the other
        stream.set_trouble(None);
        stream.set_discovery_trouble(None);
        stream.feed(|_, _| panic!("a defect, on purpose"));
        stream.set_trouble(None);
        assert_eq!(stream.status().trouble, Some(DEFECT), "it stays");
        let over = format!("no longer so: {}", trouble_words(BLOCK_SIZE));
        let wanted = [
            (Mood::Bad, trouble_words(UNREACHED)),
            (Mood::Bad, trouble_words(BLOCK_SIZE)),
            (Mood::Good, &over),
            (Mood::Bad, trouble_words(DEFECT)),
        ];
        let remarks = stream.chronicle.after(0);
        let told: Vec<_> = remarks.iter().map(|remark| (remark.said.mood, &*remark.said.words)).collect();
        assert_eq!(told, wanted);
    }
}
