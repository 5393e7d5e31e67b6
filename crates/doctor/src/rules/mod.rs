//! From what was seen to what is wrong: pure functions.

mod cluster;
mod fleet;
mod plane;
mod reach;
mod remedy;
mod replay;
mod setup;
mod shape;
mod versions;
mod word;

#[cfg(test)]
mod tests;

pub use plane::judge_plane;
pub use setup::judge_set_up;
pub(crate) use setup::no_sockets;

use crate::seen::{EngineSeen, Window};
use crate::{Finding, RankSeen};

/// How far back a replay ring and a plane's window should reach. It takes about as long to restart a plane or
/// a gateway.
const REACH_BACK_SECONDS: f64 = 30.0;

/// What is wrong with one engine, whose plane has this replay window, where it is known.
pub fn judge_engine(seen: &EngineSeen, window: Option<&Window>) -> Vec<Finding> {
    if seen.is_elsewhere() {
        return vec![reach::elsewhere(seen)];
    }
    let mut found = word::judge(seen);
    // An engine that publishes nothing is neither silent by accident nor in need of replay.
    if word::publishes_nothing(seen) {
        return found;
    }
    found.extend(reach::judge_server(seen));
    for rank in &seen.ranks {
        let reached = reach::judge(seen, rank);
        let heard = reached.is_empty();
        found.extend(reached);
        found.extend(replay::judge(seen, rank));
        found.extend(shape::judge(seen, rank));
        if let Some(window) = window.filter(|_| heard) {
            found.extend(replay::judge_window(seen, rank, window));
        }
    }
    found
}

/// What is wrong with engines that are right each by itself.
pub(crate) fn judge_fleet(seen: &[EngineSeen]) -> Vec<Finding> {
    fleet::judge(seen)
}

/// All that was heard of a rank, live and from its ring.
fn both(rank: &RankSeen) -> impl Iterator<Item = &crate::Heard> {
    std::iter::once(&rank.live).chain(rank.ring.as_ref().map(|ring| &ring.heard))
}
