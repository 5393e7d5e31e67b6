//! Where an engine's ranks publish: the addresses of its ranks, and what the engine says of itself.
//!
//! ```text
//!  engine ──answer──> ask.rs ──> vllm.rs, sglang.rs, server_args.rs ──Description──> place.rs ──> Found
//!  (HTTP, gRPC)       deadline,   what each kind says of itself                      overrides
//!                     limits                                                         win
//! ```
//!
//! Everything but asking is a pure function of an answer. This crate asks once and changes nothing: `ingest`
//! decides when to ask again and applies the answer.
//!
//! Answers hold keys and paths of the engine: no log line and no message quotes more of them than a number or
//! an address.

mod address;
mod ask;
mod grpc;
mod place;
mod server_args;
mod sglang;
mod spec;
mod vllm;
mod word;

use std::collections::BTreeMap;
use std::fmt;

use kvplane_core::Trouble;
use serde_json::{Map, Value};

pub use address::{AddressError, check_overlap, for_rank};
pub use ask::Asker;
pub use place::{Found, FoundRank};
pub use sglang::{PATHS as SGLANG_PAGES, TOKENSPEED_PATHS as TOKENSPEED_PAGES};
pub use spec::{DiscoverySpec, Overrides, Usual};
pub use word::{EngineWord, ask_engine};

/// More ranks than any engine has; an answer that speaks of more is not believed.
const MAX_RANKS: u32 = 1024;

/// What an engine says of its publishers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Description {
    /// By rank.
    publishers: BTreeMap<u32, Publisher>,
    /// Tokens per block.
    block_size: Option<u32>,
    /// It serves adapters, and its events do not name them.
    untold_adapters: bool,
}

/// One rank's publisher, with addresses as the engine has them: perhaps with a wildcard for a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Publisher {
    /// Absent where the engine tells its ranks and not where they are.
    events: Option<String>,
    replay: Option<String>,
    topic: String,
}

/// Why an engine's answer leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody answered.
    Silent(String),
    /// It publishes no events.
    Disabled,
    /// It names no publisher.
    NoSources(&'static str),
    /// It cannot be understood.
    Bad(String),
}

impl Refusal {
    /// The trouble of the streams that wait for a better answer.
    pub fn trouble(&self) -> Trouble {
        match self {
            Self::Silent(_) => Trouble::Discovering,
            Self::Disabled => Trouble::EventsDisabled,
            Self::NoSources(_) => Trouble::NoSources,
            Self::Bad(_) => Trouble::BadAnswer,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(why) | Self::Bad(why) => f.write_str(why),
            Self::Disabled => f.write_str("the engine reports that its events are disabled"),
            Self::NoSources(why) => f.write_str(why),
        }
    }
}

fn bad<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Bad(why.into()))
}

/// A JSON object's value as a text; absent and null are none.
fn text<'v>(object: &'v Map<String, Value>, key: &str) -> Result<Option<&'v str>, Refusal> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => bad(format!("{key} is not a text")),
    }
}

/// A JSON object's value as a number of at most `max`; absent and null are none. Protobuf's `Struct` has no
/// integers: a whole number may be written as a fraction.
fn number(object: &Map<String, Value>, key: &str, max: u32) -> Result<Option<u32>, Refusal> {
    let value = match object.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => value,
    };
    let whole = |fraction: f64| (fraction.fract() == 0.0 && fraction >= 0.0).then_some(fraction as u64);
    let number = value.as_u64().or_else(|| value.as_f64().and_then(whole));
    match number.and_then(|number| u32::try_from(number).ok()).filter(|number| *number <= max) {
        Some(number) => Ok(Some(number)),
        None => bad(format!("{key} is not a number up to {max}")),
    }
}

/// A number of ranks.
fn rank_count(object: &Map<String, Value>, key: &str) -> Result<Option<u32>, Refusal> {
    match number(object, key, MAX_RANKS)? {
        Some(0) => bad(format!("{key} is 0")),
        count => Ok(count),
    }
}

/// Tokens per block; an engine that has not decided yet says none or 0.
fn block_size(object: &Map<String, Value>, key: &str) -> Result<Option<u32>, Refusal> {
    Ok(number(object, key, u32::MAX)?.filter(|size| *size > 0))
}

/// Ranks 0 to `ranks` - 1 of an engine that says only where rank 0 is: rank r is at port + r.
fn counted(
    events: &str,
    replay: Option<&str>,
    topic: &str,
    ranks: u32,
) -> Result<BTreeMap<u32, Publisher>, Refusal> {
    let publishers = (0..ranks).map(|rank| {
        let publisher = Publisher {
            events: Some(count_up(events, rank)?),
            replay: replay.map(|address| count_up(address, rank)).transpose()?,
            topic: topic.to_owned(),
        };
        Ok((rank, publisher))
    });
    publishers.collect()
}

/// An address with its port counted up; rank 0's is left as it is.
fn count_up(address: &str, rank: u32) -> Result<String, Refusal> {
    if rank == 0 {
        return Ok(address.to_owned());
    }
    let split = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    let counted = split.and_then(|(host, port)| Some((host, u16::try_from(u32::from(port) + rank).ok()?)));
    match counted {
        Some((host, port)) if address.starts_with("tcp://") => Ok(format!("{host}:{port}")),
        _ => bad(format!("{address:?} has no port for rank {rank}")),
    }
}
