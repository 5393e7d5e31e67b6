//! The troubles of one stream.
//!
//! Two parties may report one: the source that carries its events, and the discovery that asks the engine
//! about itself. Each ends only what it reported.

use kvplane_core::Trouble;

/// Who reports a trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reporter {
    /// The source of the stream's events.
    Source,
    /// The task that asks the engine where it publishes.
    Discovery,
}

/// The current troubles of one stream, and how often each began.
#[derive(Debug, Default)]
pub(crate) struct Troubles {
    of_source: Option<Trouble>,
    of_discovery: Option<Trouble>,
    counted: Vec<(Trouble, u64)>,
}

impl Troubles {
    /// Sets what is wrong from now on; `None` once it is over.
    pub(crate) fn set(&mut self, reporter: Reporter, trouble: Option<Trouble>) {
        let reported = match reporter {
            Reporter::Source => &mut self.of_source,
            Reporter::Discovery => &mut self.of_discovery,
        };
        if std::mem::replace(reported, trouble) == trouble {
            return;
        }
        let Some(began) = trouble else { return };
        match self.counted.iter_mut().find(|(known, _)| *known == began) {
            Some((_, count)) => *count += 1,
            None => self.counted.push((began, 1)),
        }
    }

    /// What to look at first: the source's, since without it the stream has nothing at all.
    pub(crate) fn now(&self) -> Option<Trouble> {
        self.of_source.or(self.of_discovery)
    }

    /// How often each kind began.
    pub(crate) fn counted(&self) -> &[(Trouble, u64)] {
        &self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Trouble::{BlockSize, Unreached};

    #[test]
    fn each_reporter_ends_only_its_own_and_beginnings_are_counted_once() {
        let mut troubles = Troubles::default();
        troubles.set(Reporter::Discovery, Some(BlockSize));
        troubles.set(Reporter::Source, Some(Unreached));
        troubles.set(Reporter::Source, Some(Unreached));
        assert_eq!(troubles.now(), Some(Unreached));
        troubles.set(Reporter::Source, None);
        assert_eq!(troubles.now(), Some(BlockSize));
        troubles.set(Reporter::Source, Some(Unreached));
        troubles.set(Reporter::Discovery, None);
        assert_eq!(troubles.now(), Some(Unreached));
        assert_eq!(troubles.counted(), [(BlockSize, 1), (Unreached, 2)]);
    }
}
