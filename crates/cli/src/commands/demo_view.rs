//! The demo's picture: streams, what they are worth, and what was just survived.

use std::collections::VecDeque;
use std::time::Duration;

use kvplane_core::{Continuity, Epoch, Tier, Trust};
use kvplane_ingest::{Plane, StreamStatus};

/// Lines of history on the screen.
const HISTORY: usize = 12;

/// What has been seen so far.
pub(crate) struct Story {
    rows: Vec<Row>,
    lines: VecDeque<String>,
    /// Lines that nobody has been handed yet.
    news: Vec<String>,
    batches_per_second: f64,
    last_count: (Duration, u64),
}

struct Row {
    name: String,
    status: StreamStatus,
    /// Disconnected in this epoch, and no verdict seen since.
    cut_off_in: Option<Epoch>,
}

impl Story {
    pub(crate) fn new(plane: &Plane) -> Self {
        let rows = plane.streams().map(|stream| Row {
            name: stream.id().to_string(),
            status: stream.status(),
            cut_off_in: None,
        });
        Self {
            rows: rows.collect(),
            lines: VecDeque::new(),
            news: Vec::new(),
            batches_per_second: 0.0,
            last_count: (Duration::ZERO, 0),
        }
    }

    /// Something is about to go wrong.
    pub(crate) fn fault(&mut self, at: Duration, words: &str) {
        self.tell(at, &format!("FAULT     {words}"));
    }

    /// Looks at every stream and says what changed. Returns the lines that are new since the last look.
    pub(crate) fn observe(&mut self, at: Duration, plane: &Plane) -> Vec<String> {
        for (index, stream) in plane.streams().enumerate() {
            let row = &mut self.rows[index];
            let new = stream.status();
            let mut words = changes(&row.status, &new);
            if new.counters.disconnects > row.status.counters.disconnects {
                row.cut_off_in = Some(row.status.epoch);
            }
            if new.continuity == Continuity::Live
                && let Some(epoch) = row.cut_off_in.take()
                && epoch == new.epoch
            {
                words.push("SURVIVED  reconnect: same life proven by digest, nothing reset".to_owned());
            }
            row.status = new;
            let name = row.name.clone();
            for words in words {
                self.tell(at, &format!("{name}  {words}"));
            }
        }
        let total: u64 = self.rows.iter().map(|row| row.status.journal.batches).sum();
        let (last_at, last_total) = self.last_count;
        if at.saturating_sub(last_at) >= Duration::from_secs(1) {
            let seconds = at.saturating_sub(last_at).as_secs_f64();
            self.batches_per_second = total.saturating_sub(last_total) as f64 / seconds;
            self.last_count = (at, total);
        }
        std::mem::take(&mut self.news)
    }

    fn tell(&mut self, at: Duration, words: &str) {
        if self.lines.len() == HISTORY {
            self.lines.pop_front();
        }
        let line = format!("{:>6.1} s  {words}", at.as_secs_f64());
        self.news.push(line.clone());
        self.lines.push_back(line);
    }
}

/// What happened to a stream between two looks.
fn changes(old: &StreamStatus, new: &StreamStatus) -> Vec<String> {
    let mut words = Vec::new();
    if new.counters.restarts > old.counters.restarts {
        let gone: u64 = old.blocks.iter().sum();
        words.push(format!("SURVIVED  restart proven: new epoch, {gone} dead blocks gone at once"));
    }
    if new.counters.unproven > old.counters.unproven {
        words.push("SURVIVED  sameness not provable: new epoch, answers say so".to_owned());
    }
    if new.counters.undecodable > old.counters.undecodable {
        words.push("SURVIVED  damaged frame: a good copy was asked for".to_owned());
    }
    let gaps = new.counters.gaps - old.counters.gaps;
    let unfilled = new.counters.gaps_unfilled - old.counters.gaps_unfilled;
    if gaps > 0 && unfilled == 0 && new.counters.restarts == old.counters.restarts {
        words.push("SURVIVED  gap filled from the engine's ring: nobody downstream noticed".to_owned());
    }
    if unfilled > 0 {
        words.push("SURVIVED  gap could not be filled: residency dropped, trust lower".to_owned());
    }
    let (was, is) = (old.trust.level(), new.trust.level());
    if was != is {
        words.push(format!("trust     {was} -> {is}"));
    }
    words
}

/// The whole screen.
pub(crate) fn frame(story: &Story, elapsed: Duration, addresses: &str) -> String {
    let mut text = format!(
        "kvplane demo   {:>5.1} s   {:.0} batches/s   Ctrl-C ends it\n{addresses}\n\n",
        elapsed.as_secs_f64(),
        story.batches_per_second
    );
    text.push_str(&format!(
        "{:<10} {:<11} {:<11} {:<14} {:>7} {:>7} {:>6} {:>9} {:>8}\n",
        "stream", "continuity", "trust", "epoch", "seq", "blocks", "gaps", "unfilled", "restarts"
    ));
    for row in &story.rows {
        let status = &row.status;
        let sequence = status.engine_sequence.map_or_else(|| "-".to_owned(), |sequence| sequence.to_string());
        text.push_str(&format!(
            "{:<10} {:<11} {}{:<11}\x1b[0m {:<14} {:>7} {:>7} {:>6} {:>9} {:>8}\n",
            row.name,
            status.continuity.as_str(),
            colour(status.trust.level()),
            status.trust.level().as_str(),
            status.epoch.as_u64(),
            sequence,
            status.blocks[Tier::Device.index()],
            status.counters.gaps,
            status.counters.gaps_unfilled,
            status.counters.restarts,
        ));
    }
    text.push('\n');
    for line in &story.lines {
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn colour(trust: Trust) -> &'static str {
    match trust {
        Trust::Exact => "\x1b[32m",
        Trust::Lower | Trust::Unverified => "\x1b[33m",
        Trust::Unsound => "\x1b[31m",
    }
}
