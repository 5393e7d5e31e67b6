//! Why a source delivers nothing: one table each for streams and for links to other planes.

use std::fmt;

/// `Variant "name" "in words"`: everything about a trouble is in its row.
macro_rules! troubles {
    ($(#[$of:meta])* $type:ident { $($(#[$doc:meta])* $variant:ident $name:literal $words:literal)* }) => {
        $(#[$of])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$doc])* $variant,)*
        }

        impl $type {
            /// Every trouble, in the order of the table.
            pub const ALL: [$type; [$($type::$variant),*].len()] = [$($type::$variant),*];

            /// Its stable name, in status, metrics and logs.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Half a sentence for people. The reference says what to do about it.
            pub const fn words(self) -> &'static str {
                match self {
                    $(Self::$variant => $words,)*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

troubles! {
    /// Why a stream's source delivers nothing, or not all of it. A state: it holds until it is over.
    Trouble {
        /// No connection to the address of the events.
        Unreached "unreached" "no publisher is connected at the event address"
        /// The engine has not answered yet where it publishes.
        Discovering "discovering" "the engine does not answer where it publishes"
        /// The engine names no publisher for the rank, or cannot be asked for one.
        NoSources "no_sources" "the engine names no publisher for this rank"
        /// The engine says that its events are disabled.
        EventsDisabled "events_disabled" "the engine reports that its events are disabled"
        /// The engine's description of itself is invalid.
        BadAnswer "bad_answer" "the engine's description of itself is invalid"
        /// The engine names one address for two ranks.
        SharedAddress "shared_address" "the engine names one address for two ranks; only the first is followed"
        /// The engine's block size differs from the configured one.
        BlockSize "block_size" "the engine's block size differs from the configured one"
        /// kvplane panicked on an event and stopped recording the stream.
        Defect "defect" "kvplane itself failed on an event and stopped recording the stream"
        /// The state of a mirrored stream exceeds its budget.
        Budget "budget" "its state exceeds the memory budget; retried every 30 s"
        /// The address to drain is invalid.
        BadUrl "bad_url" "the address to drain is invalid"
        /// No connection to the engine's server.
        Unreachable "unreachable" "the engine's server cannot be reached"
        /// The engine's server did not answer in time.
        Timeout "timeout" "the engine's server does not answer in time"
        /// The connection broke before the answer.
        ConnectionLost "connection_lost" "the connection to the engine's server broke"
        /// The engine's server answers with a status of 500 or above.
        HttpServerError "http_server_error" "the engine's server answers with a server error"
        /// The engine's server answers with another status that is not a success.
        HttpRefused "http_refused" "the engine's server rejects the drain"
        /// The answer exceeds its bound.
        TooLarge "too_large" "the engine's answer is too large"
        /// The answer ends early.
        Truncated "truncated" "the engine's answer is truncated"
        /// The answer is not JSON.
        NotJson "not_json" "the engine's answer is not JSON"
        /// The answer is JSON, and not a list of events.
        NotAList "not_a_list" "the engine's answer is not a list of events"
        /// Reading the answer panicked.
        ReaderFailed "reader_failed" "the engine's answer could not be read"
        /// The server ended the call.
        Ended "ended" "the engine's server ended the call"
        /// The server no longer has what was asked for.
        OutOfRange "out_of_range" "the engine's server no longer has the events that were asked for"
        /// The server lost events.
        DataLoss "data_loss" "the engine's server lost events"
        /// The server has no such method.
        Unimplemented "unimplemented" "the engine's server offers no events, or they are switched off"
        /// The server cannot offer events in its state.
        FailedPrecondition "failed_precondition" "the engine's server cannot offer events in its current state"
        /// The server rejected the call.
        Refused "refused" "the engine's server rejected the call"
    }
}

troubles! {
    /// Why another plane is not followed.
    LinkTrouble {
        /// It does not answer.
        Unreached "unreached" "the other plane does not answer"
        /// It wants another token or role, or the token file cannot be read.
        Refused "refused" "the other plane wants another token or role"
        /// It is this plane itself.
        Loop "loop" "the address is this plane's own"
        /// It does not have the wanted engine.
        NotFound "not_found" "the other plane has no such engine"
        /// A message did not fit the mirrored state.
        Misfit "misfit" "an update from the other plane did not fit its stream; following it again"
        /// The set of streams changed: a new subscription follows at once.
        Resubscribing "resubscribing" "subscribing again for another set of streams"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_names_every_trouble_and_no_other() {
        let reference = include_str!("../../../docs/reference/troubles.md");
        let coded = |text: &'static str| text.split('`').skip(1).step_by(2);
        for name in
            Trouble::ALL.map(Trouble::as_str).into_iter().chain(LinkTrouble::ALL.map(LinkTrouble::as_str))
        {
            assert!(coded(reference).any(|word| word == name), "{name} is not in docs/reference/troubles.md");
        }
        let rows =
            reference.lines().filter(|line| line.starts_with("| `")).filter_map(|row| coded(row).next());
        let lists = reference.lines().filter(|line| line.contains("has one of") || line.starts_with('`'));
        for name in rows.chain(lists.flat_map(coded)) {
            assert!(Trouble::ALL.iter().any(|trouble| trouble.as_str() == name), "{name} is no trouble");
        }
    }
}
