//! When to log that an engine cannot be reached: once per change of state, then less and less often.

use std::time::Duration;

use tokio::time::Instant;

/// The first repetition, and the longest pause between two. It doubles from one to the other.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// The failed dials since the last that succeeded.
#[derive(Debug, Default)]
pub(super) struct Outage {
    failures: u64,
    suppressed: u64,
    pause: Duration,
    quiet_until: Option<Instant>,
}

impl Outage {
    /// A dial failed. Returns how many failures were not logged since the last line, if it is time for a
    /// line.
    pub(super) fn failed(&mut self, now: Instant) -> Option<u64> {
        self.failures += 1;
        if self.quiet_until.is_some_and(|until| now < until) {
            self.suppressed += 1;
            return None;
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.quiet_until = Some(now + self.pause);
        Some(std::mem::take(&mut self.suppressed))
    }

    /// A dial succeeded. Returns how many failed before it.
    pub(super) fn over(&mut self) -> u64 {
        std::mem::take(self).failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_once_and_then_less_and_less_often() {
        let (mut outage, began) = (Outage::default(), Instant::now());
        let mut lines = Vec::new();
        // One dial every two seconds, for an hour.
        for second in (0..3600).step_by(2) {
            if let Some(suppressed) = outage.failed(began + Duration::from_secs(second)) {
                lines.push((second, suppressed));
            }
        }
        assert_eq!(lines[..4], [(0, 0), (10, 4), (30, 9), (70, 19)]);
        assert_eq!(lines.len(), 11, "{lines:?}");
        let pauses: Vec<u64> = lines.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert_eq!(pauses.iter().max(), Some(&600));

        assert_eq!(outage.over(), 1800);
        assert_eq!(outage.over(), 0);
        // The next outage is a change of state again.
        assert_eq!(outage.failed(began), Some(0));
    }
}
