//! What to do about each reason for less than exact answers, and about each trouble of a source. Engines are not
//! named, so that engines with the same problem are listed as one.

use kvplane_core::Reason;

const FLUSH: &str = "heals as prompts are stored again; to be exact now: kvplane flush --engine ID --nudge, which empties that engine's cache";
const NEWER: &str = "see in docs/reference/engines.md which release of the engine announces this; a newer kvplane may know it";

pub(super) fn remedy(reason: Reason) -> &'static str {
    match reason {
        Reason::Gap => {
            "configure `replay`, and raise the engine's buffer_steps if its ring was too short; to be exact now: kvplane flush --engine ID --nudge, which empties that engine's cache"
        }
        Reason::History
        | Reason::Unproven
        | Reason::Undecodable
        | Reason::UnprovenFlush
        | Reason::MalformedStore
        | Reason::TierHistory
        | Reason::PeerDump
        | Reason::UnknownRemoval
        | Reason::OverCount
        | Reason::Reannounced
        | Reason::MalformedRemoval
        | Reason::GapKept => FLUSH,
        Reason::Unheard => "send the engine a prompt that is longer than one block",
        Reason::EventsDisabled => {
            "start the engine with its KV-cache events on; kvplane doctor --engine … shows how"
        }
        Reason::Budget | Reason::WaitingOverflow => {
            "raise journal.max_state_bytes: docs/guide/size.md; a flush empties the state"
        }
        Reason::BlockSize => "leave block_size out: kvplane learns it from the events",
        Reason::ForeignRank => "configure as many ranks as the engine has, each at its own port",
        Reason::Interleaved => "give each engine its own topic or address",
        Reason::StolenDrain | Reason::SuspectedDrain => {
            "stop the other reader of the engine's events, or let it read from kvplane; raise event_buffer_max_size if the buffer overflowed"
        }
        Reason::Flushing => {
            "an idle engine confirms a flush with its next step: kvplane flush --engine ID --nudge sends one"
        }
        Reason::UntoldAdapters => "start SGLang with \"format\": \"dynamo\" in --kv-events-config",
        Reason::AmbiguousHash | Reason::SharedHash | Reason::UnprovenHash => {
            "use a release whose hashes are unique: docs/reference/engines.md"
        }
        Reason::UnknownEvent | Reason::UnknownMedium | Reason::UnknownGroup => NEWER,
        _ => "nothing: answers say it; docs/reference/trust.md#reasons has the details",
    }
}

pub(super) fn remedy_of_trouble(trouble: &str) -> &'static str {
    match trouble {
        "unreached" | "down" => {
            "start the engine, or correct `events`; kvplane doctor --engine … checks the engine itself"
        }
        "discovering" => "start the engine, or correct `http`",
        "no_sources" => "configure `events`, or fewer `ranks`",
        "events_disabled" => "start the engine with its KV-cache events on: docs/guide/record-vllm.md",
        "bad_answer" | "shared_address" => "configure `events`",
        "block_size" => "correct block_size, or leave it out",
        "budget" => "raise journal.max_state_bytes: docs/guide/size.md",
        "defect" => "report it with kvplane's log, then remove the engine and add it again",
        "bad_url" => "correct `events`",
        "unimplemented" | "failed_precondition" => "start the engine's server with its events on",
        _ => {
            "check that the engine's server runs and can be reached from kvplane; docs/reference/troubles.md has every trouble"
        }
    }
}
