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

/// A trouble of a stream in a sentence's half, for people. The reference has what to do about each.
pub fn trouble_words(trouble: &str) -> &'static str {
    match trouble {
        UNREACHED => "nobody is connected at the address where the events should come from",
        DISCOVERING => "the engine has not said yet where it publishes: it does not answer",
        NO_SOURCES => "the engine names no publisher for this rank",
        EVENTS_DISABLED => "the engine says that it publishes no events",
        BAD_ANSWER => "what the engine says of itself cannot be used",
        SHARED_ADDRESS => "the engine names one address for two ranks, of which only the first is heard",
        BLOCK_SIZE => "the engine says another block size than the configured one",
        DEFECT => "kvplane itself failed on an event: nothing is recorded of it any more",
        "budget" => "there is no room for its state: it is tried again every 30 s",
        "bad_url" => "the address to drain is none",
        "unreachable" => "the engine's server cannot be reached",
        "timeout" => "the engine's server does not answer in time",
        "connection_lost" => "the engine's server broke off",
        "http_server_error" => "the engine's server answers with an error of its own",
        "http_refused" => "the engine's server refuses to be drained",
        "too_large" => "the engine's answer is too large",
        "truncated" => "the engine's answer ends too early",
        "not_json" | "not_a_list" => "the engine's answer is no list of events",
        "reader_failed" => "the engine's answer could not be read",
        "ended" => "the engine's server ended the call",
        "out_of_range" => "the engine's server does not keep what was asked for any more",
        "data_loss" => "the engine's server lost events",
        "unimplemented" => "the engine's server has no such events, or they are not switched on",
        "failed_precondition" => "the engine's server cannot give events as it is",
        "refused" => "the engine's server refused the call",
        _ => "the source is not heard",
    }
}

/// The same for the way to another plane.
pub fn link_trouble_words(trouble: &str) -> &'static str {
    match trouble {
        "unreached" => "the other plane does not answer",
        "refused" => "the other plane wants another token or role",
        "loop" => "the address is this plane's own",
        "not_found" => "the other plane has no such engine",
        "misfit" => "what the other plane said of a stream did not fit: it is followed again",
        "resubscribing" => "the other plane is asked for other streams",
        _ => "the other plane is not followed",
    }
}

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

    /// Every word of the reference, by the part that it is in, has a sentence.
    #[test]
    fn every_trouble_of_the_reference_has_words() {
        let reference = include_str!("../../../docs/reference/troubles.md");
        let coded = |text: &'static str| text.split('`').skip(1).step_by(2);
        let rows =
            reference.lines().filter(|line| line.starts_with("| `")).filter_map(|row| coded(row).next());
        let of_link = reference.lines().find(|line| line.starts_with("Another plane")).unwrap();
        let paragraphs =
            reference.lines().filter(|line| line.contains("has one of") || line.starts_with('`'));
        let of_streams: Vec<_> = rows.chain(paragraphs.flat_map(coded)).collect();
        assert!(of_streams.len() > 20, "{of_streams:?}");
        for trouble in of_streams {
            assert_ne!(trouble_words(trouble), trouble_words(""), "{trouble}");
        }
        for trouble in coded(of_link).filter(|word| *word != "link.trouble" && *word != "upstream") {
            assert_ne!(link_trouble_words(trouble), link_trouble_words(""), "{trouble}");
        }
        assert_ne!(trouble_words("budget"), trouble_words(""));
    }

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
