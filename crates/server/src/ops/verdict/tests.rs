use super::*;

const MEANINGS: [Meaning; 9] = [
    Meaning::Accepted { proves: true, covers: Covers::Backend },
    Meaning::Accepted { proves: true, covers: Covers::FirstRank },
    Meaning::Accepted { proves: false, covers: Covers::Backend },
    Meaning::Accepted { proves: false, covers: Covers::FirstRank },
    Meaning::Refused,
    Meaning::Unsupported,
    Meaning::Failed,
    Meaning::Timeout,
    Meaning::Unknown,
];

fn answer(meaning: Meaning, open: bool) -> Answer {
    let why = "so it says".to_owned();
    Answer { meaning, why, asked: Some("POST /flush".to_owned()), sent: true, open, detail: None }
}

fn flush(all_tiers: bool) -> Wanted {
    Wanted { verb: VerbName::Flush, all_tiers }
}

fn sight(outcome: FlushOutcome) -> Sight {
    let (kind, continuity) = (EngineKind::Vllm, Continuity::Live);
    Sight {
        outcome,
        kind,
        continuity,
        held: true,
        doubted: false,
        early: false,
        hint: Some("a hint".to_owned()),
    }
}

fn reach(remaining: &[(Tier, Option<u64>)]) -> FlushReach {
    FlushReach { cleared: vec![Tier::Device], remaining: remaining.to_vec() }
}

fn proven(remaining: &[(Tier, Option<u64>)]) -> FlushOutcome {
    FlushOutcome::Proven { sign: FlushSign::Clear, reach: reach(remaining) }
}

/// Every meaning, open or not, of the first rank or another.
fn answers() -> impl Iterator<Item = (Answer, bool)> {
    MEANINGS.into_iter().flat_map(|meaning| {
        [(false, false), (false, true), (true, false), (true, true)]
            .map(|(open, first)| (answer(meaning, open), first))
    })
}

#[test]
fn what_the_stream_shows_counts_whatever_the_answer_was() {
    let host = [(Tier::Host, Some(12))];
    let disk = [(Tier::Disk, None)];
    for (answer, first) in answers() {
        let success = reports_success(&answer, first);
        let all = if success { Verdict::Done } else { Verdict::Unknown };
        for (outcome, all_tiers, verdict) in [
            (proven(&[]), false, Verdict::Proven),
            (proven(&[]), true, Verdict::Proven),
            (proven(&host), false, Verdict::Unknown),
            (proven(&host), true, all),
            (proven(&disk), false, Verdict::Unknown),
            (proven(&disk), true, all),
            (FlushOutcome::Restarted { reach: reach(&[]) }, true, Verdict::Proven),
            (FlushOutcome::Restarted { reach: reach(&disk) }, false, Verdict::Unknown),
        ] {
            let ruling = judge(flush(all_tiers), &answer, first, Some(&sight(outcome.clone())));
            assert_eq!(ruling.verdict, verdict, "{answer:?} {outcome:?}");
            assert_eq!(ruling.reach.cleared, [Tier::Device]);
            assert_eq!(ruling.may_still_complete, verdict == Verdict::Unknown && all_tiers);
        }
    }
    let why = |all_tiers| {
        judge(flush(all_tiers), &answer(MEANINGS[0], false), true, Some(&sight(proven(&host)))).why
    };
    assert_eq!(
        why(false),
        "its stream shows the clear; only the device was flushed: host holds 12 blocks; reset_external flushes all tiers"
    );
    assert_eq!(
        why(true),
        "its stream shows the clear; the engine reports that other tiers were flushed too, which event streams cannot show: \
         host holds 12 blocks"
    );
}

#[test]
fn behind_a_relay_only_the_device_is_known_to_be_cleared() {
    let outcome = FlushOutcome::Proven {
        sign: FlushSign::Clear,
        reach: FlushReach { cleared: vec![Tier::Device, Tier::Host], remaining: Vec::new() },
    };
    let rule = |kind| {
        let sight = Sight { kind, ..sight(outcome.clone()) };
        judge(flush(false), &answer(MEANINGS[0], false), true, Some(&sight))
    };
    assert_eq!(rule(EngineKind::Sglang).verdict, Verdict::Proven);
    let ruling = rule(EngineKind::Grpc);
    assert_eq!(ruling.verdict, Verdict::Unknown);
    assert_eq!(ruling.reach, FlushReach { cleared: vec![Tier::Device], remaining: vec![(Tier::Host, None)] });
}

#[test]
fn a_refusal_is_one_ranks_word() {
    let place = |first, alone| RankPlace { first, alone };
    let mut refused = answer(Meaning::Refused, false);
    let open = |answer: &Answer, first, alone| may_have_happened(answer, place(first, alone));
    assert!(!open(&refused, true, true) && !open(&refused, true, false), "its own word");
    assert!(open(&refused, false, false), "another's word");
    refused.asked = Some("gRPC FlushCache".to_owned());
    assert!(!open(&refused, true, true));
    assert!(open(&refused, true, false), "somebody's word");
    refused.sent = false;
    assert!(!open(&refused, true, false));
    for (meaning, expected) in [(MEANINGS[0], true), (MEANINGS[2], true), (Meaning::Failed, false)] {
        assert_eq!(open(&answer(meaning, false), true, true), expected, "{meaning:?}");
        assert!(open(&answer(meaning, true), true, true), "{meaning:?}");
    }
}

#[test]
fn without_a_sign_it_is_the_answer_that_counts() {
    for (answer, first) in answers() {
        let success = reports_success(&answer, first);
        let accepted = matches!(answer.meaning, Meaning::Accepted { .. });
        for outcome in [FlushOutcome::Unproven, FlushOutcome::Lost] {
            let ruling = judge(flush(false), &answer, first, Some(&sight(outcome.clone())));
            let expected = match answer.meaning {
                _ if success && outcome == FlushOutcome::Lost => Verdict::Done,
                _ if success => Verdict::Timeout,
                Meaning::Accepted { .. } | Meaning::Unknown => Verdict::Unknown,
                Meaning::Refused => Verdict::Refused,
                Meaning::Unsupported => Verdict::Unsupported,
                Meaning::Failed => Verdict::Failed,
                Meaning::Timeout => Verdict::Timeout,
            };
            assert_eq!(ruling.verdict, expected, "{answer:?} first={first} {outcome:?}");
            let unsettled = matches!(expected, Verdict::Failed | Verdict::Timeout | Verdict::Unknown);
            assert_eq!(ruling.may_still_complete, unsettled && (answer.open || accepted), "{answer:?}");
            assert_eq!(ruling.reach, FlushReach::default());
        }
    }
}

#[test]
fn a_success_that_cannot_be_proven_is_done_and_says_why() {
    let success = answer(MEANINGS[0], false);
    let rule = |change: &dyn Fn(&mut Sight)| {
        let mut sight = sight(FlushOutcome::Unproven);
        change(&mut sight);
        let ruling = judge(flush(false), &success, true, Some(&sight));
        (ruling.verdict, ruling.why)
    };
    let (verdict, why) = rule(&|_| {});
    assert_eq!(verdict, Verdict::Timeout);
    assert_eq!(why, "so it says; not confirmed by its stream within the proof timeout; a hint");
    for continuity in [Continuity::Connecting, Continuity::Recovering, Continuity::Down] {
        let (verdict, why) = rule(&|sight| sight.continuity = continuity);
        assert_eq!(verdict, Verdict::Done);
        assert!(why.contains(continuity.as_str()), "{why}");
    }
    for (kind, held, doubted, verdict) in [
        (EngineKind::Tokenspeed, false, false, Verdict::Done),
        (EngineKind::Tokenspeed, false, true, Verdict::Timeout),
        (EngineKind::Tokenspeed, true, false, Verdict::Timeout),
        (EngineKind::Sglang, false, false, Verdict::Timeout),
    ] {
        let ruled = rule(&|sight| (sight.kind, sight.held, sight.doubted) = (kind, held, doubted));
        assert_eq!(ruled.0, verdict, "{kind} {held} {doubted}");
    }
}

#[test]
fn what_no_stream_shows_is_done_if_the_engine_says_so() {
    for verb in VerbName::ALL.into_iter().filter(|verb| *verb != VerbName::Flush) {
        for (answer, first) in answers() {
            let ruling = judge(Wanted { verb, all_tiers: false }, &answer, first, None);
            let expected = match answer.meaning {
                _ if reports_success(&answer, first) => Verdict::Done,
                Meaning::Accepted { .. } => Verdict::Unknown,
                meaning => by_answer(meaning),
            };
            assert_eq!(ruling.verdict, expected, "{verb} {answer:?}");
            assert!(!ruling.verdict.is_good() || !ruling.may_still_complete);
        }
    }
    let profile = Wanted { verb: VerbName::StartProfile, all_tiers: false };
    let ruling = judge(profile, &answer(MEANINGS[0], false), true, None);
    assert_eq!(ruling.why, "so it says; event streams do not show profiles");
}
