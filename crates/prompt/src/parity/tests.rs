use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn set(dimensions: &[Dimension]) -> Dimensions {
    dimensions.iter().fold(Dimensions::default(), |set, dimension| set.with_if(*dimension, true))
}

#[test]
fn what_nobody_compared_is_assumed() {
    let parity = Parity::default();
    let chat = set(&[Dimension::Chat]);
    assert_eq!(parity.of_model("m", chat), (Standing::Assumed, None));
    assert_eq!(parity.of_engine("m", "e", chat), Standing::Assumed);
}

#[test]
fn equal_ids_prove_their_dimensions_and_no_others() {
    let mut parity = Parity::default();
    let system = set(&[Dimension::Chat, Dimension::System]);
    assert_eq!(parity.observe("m", "e", system, Evidence::Ids { equal: true }), None);
    assert_eq!(parity.of_model("m", system).0, Standing::Proven);
    assert_eq!(parity.of_model("m", set(&[Dimension::Chat, Dimension::Tools])).0, Standing::Assumed);
    // An engine that nobody compared is the worst of them.
    parity.begin("m", "f");
    assert_eq!(parity.of_model("m", system).0, Standing::Assumed);
    assert_eq!(parity.of_engine("m", "e", system), Standing::Proven);
}

#[test]
fn equal_lengths_prove_nothing_and_others_contradict() {
    let mut parity = Parity::default();
    let chat = set(&[Dimension::Chat]);
    parity.observe("m", "e", chat, Evidence::Length { equal: true });
    assert_eq!(parity.of_model("m", chat).0, Standing::Assumed);
    let found = parity.observe("m", "e", chat, Evidence::Length { equal: false }).unwrap();
    assert_eq!((found.model.as_str(), found.engine.as_str(), found.dimensions), ("m", "e", chat));
    assert_eq!(parity.of_model("m", chat), (Standing::Contradicted, Some("e")));
    assert_eq!(parity.contradicted("m", "e", chat), Some(Dimension::Chat));
    // Said once.
    assert_eq!(parity.observe("m", "e", chat, Evidence::Ids { equal: false }), None);
    // One right prompt does not mend it, a new start does.
    parity.observe("m", "e", chat, Evidence::Ids { equal: true });
    assert_eq!(parity.of_model("m", chat).0, Standing::Contradicted);
    parity.begin("m", "e");
    assert_eq!(parity.of_model("m", chat).0, Standing::Assumed);
}

#[test]
fn what_is_proven_is_blamed_last() {
    let mut parity = Parity::default();
    let (chat, tools) = (set(&[Dimension::Chat]), set(&[Dimension::Chat, Dimension::Tools]));
    parity.observe("m", "e", chat, Evidence::Ids { equal: true });
    let found = parity.observe("m", "e", tools, Evidence::Ids { equal: false }).unwrap();
    assert_eq!(found.dimensions, set(&[Dimension::Tools]));
    assert_eq!(parity.of_model("m", chat).0, Standing::Proven);
    let found = parity.observe("m", "e", chat, Evidence::Ids { equal: false }).unwrap();
    assert_eq!(found.dimensions, chat);
}

#[test]
fn the_first_request_and_one_in_a_thousand_are_sampled() {
    let mut parity = Parity::default();
    let sampled: Vec<u64> = (0..3000).filter(|_| parity.sample()).collect();
    assert_eq!(sampled, [0, 1000, 2000]);
}

#[test]
fn probes_cover_what_fixed_prompts_can_have() {
    let mut all = Dimensions::default();
    for probe in probes() {
        let dimensions = probe.input.dimensions();
        // Each is simpler than what follows: it brings at least one new dimension, or combines known ones.
        all = dimensions.iter().fold(all, |all, dimension| all.with_if(dimension, true));
    }
    let missing: Vec<_> = Dimension::ALL.into_iter().filter(|dimension| !all.contains(*dimension)).collect();
    assert_eq!(missing, [Dimension::Kwargs]);
}

#[test]
fn engines_are_bounded() {
    let mut parity = Parity::default();
    for at in 0..MAX_ENGINES + 10 {
        parity.begin("m", &format!("e{at}"));
        parity.observe("m", &format!("f{at}"), set(&[Dimension::Chat]), Evidence::Ids { equal: true });
    }
    assert_eq!(parity.rows().len(), MAX_ENGINES);
}

/// The table in the module's documentation, read literally: every comparison is kept, and the state is
/// computed from all of them.
fn naive(history: &[(usize, u16, Evidence)], dimension: Dimension, engine: usize) -> Standing {
    let mut standings: HashMap<u8, Standing> = HashMap::new();
    for (_, bits, evidence) in history.iter().filter(|(of, ..)| *of == engine) {
        let given: Vec<u8> = (0..9).filter(|bit| bits & (1 << bit) != 0).collect();
        let of =
            |standings: &HashMap<u8, Standing>, bit: &u8| standings.get(bit).copied().unwrap_or_default();
        match evidence {
            Evidence::Length { equal: true } => {}
            Evidence::Ids { equal: true } => {
                for bit in &given {
                    if of(&standings, bit) != Standing::Contradicted {
                        standings.insert(*bit, Standing::Proven);
                    }
                }
            }
            _ => {
                let all = given.iter().all(|bit| of(&standings, bit) == Standing::Proven);
                for bit in &given {
                    if all || of(&standings, bit) != Standing::Proven {
                        standings.insert(*bit, Standing::Contradicted);
                    }
                }
            }
        }
    }
    standings.get(&(dimension as u8)).copied().unwrap_or_default()
}

proptest! {
    #[test]
    fn any_history_gives_what_the_table_says(
        history in prop::collection::vec((0usize..3, 1u16..512, any::<bool>(), any::<bool>()), 0..40)
    ) {
        let history: Vec<_> = history.into_iter().map(|(engine, bits, ids, equal)| {
            (engine, bits, if ids { Evidence::Ids { equal } } else { Evidence::Length { equal } })
        }).collect();
        let mut parity = Parity::default();
        for (at, (engine, bits, evidence)) in history.iter().enumerate() {
            let dimensions = Dimension::ALL.into_iter().fold(Dimensions::default(), |set, dimension| {
                set.with_if(dimension, bits & (1 << dimension as u8) != 0)
            });
            let before: Vec<_> = Dimension::ALL.into_iter().map(|d| naive(&history[..at], d, *engine)).collect();
            let reported = parity.observe("m", &engine.to_string(), dimensions, *evidence);
            let fresh: Vec<_> = Dimension::ALL.into_iter().zip(before).filter(|(dimension, before)| {
                *before != Standing::Contradicted
                    && naive(&history[..=at], *dimension, *engine) == Standing::Contradicted
            }).map(|(dimension, _)| dimension).collect();
            prop_assert_eq!(reported.map(|reported| reported.dimensions.iter().collect::<Vec<_>>()).unwrap_or_default(), fresh);
        }
        for engine in 0..3 {
            for dimension in Dimension::ALL {
                let standing = parity.of_engine("m", &engine.to_string(), set(&[dimension]));
                prop_assert_eq!(standing, naive(&history, dimension, engine));
            }
        }
    }
}
