//! What is done when an endpoint did not answer: no IO.
//!
//! Only before the first byte of an answer was passed on, each time somewhere else, and not without bound:
//! when everything fails, retries would only multiply the load.

/// What came of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No connection.
    Connect,
    /// A connection that had served before ended without a byte of an answer: the engine may have closed it
    /// while it was idle.
    Stale,
    /// The connection ended, or what came was no HTTP, before there was an answer.
    Died,
    /// No answer within the time.
    Timeout,
    /// This status.
    Status(u16),
}

impl Failure {
    /// Its name in metrics and logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Stale => "stale_connection",
            Self::Died => "connection_lost",
            Self::Timeout => "timeout",
            Self::Status(_) => "status",
        }
    }

    /// Whether it says something bad about the endpoint.
    pub(crate) fn is_fault(self) -> bool {
        match self {
            Self::Stale => false,
            Self::Status(status) => status >= 500,
            Self::Connect | Self::Died | Self::Timeout => true,
        }
    }
}

/// Statuses after which another endpoint may do better. An engine's own 500 is an answer.
pub(crate) fn is_retried(status: u16) -> bool {
    matches!(status, 408 | 429 | 502 | 503 | 504)
}

/// What is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The same endpoint, on a new connection.
    SameAgain,
    /// Another endpoint.
    Elsewhere,
    /// Report the error to the client.
    GiveUp,
}

/// Retries that all requests have together: a share of the requests.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Budget {
    share: f64,
    left: f64,
}

/// Retries that may be made at once after a quiet time, and at the start. With many requests under way it is
/// their share: all that an engine had are sent elsewhere at once when it goes.
const AT_ONCE: f64 = 10.0;

impl Budget {
    /// Retries for a share of the requests.
    pub(crate) fn new(share: f64) -> Self {
        Self { share, left: if share > 0.0 { AT_ONCE } else { 0.0 } }
    }

    /// A request came; `under_way` are in progress.
    pub(crate) fn request(&mut self, under_way: usize) {
        let most = if self.share > 0.0 { AT_ONCE.max(self.share * under_way as f64) } else { 0.0 };
        self.left = (self.left + self.share).min(most);
    }

    fn take(&mut self) -> bool {
        let enough = self.left >= 1.0;
        if enough {
            self.left -= 1.0;
        }
        enough
    }
}

/// The attempts of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempts {
    made: u32,
    most: u32,
    stale: bool,
}

impl Attempts {
    pub(crate) fn new(most: u32) -> Self {
        Self { made: 1, most: most.max(1), stale: false }
    }

    /// How many were made.
    pub(crate) fn made(self) -> u32 {
        self.made
    }

    /// The last one failed. `others`: endpoints that were not tried.
    pub(crate) fn failed(&mut self, failure: Failure, others: bool, budget: &mut Budget) -> Step {
        // Costs the engine nothing: it never saw the request.
        if failure == Failure::Stale && !self.stale {
            self.stale = true;
            return Step::SameAgain;
        }
        if !others || self.made >= self.most || !budget.take() {
            return Step::GiveUp;
        }
        self.made += 1;
        Step::Elsewhere
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_stale_connection_is_replaced_once() {
        let (mut attempts, mut budget) = (Attempts::new(3), Budget::new(0.0));
        assert_eq!(attempts.failed(Failure::Stale, true, &mut budget), Step::SameAgain);
        assert_eq!(attempts.failed(Failure::Stale, true, &mut budget), Step::GiveUp);
    }

    #[test]
    fn others_are_tried_up_to_the_bound() {
        let (mut attempts, mut budget) = (Attempts::new(3), Budget::new(0.2));
        assert_eq!(attempts.failed(Failure::Connect, true, &mut budget), Step::Elsewhere);
        assert_eq!(attempts.failed(Failure::Status(503), true, &mut budget), Step::Elsewhere);
        assert_eq!(attempts.failed(Failure::Died, true, &mut budget), Step::GiveUp);
        assert_eq!(Attempts::new(3).failed(Failure::Connect, false, &mut budget), Step::GiveUp);
        assert_eq!(attempts.made(), 3);
    }

    #[test]
    fn what_an_engine_had_goes_elsewhere_at_once() {
        let mut budget = Budget::new(0.2);
        (0..1_000).for_each(|under_way| budget.request(under_way));
        assert_eq!((0..1_000).filter(|_| budget.take()).count(), 199);
        // What piled up is let go of when few are under way.
        (0..1_000).for_each(|under_way| budget.request(under_way));
        budget.request(1);
        assert_eq!((0..1_000).filter(|_| budget.take()).count(), 10);
    }

    proptest! {
        /// Of any number of requests that all fail, no more are retried than the share and what may be made at once.
        #[test]
        fn retries_stay_within_their_share(requests in 1usize..500, share in 0.0f64..1.0, most in 1u32..5) {
            let mut budget = Budget::new(share);
            let mut retries = 0u32;
            for under_way in 0..requests {
                budget.request(under_way);
                let mut attempts = Attempts::new(most);
                while attempts.failed(Failure::Died, true, &mut budget) == Step::Elsewhere {
                    retries += 1;
                }
                prop_assert!(attempts.made() <= most);
            }
            prop_assert!(f64::from(retries) <= share * requests as f64 + AT_ONCE + 1.0);
        }
    }
}
