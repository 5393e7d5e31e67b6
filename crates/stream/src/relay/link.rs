//! One connection to a server of relayed streams: when to subscribe again, and under which name.

use std::time::Duration;

use super::Ended;

/// The first pause after a failure; it doubles ...
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// ... up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Where the server says that it cannot, somebody must change it before it can.
const SLOW_PAUSE: Duration = Duration::from_secs(30);

/// What to do after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    /// Report to the ranks how the call ended. Not while other names are still to be tried.
    pub tell: bool,
    /// When to subscribe again.
    pub after: Duration,
}

/// The calls of one connection.
#[derive(Debug)]
pub struct Link {
    /// Under how many names the server may offer its events.
    names: usize,
    name: usize,
    /// Names in a row that the server does not know.
    unknown: usize,
    pause: Duration,
    start: u64,
}

impl Link {
    /// A connection to a server that may offer its events under this many names.
    pub fn new(names: usize) -> Self {
        Self { names, name: 0, unknown: 0, pause: SHORTEST_PAUSE, start: 0 }
    }

    /// The name to subscribe under: an index.
    pub fn name(&self) -> usize {
        self.name
    }

    /// A call is made with this number.
    pub fn calling(&mut self, start: u64) {
        self.start = start;
    }

    /// The server took the call.
    pub fn taken(&mut self) {
        self.unknown = 0;
    }

    /// A batch was put in order.
    pub fn advanced(&mut self) {
        self.pause = SHORTEST_PAUSE;
    }

    /// The call ended, or could not be made.
    pub fn ended(&mut self, how: Ended) -> Next {
        match how {
            Ended::Unimplemented => {
                self.name = (self.name + 1) % self.names.max(1);
                self.unknown += 1;
                if self.unknown < self.names {
                    return Next { tell: false, after: Duration::ZERO };
                }
                self.unknown = 0;
                Next { tell: true, after: SLOW_PAUSE }
            }
            Ended::FailedPrecondition => Next { tell: true, after: SLOW_PAUSE },
            // From the beginning it may be able to.
            Ended::OutOfRange | Ended::DataLoss => Next { tell: true, after: self.again() },
            Ended::Ok | Ended::Deadline | Ended::Unreachable | Ended::Other => {
                Next { tell: true, after: self.back_off() }
            }
        }
    }

    /// A rank wants another subscription: at once, unless this one was from the beginning. What ends again
    /// and again behind its beginning would be asked for without a pause.
    pub fn again(&mut self) -> Duration {
        if self.start == 0 { self.back_off() } else { Duration::ZERO }
    }

    fn back_off(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_tried_before_there_are_no_events() {
        let mut link = Link::new(4);
        for name in 0..3 {
            assert_eq!(link.name(), name);
            assert_eq!(link.ended(Ended::Unimplemented), Next { tell: false, after: Duration::ZERO });
        }
        assert_eq!(link.ended(Ended::Unimplemented), Next { tell: true, after: SLOW_PAUSE });
        assert_eq!(link.name(), 0);
        // A name that was taken before is the first to be tried again, and the others after it.
        link.ended(Ended::Unimplemented);
        link.taken();
        assert_eq!(link.name(), 1);
        assert!(!link.ended(Ended::Unimplemented).tell);
        // The only name is all of them.
        assert!(Link::new(1).ended(Ended::Unimplemented).tell);
    }

    #[test]
    fn pauses_grow_until_a_batch_comes() {
        let mut link = Link::new(1);
        let pauses: Vec<_> = (0..8).map(|_| link.ended(Ended::Unreachable).after.as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        link.calling(0);
        assert_eq!(link.ended(Ended::Ok).after, LONGEST_PAUSE, "headers alone are no progress");
        link.calling(0);
        link.advanced();
        assert_eq!(link.ended(Ended::Ok).after, SHORTEST_PAUSE);
    }

    #[test]
    fn from_the_beginning_at_once_but_not_for_ever() {
        let mut link = Link::new(1);
        link.calling(17);
        assert_eq!(link.ended(Ended::OutOfRange).after, Duration::ZERO);
        link.calling(0);
        assert_eq!(link.ended(Ended::OutOfRange).after, SHORTEST_PAUSE);
        link.calling(0);
        link.advanced();
        assert_eq!(link.ended(Ended::DataLoss).after, SHORTEST_PAUSE, "behind every beginning, perhaps");
        assert_eq!(link.ended(Ended::FailedPrecondition).after, SLOW_PAUSE);
    }
}
