//! What is asked of the engines: conversations that grow, made up or recorded, and when each request comes.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kvplane_sim::load::{LoadConfig, Random, Workload as Conversations};
use serde::Deserialize;

use super::FEWEST_REQUESTS;
use super::fleet::ROOM_FOR_TRACES;
use super::story::Act;

/// Requests a second, on the whole fleet: enough to see blocks come and go, and slow enough to watch.
const RATE: f64 = 12.0;
/// The same for recorded requests, which come back after minutes: as fast as can be, or a minute would show
/// none of that.
const TRACE_RATE: f64 = 40.0;
/// Tokens that a recorded block stands for.
const TRACE_BLOCK: usize = 512;
/// Tokens that are generated for a recorded request at most. No later prompt has them: they only take room.
const TRACE_OUTPUT: usize = 64;
/// Tokens of a recorded request at most, so that every engine has room for it.
const TRACE_INPUT: usize = ROOM_FOR_TRACES / 2;
/// Timestamps at most, in milliseconds: thousands of years, and every number below is one of its own.
const LATEST: f64 = (1_u64 << 53) as f64;
/// Token ids are below this.
const VOCABULARY: u64 = 32_000;

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// How long after the one before it comes.
    pub(super) after: Duration,
    pub(super) prompt: Vec<u32>,
    pub(super) max_tokens: usize,
    conversation: Option<usize>,
}

/// Requests, one after the other.
pub(super) struct Workload {
    trace: Option<Trace>,
    /// Conversations with shared system prompts, without end.
    conversations: Conversations,
    /// When their requests come.
    arrivals: Random,
}

/// Recorded requests, in the order of their time.
#[derive(Debug)]
struct Trace {
    left: VecDeque<Recorded>,
    /// Trace time until now, in milliseconds.
    now: f64,
    /// Seconds here for a millisecond there.
    pace: f64,
}

/// A line of a trace.
#[derive(Debug, Clone, Deserialize)]
struct Recorded {
    timestamp: f64,
    input_length: usize,
    output_length: usize,
    hash_ids: Vec<u64>,
}

impl Workload {
    /// Conversations that a seed determines.
    pub(super) fn made_up(seed: u64) -> Self {
        let config = LoadConfig {
            seed,
            system_prompts: 6,
            system_tokens: 512,
            conversations: 40,
            turn_tokens: 120,
            output_tokens: 64,
            turns: 8,
            ..LoadConfig::default()
        };
        Self { trace: None, conversations: Conversations::new(config), arrivals: Random::new(seed) }
    }

    /// The requests of a trace, at a pace that can be watched.
    pub(super) fn recorded(path: &Path, seed: u64) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("--trace {}", path.display()))?;
        let trace = Trace::read(&text).with_context(|| format!("--trace {}", path.display()))?;
        let (requests, fewest) = (trace.left.len(), FEWEST_REQUESTS * Act::ALL.len());
        if requests < fewest {
            bail!("--trace {}: has {requests} requests, and the tour needs {fewest}", path.display());
        }
        Ok(Self { trace: Some(trace), ..Self::made_up(seed) })
    }

    /// Whether nobody has recorded it.
    pub(super) fn is_made_up(&self) -> bool {
        self.trace.is_none()
    }

    /// How many requests each of this many loads gets: a trace must last for all of them.
    pub(super) fn share(&self, loads: usize) -> usize {
        self.trace.as_ref().map_or(usize::MAX, |trace| trace.left.len().div_ceil(loads.max(1)))
    }

    /// The next request; none when a trace has ended.
    pub(super) fn next(&mut self) -> Option<Request> {
        match &mut self.trace {
            Some(trace) => trace.next(),
            None => Some(self.next_made_up()),
        }
    }

    /// The next made-up request, whether there is a trace or not: each has blocks that are new.
    pub(super) fn next_made_up(&mut self) -> Request {
        let turn = self.conversations.next_turn();
        Request {
            after: Duration::from_secs_f64(pause(&mut self.arrivals)),
            prompt: turn.prompt,
            max_tokens: turn.max_tokens,
            conversation: Some(turn.conversation),
        }
    }

    /// A reply, on which the conversation goes on.
    pub(super) fn replied(&mut self, request: &Request, output: &[u32]) {
        if let Some(conversation) = request.conversation {
            self.conversations.replied(conversation, output);
        }
    }
}

impl Trace {
    fn read(text: &str) -> anyhow::Result<Self> {
        let mut left = Vec::new();
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let recorded: Recorded = serde_json::from_str(line).with_context(|| {
                format!(
                    "line {}: not a request with timestamp, input_length, output_length and hash_ids",
                    at + 1
                )
            })?;
            recorded.check().with_context(|| format!("line {}", at + 1))?;
            left.push(recorded);
        }
        left.sort_by(|one, two| one.timestamp.total_cmp(&two.timestamp));
        let (Some(first), Some(last)) = (left.first(), left.last()) else { bail!("has no requests") };
        let span = (last.timestamp - first.timestamp).max(1.0);
        Ok(Self { now: first.timestamp, pace: left.len() as f64 / TRACE_RATE / span, left: left.into() })
    }

    fn next(&mut self) -> Option<Request> {
        let recorded = self.left.pop_front()?;
        let after = ((recorded.timestamp - self.now) * self.pace).max(0.0);
        self.now = recorded.timestamp;
        Some(Request { after: Duration::from_secs_f64(after), ..recorded.request() })
    }
}

impl Recorded {
    /// Whether it can be asked of an engine.
    fn check(&self) -> anyhow::Result<()> {
        let Self { timestamp, input_length, hash_ids, .. } = self;
        if !(0.0..=LATEST).contains(timestamp) {
            bail!("timestamp {timestamp} is not a number of milliseconds from 0 to {LATEST}");
        }
        if *input_length == 0 || hash_ids.is_empty() {
            bail!(
                "a request without tokens: input_length is {input_length}, and hash_ids has {}",
                hash_ids.len()
            );
        }
        if input_length.div_ceil(TRACE_BLOCK) > hash_ids.len() {
            bail!(
                "input_length {input_length} is more than {} hash_ids of {TRACE_BLOCK} tokens stand for",
                hash_ids.len()
            );
        }
        if *input_length > TRACE_INPUT {
            bail!("input_length {input_length} is more than the simulated engines take ({TRACE_INPUT})");
        }
        Ok(())
    }

    /// The request, with tokens in place of the numbers of its blocks: the same for the same number.
    fn request(&self) -> Request {
        let tokens = self.hash_ids.iter().flat_map(|&id| {
            let mut noise = Random::new(id);
            (0..TRACE_BLOCK).map(move |_| noise.below(VOCABULARY) as u32)
        });
        Request {
            after: Duration::ZERO,
            prompt: tokens.take(self.input_length).collect(),
            max_tokens: self.output_length.clamp(1, TRACE_OUTPUT),
            conversation: None,
        }
    }
}

/// Seconds until the next request, where requests know nothing of one another.
fn pause(random: &mut Random) -> f64 {
    const STEPS: u64 = 1 << 32;
    let share = (random.below(STEPS) + 1) as f64 / STEPS as f64;
    -share.ln() / RATE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_workload() {
        let first = |seed| {
            let mut load = Workload::made_up(seed);
            (0..50).filter_map(|_| load.next()).collect::<Vec<_>>()
        };
        assert_eq!(first(3), first(3));
        assert_ne!(first(3), first(4));
        let seconds: f64 = first(3).iter().map(|request| request.after.as_secs_f64()).sum();
        assert!((1.0..20.0).contains(&seconds), "{seconds}");
    }

    #[test]
    fn equal_blocks_of_a_trace_are_equal_tokens() {
        let mut load = Trace::read(
            "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 500, \"hash_ids\": [1, 2]}\n\
             {\"timestamp\": 2000, \"input_length\": 1024, \"output_length\": 3, \"hash_ids\": [1, 3]}\n",
        )
        .unwrap();
        let (one, two) = (load.next().unwrap(), load.next().unwrap());
        assert_eq!((one.prompt.len(), one.max_tokens), (600, TRACE_OUTPUT));
        assert_eq!((two.prompt.len(), two.max_tokens), (1024, 3));
        assert_eq!(one.prompt[..512], two.prompt[..512]);
        assert_ne!(one.prompt[512..600], two.prompt[512..600]);
        assert_eq!((one.after, two.after), (Duration::ZERO, Duration::from_secs_f64(2.0 / TRACE_RATE)));
        assert!(load.next().is_none());
        assert!(Trace::read("\n").is_err() && Trace::read("{}").is_err());
    }

    fn line(timestamp: &str, input_length: &str, hash_ids: &str) -> String {
        format!(
            "{{\"timestamp\": {timestamp}, \"input_length\": {input_length}, \"output_length\": 1, \"hash_ids\": {hash_ids}}}\n"
        )
    }

    #[test]
    fn requests_come_in_the_order_of_their_time() {
        let text = [line("3000", "3", "[3]"), line("1000", "1", "[1]"), line("9007199254740992", "2", "[2]")];
        let mut load = Trace::read(&text.concat()).unwrap();
        let requests: Vec<_> = std::iter::from_fn(|| load.next()).collect();
        assert_eq!(requests.iter().map(|request| request.prompt.len()).collect::<Vec<_>>(), [1, 3, 2]);
        let whole: Duration = requests.iter().map(|request| request.after).sum();
        assert!(whole <= Duration::from_secs(1), "{whole:?}");
    }

    #[test]
    fn what_cannot_be_asked_is_refused_by_its_line() {
        let many = format!("{:?}", vec![1; TRACE_INPUT / TRACE_BLOCK + 1]);
        for (bad, why) in [
            (line("-1", "5", "[1]"), "timestamp -1 is not"),
            (line("1e300", "5", "[1]"), "is not a number of milliseconds"),
            (line("1e999", "5", "[1]"), "not a request"),
            (line("0", "5", "[]"), "without tokens"),
            (line("0", "0", "[1]"), "without tokens"),
            (line("0", "513", "[1]"), "more than 1 hash_ids of 512 tokens stand for"),
            (line("0", "18446744073709551615", "[1]"), "more than 1 hash_ids"),
            (line("0", &(TRACE_INPUT + 1).to_string(), &many), "more than the simulated engines take"),
            (line("0", "18446744073709551616", "[1]"), "not a request"),
            (line("0", "5", "[-1]"), "not a request"),
        ] {
            let refused = format!("{:#}", Trace::read(&(line("0", "5", "[1]") + "\n" + &bad)).unwrap_err());
            assert!(refused.starts_with("line 3: ") && refused.contains(why), "{refused}");
        }
    }
}
