//! Who owns an engine: pure functions over what a plane knows.
//!
//! Every plane works out the same order of candidates for an engine ([`candidates`]): the first is to own it,
//! the second to stand by. Who does own it is decided by a record that is compared and set: it has a
//! *generation*, which rises with every claim. Readers compare generations ([`Fence`]); nobody's clock
//! decides who is right, a wrong suspicion costs a generation and nothing else.

use std::cmp::Ordering;
use std::time::Duration;

use kvplane_core::{EngineId, PlaneId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A plane that is not heard for so long is suspected to be gone.
pub const SUSPECTED_AFTER: Duration = Duration::from_secs(1);

/// A plane that may own engines.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Its identity.
    pub plane: PlaneId,
    /// How much of the fleet it is to have, beside the others; nothing at 0 and below.
    pub weight: f64,
}

/// The shard that an engine's frames are in.
pub fn shard(engine: &EngineId, shards: u32) -> u32 {
    // Below `shards`, which is 32 bits wide.
    (xxh3_64(engine.as_str().as_bytes()) % u64::from(shards.max(1))) as u32
}

/// The planes in the order in which they are to own an engine: rendezvous hashing by weight. When a plane
/// comes or goes, only the engines that it is first for have another first.
pub fn candidates(engine: &EngineId, planes: &[Candidate]) -> Vec<PlaneId> {
    let mut scored: Vec<(f64, &PlaneId)> = planes
        .iter()
        .filter(|candidate| candidate.weight > 0.0)
        .map(|candidate| (score(engine, candidate), &candidate.plane))
        .collect();
    let by_score = |a: &(f64, &PlaneId), b: &(f64, &PlaneId)| {
        b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then_with(|| a.1.as_str().cmp(b.1.as_str()))
    };
    scored.sort_by(by_score);
    scored.into_iter().map(|(_, plane)| plane.clone()).collect()
}

/// `-weight / ln(u)` with u in (0, 1): the largest wins, in proportion to the weights.
fn score(engine: &EngineId, candidate: &Candidate) -> f64 {
    let seed = xxh3_64(candidate.plane.as_str().as_bytes());
    let hash = xxh3_64_with_seed(engine.as_str().as_bytes(), seed);
    // 53 bits, which a float has, and never 0 or 1.
    let unit = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -candidate.weight / unit.ln()
}

/// The record of an engine's owner, as the last compare-and-set left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// Who.
    pub plane: PlaneId,
    /// Which run of it: unix milliseconds at its start. Another run remembers nothing of this one's claims.
    pub run: u64,
    /// Of which claim.
    pub generation: u64,
}

/// The generation of a claim: unix milliseconds, and above all that were seen, so that a lost record cannot
/// set it back.
pub fn next_generation(unix_ms: u64, seen: u64) -> u64 {
    unix_ms.max(seen.saturating_add(1))
}

/// What a plane is to do about an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duty {
    /// Claim it: compare and set the record, with a higher generation.
    Claim,
    /// Own it: hear it, record it, publish it.
    Own,
    /// Hear it, publish nothing.
    StandBy,
    /// Follow it.
    Follow,
}

/// What this plane is to do about an engine. `live` are the planes that are heard, this one among them, with
/// their weights; `owned` is the record, `claimant` says whether this plane may own anything at all.
///
/// An owner that is heard keeps its engine, also when another plane would be first for it: only what has no
/// owner moves.
pub fn duty(engine: &EngineId, me: (&PlaneId, u64), live: &[Candidate], owned: Option<&Owned>) -> Duty {
    let (plane, run) = me;
    let order = candidates(engine, live);
    let is_heard = |other: &PlaneId| live.iter().any(|candidate| candidate.plane == *other);
    match owned {
        Some(owned) if owned.plane == *plane && owned.run == run => return Duty::Own,
        Some(owned) if owned.plane != *plane && is_heard(&owned.plane) => {
            let second = order.iter().find(|candidate| **candidate != owned.plane);
            return if second == Some(plane) { Duty::StandBy } else { Duty::Follow };
        }
        // Nobody's, or of somebody who is gone, or of an earlier run of this plane.
        _ => {}
    }
    match order.first() {
        Some(first) if first == plane => Duty::Claim,
        _ if order.get(1) == Some(plane) => Duty::StandBy,
        _ => Duty::Follow,
    }
}

/// What an item's generation is beside the highest that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// It is of an owner that is no more.
    Stale,
    /// It is of the owner.
    Current,
    /// It is of a claim that was not seen.
    Newer,
}

/// The highest generation of a stream that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fence(u64);

impl Fence {
    /// That generation; 0 before any.
    pub fn generation(self) -> u64 {
        self.0
    }

    /// Compares an item's.
    pub fn judge(self, generation: u64) -> Fenced {
        match generation.cmp(&self.0) {
            Ordering::Less => Fenced::Stale,
            Ordering::Equal => Fenced::Current,
            Ordering::Greater => Fenced::Newer,
        }
    }

    /// A generation was seen. True if it is the highest.
    pub fn raise(&mut self, generation: u64) -> bool {
        let newer = generation > self.0;
        self.0 = self.0.max(generation);
        newer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planes(names: &[(&str, f64)]) -> Vec<Candidate> {
        let candidate = |&(name, weight): &(&str, f64)| Candidate { plane: PlaneId::reported(name), weight };
        names.iter().map(candidate).collect()
    }

    fn engine(n: u32) -> EngineId {
        EngineId::new(&format!("engine-{n}"))
    }

    const ENGINES: u32 = 6_000;

    #[test]
    fn every_plane_works_out_the_same_order() {
        let one = planes(&[("a", 1.0), ("b", 1.0), ("c", 1.0)]);
        let mut other = one.clone();
        other.reverse();
        for n in 0..ENGINES {
            assert_eq!(candidates(&engine(n), &one), candidates(&engine(n), &other));
        }
    }

    #[test]
    fn shares_are_as_the_weights_say() {
        let planes = planes(&[("a", 1.0), ("b", 2.0), ("c", 1.0), ("none", 0.0)]);
        let mut owned = [0_u32; 3];
        for n in 0..ENGINES {
            let order = candidates(&engine(n), &planes);
            assert_eq!(order.len(), 3, "a plane without weight owns nothing");
            owned[planes.iter().position(|plane| plane.plane == order[0]).unwrap()] += 1;
        }
        for (count, share) in owned.iter().zip([0.25, 0.5, 0.25]) {
            let expected = f64::from(ENGINES) * share;
            assert!((f64::from(*count) - expected).abs() < expected * 0.1, "{owned:?}");
        }
    }

    #[test]
    fn a_plane_that_goes_moves_its_own_engines_alone_and_its_standby_has_them() {
        let three = planes(&[("a", 1.0), ("b", 1.0), ("c", 1.0)]);
        let two = planes(&[("a", 1.0), ("b", 1.0)]);
        for n in 0..ENGINES {
            let (before, after) = (candidates(&engine(n), &three), candidates(&engine(n), &two));
            let heir = before.iter().find(|plane| plane.as_str() != "c").unwrap();
            assert_eq!(&after[0], heir);
        }
    }

    #[test]
    fn shards_are_below_their_number_and_used_alike() {
        let mut used = [0_u32; 16];
        (0..ENGINES).for_each(|n| used[shard(&engine(n), 16) as usize] += 1);
        assert!(used.iter().all(|&count| count > ENGINES / 32), "{used:?}");
        assert_eq!((shard(&engine(1), 1), shard(&engine(1), 0)), (0, 0));
    }

    #[test]
    fn generations_rise_whatever_the_clock_does() {
        let mut seen = 0;
        for clock in [1_000, 900, 900, 5_000, 0] {
            let next = next_generation(clock, seen);
            assert!(next > seen);
            seen = next;
        }
    }

    #[test]
    fn one_plane_claims_what_nobody_owns_and_nobody_what_somebody_has() {
        let live = planes(&[("a", 1.0), ("b", 1.0), ("c", 1.0)]);
        for n in 0..200 {
            let engine = engine(n);
            let duties = |owned: Option<&Owned>, live: &[Candidate]| -> Vec<Duty> {
                live.iter().map(|me| duty(&engine, (&me.plane, 1), live, owned)).collect()
            };
            let count = |duties: &[Duty], of| duties.iter().filter(|duty| **duty == of).count();
            let free = duties(None, &live);
            assert_eq!((count(&free, Duty::Claim), count(&free, Duty::StandBy)), (1, 1));
            // Whoever has it keeps it, and one of the others stands by.
            for owner in &live {
                let owned = Owned { plane: owner.plane.clone(), run: 1, generation: 7 };
                let held = duties(Some(&owned), &live);
                assert_eq!(
                    (count(&held, Duty::Own), count(&held, Duty::StandBy), count(&held, Duty::Claim)),
                    (1, 1, 0)
                );
                // It goes: the one that stood by claims, if it is the first of those that are left.
                let left: Vec<Candidate> =
                    live.iter().filter(|plane| plane.plane != owner.plane).cloned().collect();
                assert_eq!(count(&duties(Some(&owned), &left), Duty::Claim), 1);
                // It comes back as another run, and claims what it is first for, or leaves it.
                let again = duty(&engine, (&owner.plane, 2), &live, Some(&owned));
                let is_first = candidates(&engine, &live)[0] == owner.plane;
                assert_eq!(again == Duty::Claim, is_first);
            }
        }
    }
}
