//! Which model is asked for in the place of another.

use std::collections::HashMap;

/// One rule, as an `InferenceModelRewrite` has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// The model that clients ask for; absent: any that no other rule names.
    pub model: Option<String>,
    /// What is asked for in its place.
    pub targets: Vec<Target>,
}

/// One of the models that share a rule's requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The model.
    pub model: String,
    /// Its share of the sum of weights. Where all are 0, shares are equal.
    pub weight: u32,
}

/// Rules by the models that they are about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rewrites {
    named: HashMap<String, Vec<Target>>,
    others: Vec<Target>,
}

impl Rewrites {
    /// Rules. Of two about one model the first counts, and one without targets says nothing.
    pub fn new(rules: impl IntoIterator<Item = Rewrite>) -> Self {
        let mut all = Self::default();
        for Rewrite { model, targets } in rules.into_iter().filter(|rule| !rule.targets.is_empty()) {
            match model {
                Some(model) => {
                    all.named.entry(model).or_insert(targets);
                }
                None if all.others.is_empty() => all.others = targets,
                None => {}
            }
        }
        all
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.others.is_empty()
    }
    /// What is asked for in the place of a model, for a draw that is uniform over all numbers.
    pub(crate) fn target(&self, model: &str, draw: u64) -> Option<&str> {
        let targets = self.named.get(model).unwrap_or(&self.others);
        let last = targets.last()?;
        let weight = |target: &Target| u64::from(target.weight);
        let all: u64 = targets.iter().map(weight).sum();
        let even = u64::from(all == 0);
        let total = all + even * targets.len() as u64;
        // Below the total, as the draw is below 2^64.
        let mut at = ((u128::from(draw) * u128::from(total)) >> 64) as u64;
        for target in targets {
            let share = weight(target) + even;
            if at < share {
                return Some(&target.model);
            }
            at -= share;
        }
        Some(&last.model)
    }
}
/// The `n`th draw of a sequence that fills all numbers evenly: shares are met within a few requests, not
/// within hundreds.
pub(crate) fn draw(n: u64) -> u64 {
    /// 2^64 divided by the golden ratio.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    n.wrapping_mul(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(model: Option<&str>, targets: &[(&str, u32)]) -> Rewrite {
        let target = |(model, weight): &(&str, u32)| Target { model: (*model).to_owned(), weight: *weight };
        Rewrite { model: model.map(str::to_owned), targets: targets.iter().map(target).collect() }
    }

    fn shares(rules: &Rewrites, model: &str) -> Vec<(String, usize)> {
        let mut counts = std::collections::BTreeMap::new();
        for n in 0..1000 {
            let target = rules.target(model, draw(n)).unwrap_or("-");
            *counts.entry(target.to_owned()).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }

    #[test]
    fn weights_are_shares() {
        let rules = Rewrites::new([
            rule(Some("a"), &[("a1", 90), ("a2", 10), ("a3", 0)]),
            rule(Some("b"), &[("b1", 0), ("b2", 0)]),
        ]);
        let got = shares(&rules, "a");
        assert_eq!(got.iter().map(|one| one.0.as_str()).collect::<Vec<_>>(), ["a1", "a2"]);
        assert!(got[0].1.abs_diff(900) <= 2, "{got:?}");
        let got = shares(&rules, "b");
        assert!(got[0].1.abs_diff(500) <= 2 && got.len() == 2, "{got:?}");
        assert_eq!(shares(&rules, "c"), [("-".to_owned(), 1000)]);
    }

    #[test]
    fn the_first_rule_counts_and_names_come_before_the_rest() {
        let rules = Rewrites::new([
            rule(None, &[("any", 1)]),
            rule(Some("a"), &[]),
            rule(Some("a"), &[("first", u32::MAX)]),
            rule(Some("a"), &[("second", 1)]),
            rule(None, &[("late", 1)]),
        ]);
        for n in [0, 1, u64::MAX] {
            assert_eq!((rules.target("a", n), rules.target("x", n)), (Some("first"), Some("any")));
        }
        assert!(Rewrites::new([rule(Some("a"), &[])]).is_empty());
    }
}
