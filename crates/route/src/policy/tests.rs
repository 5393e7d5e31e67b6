use super::*;

fn view(credit: f64, pending: f64, requests: f64) -> View {
    View {
        at: 0,
        identity: 7,
        credit,
        held: credit,
        flight: 0,
        queue: pending / 16_000.0,
        pending,
        waiting: 0.0,
        requests,
        foreign: 0.0,
        kv_tokens: 0.0,
        kv_usage: 0.0,
        load: LoadSource::Bookings,
        factor: 1.0,
        terms: Terms::default(),
    }
}

fn context(prompt: u64) -> Context {
    Context {
        weights: Weights::default(),
        prompt,
        session: None,
        lead: None,
        turn: 0,
        fresh: None,
        together: 0.0,
    }
}

fn best(policy: Policy, context: &Context, mut views: Vec<View>) -> usize {
    for view in &mut views {
        view.terms = terms(context, view);
    }
    let mut costs = Vec::new();
    policy.costs(context, &views, &mut costs);
    assert_eq!(costs.len(), views.len());
    (0..costs.len()).min_by(|one, other| costs[*one].total_cmp(&costs[*other])).unwrap()
}

#[test]
fn names_are_read_back() {
    for policy in Policy::ALL {
        assert_eq!(policy.as_str().parse(), Ok(policy));
    }
    let error = "fastest".parse::<Policy>().unwrap_err().to_string();
    assert!(error.contains("fastest") && error.contains("llm_d_filter"), "{error}");
}

#[test]
fn work_is_the_formula() {
    let context = context(1_000);
    let mut view = view(400.0, 3_000.0, 8.0);
    view.kv_tokens = 10_000.0;
    view.kv_usage = 0.5;
    let terms = terms(&context, &view);
    let own = 600.0 / 16_000.0 + 0.6e-9 * 600.0 * 700.0;
    let expected = 3_000.0 / 16_000.0 + 1.5 * own * 1.12 + 0.024 + 0.005 + 0.03;
    assert!((terms.total() - expected).abs() < 1e-9, "{} {expected}", terms.total());
}

#[test]
fn work_follows_the_cache_until_the_queue_costs_more() {
    let context = context(8_000);
    let choose =
        |queued: f64| best(Policy::Work, &context, vec![view(7_900.0, queued, 1.0), view(0.0, 0.0, 1.0)]);
    assert_eq!(choose(0.0), 0);
    assert_eq!(choose(12_000.0), 0);
    assert_eq!(choose(40_000.0), 1);
}

#[test]
fn affinity_stays_with_the_holder_until_it_is_far_over_the_mean() {
    let context = context(8_000);
    let choose = |requests: f64| {
        let others = (0..7).map(|_| view(0.0, 0.0, 4.0));
        best(Policy::Affinity, &context, std::iter::once(view(100.0, 1e6, requests)).chain(others).collect())
    };
    assert_eq!(choose(6.0), 0);
    assert_ne!(choose(16.0), 0);
}

#[test]
fn the_others_do_as_their_names_say() {
    let long = context(1_000);
    assert_eq!(best(Policy::LeastWork, &long, vec![view(999.0, 10.0, 0.0), view(0.0, 0.0, 0.0)]), 1);
    assert_eq!(best(Policy::Dynamo, &long, vec![view(900.0, 500.0, 0.0), view(0.0, 0.0, 0.0)]), 0);
    assert_eq!(best(Policy::Lmetric, &long, vec![view(900.0, 0.0, 20.0), view(0.0, 0.0, 1.0)]), 1);
    assert_eq!(best(Policy::LlmDFilter, &long, vec![view(800.0, 200_000.0, 0.0), view(799.0, 0.0, 0.0)]), 0);
    assert_eq!(best(Policy::LlmDFilter, &long, vec![view(800.0, 300_000.0, 0.0), view(799.0, 0.0, 0.0)]), 1);
    let turns =
        |turn| best(Policy::RoundRobin, &Context { turn, ..context(1) }, vec![view(0.0, 0.0, 0.0); 3]);
    assert_eq!([0, 1, 2, 3].map(turns), [0, 1, 2, 0]);
}

#[test]
fn a_session_stays_and_only_what_was_there_moves() {
    let workers: Vec<View> =
        (0..8).map(|at| View { identity: at * 977 + 3, ..view(0.0, 0.0, 0.0) }).collect();
    let mut moved = 0;
    for session in 0..400 {
        let context = Context { session: Some(session), ..context(10) };
        let home = best(Policy::Session, &context, workers.clone());
        assert_eq!(home, best(Policy::Session, &context, workers.clone()));
        let mut fewer = workers.clone();
        fewer.remove(3);
        let now = best(Policy::Session, &context, fewer);
        let now = if now >= 3 { now + 1 } else { now };
        if home == 3 {
            moved += 1;
        } else {
            assert_eq!(home, now);
        }
    }
    assert!((20..90).contains(&moved), "{moved}");
}
