//! Decisions and tickets, over a plane that says what a test wants.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvplane_prompt::PromptInput;
use parking_lot::Mutex;

use crate::body::Api;
use crate::decide::decide;
use crate::exchange::{Go, Head, Request, Verdict};
use crate::options::Options;
use crate::plane::{Ask, Chosen, Found, NoTokens, PickError, Plane, Report, Tokens};
use crate::service::Picker;
use crate::{endpoints, names};

/// Picks the first that may be picked, and writes down what it hears.
#[derive(Default)]
struct Told {
    slow: Duration,
    cached: u64,
    fails: Mutex<Option<PickError>>,
    log: Mutex<Vec<String>>,
}

impl Told {
    fn say(&self, words: String) {
        self.log.lock().push(words);
    }
}

impl Plane for Told {
    fn tokenize(&self, model: &str, _prompt: PromptInput) -> Result<Tokens, NoTokens> {
        #[allow(clippy::disallowed_methods, reason = "a tokenizer that takes its time")]
        std::thread::sleep(self.slow);
        Ok(Tokens { model: model.to_owned(), adapter: None, ids: vec![7; 100], proven: true })
    }

    fn pick(&self, ask: &Ask<'_>) -> Result<Chosen, PickError> {
        let tokens =
            ask.tokens.map_or_else(|why| why.as_str().to_owned(), |tokens| tokens.ids.len().to_string());
        self.say(format!("pick {} {tokens} {:?}", ask.model, ask.role));
        if let Some(error) = self.fails.lock().clone() {
            return Err(error);
        }
        let found = |place| Found { place, rank: Some(1), cached: self.cached, cost: 1.0, kind: "vllm" };
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

fn picker(plane: &Arc<Told>, options: Options, pool: &str) -> Picker {
    let picker = Picker::new(plane.clone(), options);
    picker.set_pool(endpoints::read(pool).unwrap());
    picker
}

fn request(body: &str, change: impl FnOnce(&mut Head)) -> Request {
    let mut head = Head {
        api: Api::Chat,
        subset: None,
        objective: None,
        session: None,
        only_cached: false,
        wants_receipt: false,
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
    let plane = Arc::new(Told::default());
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
    let plane = Arc::new(Told::default());
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
    let plane = Arc::new(Told { fails: Mutex::new(Some(PickError::UnknownModel)), ..Told::default() });
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
    let plane = Arc::new(Told { slow: Duration::from_secs(2), ..Told::default() });
    let options = Options { tokenize_timeout: Duration::from_millis(1), ..Options::default() };
    let picker = picker(&plane, options, POOL);
    let body = CHAT.replace("hi", &"long ".repeat(10_000));
    let decided = decide(picker.shared.clone(), request(&body, |_| {})).await;
    assert_eq!(status(&decided.verdict), 200);
    assert_eq!(plane.log.lock()[0], "pick m tokenizer_too_slow Both");
}

#[tokio::test]
async fn those_with_a_priority_below_zero_are_shed() {
    let plane = Arc::new(Told::default());
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
        let plane = Arc::new(Told { cached, ..Told::default() });
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
    let plane = Arc::new(Told::default());
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
