//! How much of the traffic a prefix is: whether it is worth another copy.
//!
//! A prompt belongs to the class of its prefix at a power of two, half its length at most. A class with half
//! of the traffic deserves half of the engines; until this many hold it, a further copy is an investment and
//! not a waste.

use rustc_hash::FxHashMap;

use crate::outline::Outline;

/// Classes at a time.
const MAX_CLASSES: usize = 8_192;
/// Seconds after which an arrival counts half.
const HALF_LIFE: f64 = 10.0;
/// Arrivals of other classes that are assumed per engine before any were seen.
const PRIOR: f64 = 2.0;

/// A count that fades.
#[derive(Debug, Clone, Copy, Default)]
struct Fading {
    count: f64,
    at: f64,
}

impl Fading {
    fn at(self, now: f64) -> f64 {
        self.count * (-(now - self.at).max(0.0) / HALF_LIFE).exp2()
    }

    fn add(&mut self, now: f64) -> f64 {
        *self = Self { count: self.at(now) + 1.0, at: now };
        self.count
    }
}

#[derive(Debug, Default)]
pub(crate) struct Demand {
    classes: FxHashMap<u64, Fading>,
    all: Fading,
}

impl Demand {
    /// Counts a prompt. Says how many of this many engines its class deserves.
    pub(crate) fn arrive(&mut self, outline: &Outline, engines: usize, now: f64) -> f64 {
        let all = self.all.add(now);
        let Some(class) = class(outline) else { return 0.0 };
        if self.classes.len() >= MAX_CLASSES && !self.classes.contains_key(&class) {
            self.forget(now);
        }
        let count = self.classes.entry(class).or_default().add(now);
        let engines = engines as f64;
        engines * count / (all + PRIOR * engines)
    }

    /// Forgets what is rare: the least that makes room, and at least what nearly faded.
    fn forget(&mut self, now: f64) {
        let mut least = 0.5;
        while self.classes.len() >= MAX_CLASSES / 2 {
            self.classes.retain(|_, class| class.at(now) >= least);
            least *= 2.0;
        }
    }
}

fn class(outline: &Outline) -> Option<u64> {
    let half = outline.tokens() / 2;
    let depth = 1u64 << half.checked_ilog2()?;
    let points = outline.points();
    let within = points.partition_point(|point| point.depth <= depth);
    within.checked_sub(1).map(|at| points[at].hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(prefix: u64, own: u64) -> Outline {
        Outline::of_units((0..60).map(|unit| prefix * 1_000 + unit).chain([own * 7_777]), 64)
    }

    #[test]
    fn a_class_deserves_its_share_of_the_engines_and_fades() {
        let mut demand = Demand::default();
        let mut last = 0.0;
        for at in 0..1_000u32 {
            let now = f64::from(at) / 20.0;
            last = demand.arrive(&prompt(1, u64::from(at)), 8, now);
            demand.arrive(&prompt(100 + u64::from(at), 0), 8, now);
        }
        assert!((3.4..4.1).contains(&last), "{last}");
        assert!(demand.arrive(&prompt(100, 0), 8, 50.0) < 0.1);
        assert!(demand.arrive(&prompt(1, 0), 8, 500.0) < 1.0, "what was popular is forgotten");
    }

    #[test]
    fn classes_are_bounded_and_the_popular_stay() {
        let mut demand = Demand::default();
        for _ in 0..100 {
            demand.arrive(&prompt(0, 1), 8, 0.0);
        }
        for other in 1..20_000 {
            demand.arrive(&prompt(other, 1), 8, 0.0);
            assert!(demand.classes.len() <= MAX_CLASSES);
        }
        let popular = class(&prompt(0, 1)).unwrap();
        assert!(demand.classes[&popular].count > 99.0);
    }
}
