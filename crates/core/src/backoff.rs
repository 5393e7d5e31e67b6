//! How long to wait before the next attempt.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Waits that double up to a limit. Each is shortened by up to a half, at random, so that those who wait for
/// a server that comes back do not all come back at once.
#[derive(Debug)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Waits from the shortest on.
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest: longest.max(shortest), next: shortest }
    }

    /// The last attempt went well.
    pub fn reset(&mut self) {
        self.next = self.shortest;
    }

    /// How long to wait now; the next wait is longer.
    pub fn wait(&mut self) -> Duration {
        self.wait_up_to(self.longest)
    }

    /// The same with another limit, where that is longer than the usual one.
    pub fn wait_up_to(&mut self, limit: Duration) -> Duration {
        let longest = self.longest.max(limit);
        let wait = self.next.min(longest);
        self.next = wait.saturating_mul(2).min(longest);
        wait / 2 + jitter(wait / 2)
    }

    /// The longest wait.
    pub fn longest(&self) -> Duration {
        self.longest
    }
}

/// Any duration up to `most`, at random.
pub fn jitter(most: Duration) -> Duration {
    // Hashers are seeded at random: all the randomness that is needed here.
    let random = RandomState::new().hash_one(0);
    most.mul_f64(random as f64 / u64::MAX as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_limit_and_start_over() {
        let millis = Duration::from_millis;
        let mut backoff = Backoff::new(millis(100), millis(5_000));
        for full in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            let wait = backoff.wait();
            assert!((millis(full) / 2..=millis(full)).contains(&wait), "{wait:?} of {full} ms");
        }
        for (limit, full) in [(25, 5), (25, 10), (25, 20), (25, 25), (7, 7), (1, 5)] {
            let wait = backoff.wait_up_to(Duration::from_secs(limit));
            assert!((millis(full * 500)..=millis(full * 1_000)).contains(&wait), "{wait:?} of {full} s");
        }
        backoff.reset();
        assert!(backoff.wait() <= millis(100));
        assert_eq!(Backoff::new(millis(100), millis(10)).longest(), millis(100), "never below the shortest");
    }
}
