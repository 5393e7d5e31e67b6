//! What keeps a source from being heard, in stable words.
//!
//! A word holds until whoever said it takes it back. Two may speak of one stream: the source that carries its events, and
//! the discovery that asks the engine about itself. Neither takes back what the other said.

/// Nobody answers at the address where the events should come from.
pub(crate) const UNREACHED: &str = "unreached";
/// The engine has not said yet where it publishes.
pub(crate) const DISCOVERING: &str = "discovering";
/// The engine names no publisher for the rank, or cannot be asked for one.
pub(crate) const NO_SOURCES: &str = "no_sources";
/// The engine says that it publishes no events.
pub(crate) const EVENTS_DISABLED: &str = "events_disabled";
/// What the engine says of itself cannot be used.
pub(crate) const BAD_ANSWER: &str = "bad_answer";
/// The engine names one address for two ranks.
pub(crate) const SHARED_ADDRESS: &str = "shared_address";
/// The engine has another block size than the configured one.
pub(crate) const BLOCK_SIZE: &str = "block_size";
/// We failed on what the source said, and have stopped to record it.
pub(crate) const DEFECT: &str = "defect";

/// Who speaks of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Teller {
    /// Whoever carries its events.
    Source,
    /// Whoever asked the engine about itself.
    Discovery,
}

/// What keeps one stream's source from being heard, and how often each kind of it began.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    of_source: Option<&'static str>,
    of_discovery: Option<&'static str>,
    counted: Vec<(&'static str, u64)>,
}

impl Troubles {
    /// From now on this is so; `None` once it is over.
    pub(crate) fn set(&mut self, teller: Teller, trouble: Option<&'static str>) {
        let said = match teller {
            Teller::Source => &mut self.of_source,
            Teller::Discovery => &mut self.of_discovery,
        };
        if std::mem::replace(said, trouble) == trouble {
            return;
        }
        let Some(word) = trouble else { return };
        match self.counted.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += 1,
            None => self.counted.push((word, 1)),
        }
    }

    /// What is to be looked at first: without its source a stream has nothing at all.
    pub(crate) fn now(&self) -> Option<&'static str> {
        self.of_source.or(self.of_discovery)
    }

    /// How often each kind began.
    pub(crate) fn counted(&self) -> &[(&'static str, u64)] {
        &self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_back_what_another_said_and_beginnings_are_counted_once() {
        let mut troubles = Troubles::default();
        troubles.set(Teller::Discovery, Some(BLOCK_SIZE));
        troubles.set(Teller::Source, Some(UNREACHED));
        troubles.set(Teller::Source, Some(UNREACHED));
        assert_eq!(troubles.now(), Some(UNREACHED));
        troubles.set(Teller::Source, None);
        assert_eq!(troubles.now(), Some(BLOCK_SIZE));
        troubles.set(Teller::Source, Some(UNREACHED));
        troubles.set(Teller::Discovery, None);
        assert_eq!(troubles.now(), Some(UNREACHED));
        assert_eq!(troubles.counted(), [(BLOCK_SIZE, 1), (UNREACHED, 2)]);
    }
}
