//! Decisions and tickets, over a plane that says what a test wants.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvplane_prompt::PromptInput;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::decide::decide;
use crate::exchange::{Go, Head, Request, Verdict};
use crate::options::Options;
use crate::rewrite::{Rewrite, Rewrites, Target};
use crate::rules::Rules;
use crate::service::Picker;
use crate::{endpoints, names};
use kvplane_inference::Api;
use kvplane_inference::{Ask, Chosen, Found, NoTokens, PickError, Plane, Report, Tokens};

mod abandoned;

/// Picks the first that may be picked, and writes down what it hears.
#[derive(Default)]
struct FakePlane {
    slow: Duration,
    cached: u64,
    /// By place, where endpoints differ.
    held: Vec<u64>,
    fails: Mutex<Option<PickError>>,
    log: Mutex<Vec<String>>,
}

impl FakePlane {
    fn say(&self, words: String) {
        self.log.lock().push(words);
    }
}

impl Plane for FakePlane {
    fn tokenize(&self, model: &str, _prompt: PromptInput) -> Result<Tokens, NoTokens> {
        #[allow(clippy::disallowed_methods, reason = "a tokenizer that takes its time")]
        std::thread::sleep(self.slow);
        Ok(Tokens {
            model: model.to_owned(),
            adapter: None,
            ids: vec![7; 100],
            proven: true,
            ..Tokens::default()
        })
    }

    fn pick(&self, ask: &Ask<'_>) -> Result<Chosen, PickError> {
        let tokens =
            ask.tokens.map_or_else(|why| why.as_str().to_owned(), |tokens| tokens.ids.len().to_string());
        self.say(format!("pick {} {tokens} {:?}", ask.model, ask.role));
        if let Some(error) = self.fails.lock().clone() {
            return Err(error);
        }
        let held = |place: usize| self.held.get(place).copied().unwrap_or(self.cached);
        let found = |place| Found { place, rank: Some(1), cached: held(place), cost: 1.0, kind: "vllm" };
        let endpoints: Vec<Found> = (0..ask.pool.endpoints().len())
            .filter(|place| ask.allows(*place))
            .map(found)
            .take(ask.limit)
            .collect();
        if endpoints.is_empty() {
            return Err(PickError::Nobody("nobody".into()));
        }
        Ok(Chosen { receipt: format!("r{}", endpoints[0].place), endpoints })
    }

    fn first_byte(&self, receipt: &str) {
        self.say(format!("first {receipt}"));
    }

    fn ended(&self, receipt: &str, report: Report) {
        self.say(format!("ended {receipt} {}", report.finished));
    }

    fn is_ready(&self) -> bool {
        true
    }
}

const POOL: &str =
    "- {address: 10.0.0.1, port: 1}\n- {address: 10.0.0.2, port: 1}\n- {address: 10.0.0.2, port: 2}";

fn picker(plane: &Arc<FakePlane>, options: Options, pool: &str) -> Picker {
    let rules = Rules::of(endpoints::read(pool).unwrap().endpoints().to_vec());
    Picker::new(plane.clone(), options, watch::channel(rules).1)
}

fn request(body: &str, change: impl FnOnce(&mut Head)) -> Request {
    let mut head = Head {
        api: Api::Chat,
        subset: None,
        objective: None,
        session: None,
        only_cached: false,
        wants_receipt: false,
        rewrite: None,
        answer_passes: true,
    };
    change(&mut head);
    Request { head, body: vec![Bytes::copy_from_slice(body.as_bytes())], whole: true }
}

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}"#;

fn status(verdict: &Verdict) -> u16 {
    match verdict {
        Verdict::Go(_) => 200,
        Verdict::Refuse(refusal) => refusal.status,
    }
}

fn went(verdict: Verdict) -> Go {
    match verdict {
        Verdict::Go(go) => *go,
        Verdict::Refuse(refusal) => panic!("{refusal:?}"),
    }
}

#[tokio::test]
async fn subsets_bind_and_fallbacks_follow() {
    let plane = Arc::new(FakePlane::default());
    let picker = picker(&plane, Options { fallbacks: 1, scores: true, ..Options::default() }, POOL);
    let subset = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect());
    let decided =
        decide(picker.shared.clone(), request(CHAT, |head| head.subset = subset(&["10.0.0.2"]))).await;
    let go = went(decided.verdict);
    assert_eq!(go.endpoints, ["10.0.0.2:1", "10.0.0.2:2"]);
    assert_eq!(go.scores.len(), 2);
    assert_eq!(go.headers, [(names::RANK, "1".to_owned())]);
    for nobody in [&["10.0.0.9:1"][..], &[]] {
        let decided = decide(picker.shared.clone(), request(CHAT, |head| head.subset = subset(nobody))).await;
        assert_eq!(status(&decided.verdict), 503);
    }
}

#[tokio::test]
async fn what_is_refused_books_nothing() {
    let plane = Arc::new(FakePlane::default());
    let picker = picker(&plane, Options::default(), POOL);
    let decided = decide(picker.shared.clone(), request("{", |_| {})).await;
    assert_eq!(status(&decided.verdict), 400);
    assert!(plane.log.lock().is_empty());
    let decided = decide(picker.shared.clone(), request(CHAT, |head| head.only_cached = true)).await;
    assert_eq!(status(&decided.verdict), 412);
    assert_eq!(plane.log.lock().last().unwrap(), "ended r0 false");
    for (error, expected) in [
        (PickError::Saturated("s".into()), 429),
        (PickError::Nobody("n".into()), 503),
        (PickError::UnknownModel, 200),
    ] {
        *plane.fails.lock() = Some(error);
        assert_eq!(status(&decide(picker.shared.clone(), request(CHAT, |_| {})).await.verdict), expected);
    }
    assert_eq!(picker.stats().in_flight().load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[tokio::test]
async fn unknown_models_go_in_turn() {
    let plane =
        Arc::new(FakePlane { fails: Mutex::new(Some(PickError::UnknownModel)), ..FakePlane::default() });
    let picker = picker(&plane, Options::default(), POOL);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let decided = decide(picker.shared.clone(), request(CHAT, |_| {})).await;
        assert!(decided.ticket.is_none());
        seen.extend(went(decided.verdict).endpoints);
    }
    assert_eq!(seen, ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.1:1"]);
}

#[tokio::test]
async fn a_tokenizer_that_is_too_slow_is_not_waited_for() {
    let plane = Arc::new(FakePlane { slow: Duration::from_secs(2), ..FakePlane::default() });
    let options = Options { tokenize_timeout: Duration::from_millis(1), ..Options::default() };
    let picker = picker(&plane, options, POOL);
    let body = CHAT.replace("hi", &"long ".repeat(10_000));
    let decided = decide(picker.shared.clone(), request(&body, |_| {})).await;
    assert_eq!(status(&decided.verdict), 200);
    assert_eq!(plane.log.lock()[0], "pick m tokenizer_too_slow Both");
}

#[tokio::test]
async fn those_with_a_priority_below_zero_are_shed() {
    let plane = Arc::new(FakePlane::default());
    let objectives = [("batch".to_owned(), -1), ("chat".to_owned(), 1)].into();
    let picker = picker(
        &plane,
        Options { objectives, shed_at: 1, ..Options::default() },
        "- {address: 10.0.0.1, port: 1}",
    );
    let objective = |name: &'static str| request(CHAT, move |head| head.objective = Some(name.to_owned()));
    let first = decide(picker.shared.clone(), objective("batch")).await;
    assert_eq!(status(&first.verdict), 200);
    let shed = decide(picker.shared.clone(), objective("batch")).await;
    let Verdict::Refuse(refusal) = shed.verdict else { panic!() };
    assert_eq!(
        (refusal.status, refusal.retry_after, refusal.dropped),
        (429, Some(2), Some("rejected-saturated"))
    );
    assert_eq!(status(&decide(picker.shared.clone(), objective("chat")).await.verdict), 200);
    drop(first);
    assert_eq!(plane.log.lock().last().unwrap(), "ended r0 false");
    assert_eq!(status(&decide(picker.shared.clone(), objective("batch")).await.verdict), 200);
}

#[tokio::test]
async fn prefills_elsewhere_where_there_is_somebody_for_it() {
    let pool = "- {address: 10.0.0.1, port: 1, labels: {llm-d.ai/role: prefill}}\n- {address: 10.0.0.2, port: 1, labels: {llm-d.ai/role: decode}}";
    for (cached, prefills) in [(0, true), (100, false)] {
        let plane = Arc::new(FakePlane { cached, ..FakePlane::default() });
        let picker = picker(&plane, Options::default(), pool);
        let decided = decide(picker.shared.clone(), request(CHAT, |_| {})).await;
        let go = went(decided.verdict);
        assert_eq!(go.endpoints, ["10.0.0.2:1"]);
        assert_eq!(go.headers.contains(&(names::PREFILLER, "10.0.0.1:1".to_owned())), prefills);
        drop(decided.ticket);
        let ended = plane.log.lock().iter().filter(|line| line.starts_with("ended")).count();
        assert_eq!(ended, 1 + usize::from(prefills));
    }
}

#[tokio::test]
async fn bodies_change_only_when_asked_to() {
    let plane = Arc::new(FakePlane::default());
    for (token_in, include_usage) in [(false, false), (true, false), (false, true), (true, true)] {
        let picker = picker(&plane, Options { token_in, include_usage, ..Options::default() }, POOL);
        let go = went(decide(picker.shared.clone(), request(CHAT, |_| {})).await.verdict);
        assert_eq!(go.withhold_usage, include_usage);
        let body = go.body.map(|body| String::from_utf8(body.concat()).unwrap()).unwrap_or_default();
        assert_eq!(body.contains("prompt_token_ids"), token_in);
        assert_eq!(body.contains("include_usage"), include_usage);
    }
    let asked = CHAT.replace("\"stream\":true", "\"stream\":true,\"stream_options\":{}");
    let picker = picker(&plane, Options { include_usage: true, ..Options::default() }, POOL);
    let go = went(decide(picker.shared.clone(), request(&asked, |_| {})).await.verdict);
    assert!(go.body.is_none() && !go.withhold_usage, "a client that says what it wants gets it");
}

fn header<'a>(go: &'a Go, name: &str) -> Option<&'a str> {
    go.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
}

#[tokio::test]
async fn another_model_is_asked_for_by_rules_then_options_then_headers() {
    let rule = |model: &str, target: &str| Rewrite {
        model: Some(model.to_owned()),
        targets: vec![Target { model: target.to_owned(), weight: 1 }],
    };
    let plane = Arc::new(FakePlane::default());
    let rules = Rules {
        rewrites: Rewrites::new([rule("m", "by-rule"), rule("same", "same")]),
        ..(*Rules::of(endpoints::read(POOL).unwrap().endpoints().to_vec())).clone()
    };
    let options = Options {
        rewrites: Rewrites::new([rule("m", "unused"), rule("o", "by-option")]),
        ..Options::default()
    };
    let picker = Picker::new(plane.clone(), options, watch::channel(Arc::new(rules)).1);
    for (asked, header, engine) in [
        ("m", Some("by-header"), Some("by-rule")),
        ("o", Some("by-header"), Some("by-option")),
        ("x", Some("by-header"), Some("by-header")),
        ("x", Some("x"), None),
        ("x", None, None),
        ("same", None, None),
    ] {
        let body = CHAT.replace("\"m\"", &format!("\"{asked}\""));
        let ask = request(&body, |head| head.rewrite = header.map(str::to_owned));
        let go = went(decide(picker.shared.clone(), ask).await.verdict);
        assert_eq!(go.renamed.as_ref().map(|renamed| renamed.engine.as_str()), engine, "{asked} {header:?}");
        let sent = go.body.map(|body| String::from_utf8(body.concat()).unwrap());
        let expected = engine.map(|engine| CHAT.replace("\"m\"", &format!("\"{engine}\"")));
        assert_eq!(sent, expected);
        let model = engine.unwrap_or(asked);
        assert!(plane.log.lock().iter().rev().any(|line| line.starts_with(&format!("pick {model} "))));
    }
    assert_eq!(picker.stats().rewritten(), 3);
}

#[tokio::test]
async fn a_body_that_is_rewritten_in_turn_is_sent_on_rewritten() {
    let plane =
        Arc::new(FakePlane { fails: Mutex::new(Some(PickError::UnknownModel)), ..FakePlane::default() });
    let picker = picker(&plane, Options::default(), POOL);
    let ask = request(CHAT, |head| head.rewrite = Some("t".into()));
    let go = went(decide(picker.shared.clone(), ask).await.verdict);
    assert!(String::from_utf8(go.body.unwrap().concat()).unwrap().starts_with(r#"{"model":"t","#));
    assert!(go.renamed.is_some());
}

#[tokio::test]
async fn images_are_encoded_by_those_who_do() {
    let pool = "- {address: 10.0.0.1, port: 1, labels: {llm-d.ai/role: encode}}\n\
                - {address: 10.0.0.2, port: 1, labels: {llm-d.ai/role: encode}}\n\
                - {address: 10.0.0.3, port: 1, labels: {llm-d.ai/role: prefill-decode}}\n";
    let image = r#"{"type":"image_url","image_url":{"url":"u"}}"#;
    let plane = Arc::new(FakePlane::default());
    for (images, pool, encoders) in [
        (0, pool, None),
        (1, pool, Some(1)),
        (5, pool, Some(2)),
        (1, "- {address: 10.0.0.1, port: 1}", None),
        (1, "- {address: 10.0.0.1, port: 1, labels: {llm-d.ai/role: encode-prefill-decode}}", None),
    ] {
        let picker = picker(&plane, Options::default(), pool);
        let body = CHAT.replace("\"hi\"", &format!("[{}]", vec![image; images].join(",")));
        let go = went(decide(picker.shared.clone(), request(&body, |_| {})).await.verdict);
        let list = header(&go, names::ENCODERS).map(|list| list.split(',').count());
        assert_eq!(list, encoders, "{images} of {pool}");
        assert!(!go.endpoints.contains(&"10.0.0.1:1".to_owned()) || pool.len() < 120);
    }
}

#[tokio::test]
async fn the_best_holder_is_named_where_blocks_can_be_pulled() {
    for (pull_from, held, source) in [
        (0, [0, 64, 32], None),
        (1, [0, 64, 64], Some("10.0.0.2:1")),
        (64, [0, 32, 64], Some("10.0.0.2:2")),
        (65, [0, 32, 64], None),
        (1, [64, 32, 64], None),
    ] {
        let plane = Arc::new(FakePlane { held: held.to_vec(), ..FakePlane::default() });
        let picker = picker(&plane, Options { pull_from, ..Options::default() }, POOL);
        let go = went(decide(picker.shared.clone(), request(CHAT, |_| {})).await.verdict);
        assert_eq!(go.endpoints, ["10.0.0.1:1"], "others are not fallbacks");
        assert_eq!(header(&go, names::KV_SOURCE), source, "{pull_from} {held:?}");
    }
}

#[tokio::test]
async fn the_one_who_prefills_pulls() {
    let pool = "- {address: 10.0.0.1, port: 1, labels: {llm-d.ai/role: prefill}}\n\
                - {address: 10.0.0.2, port: 1, labels: {llm-d.ai/role: prefill}}\n\
                - {address: 10.0.0.3, port: 1, labels: {llm-d.ai/role: decode}}\n";
    for (held, prefill_from, source) in [
        ([0, 80, 10], 16, Some("10.0.0.2:1")),
        ([80, 80, 10], 16, None),
        ([0, 80, 10], 0, None),
        ([0, 5, 50], 16, Some("10.0.0.3:1")),
    ] {
        let plane = Arc::new(FakePlane { held: held.to_vec(), ..FakePlane::default() });
        let picker = picker(&plane, Options { pull_from: 8, prefill_from, ..Options::default() }, pool);
        let go = went(decide(picker.shared.clone(), request(CHAT, |_| {})).await.verdict);
        assert_eq!(header(&go, names::PREFILLER), (prefill_from > 0).then_some("10.0.0.1:1"));
        assert_eq!(header(&go, names::KV_SOURCE), source, "{held:?}");
    }
}

#[tokio::test]
async fn nothing_is_taken_out_of_answers_that_do_not_pass() {
    let plane = Arc::new(FakePlane::default());
    let picker = picker(&plane, Options { include_usage: true, ..Options::default() }, POOL);
    let ask = request(CHAT, |head| head.answer_passes = false);
    let go = went(decide(picker.shared.clone(), ask).await.verdict);
    assert!(go.body.is_none() && !go.withhold_usage);
}
