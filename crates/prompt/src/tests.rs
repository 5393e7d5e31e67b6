//! Models from files: what they compute, and what is said of files and requests that are wrong.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::testing::{model_directory, write_model};
use crate::{
    Dimension, Evidence, Implementation, Json, Model, ModelSpec, PromptError, PromptInput, Prompts, Standing,
    Tokenizer,
};
use kvplane_core::{ErrorCode, PublicError};
use parking_lot::Mutex;
use proptest::prelude::*;

fn chat(messages: &str) -> PromptInput {
    PromptInput::chat(Json::parse(messages.as_bytes()).unwrap(), None, None).unwrap()
}

fn loaded(name: &str) -> (PathBuf, Prompts) {
    let directory = model_directory(name);
    let mut spec = ModelSpec::from_directory("m", &directory);
    spec.adapters = vec!["m-lora".to_owned()];
    (directory, Prompts::load(vec![spec]).unwrap())
}

/// The field that the error names.
fn blamed(error: PromptError) -> (ErrorCode, Option<&'static str>) {
    let error = PublicError::from(error);
    (error.code, error.field)
}

#[test]
fn the_fast_tokenizer_is_used_and_computes_what_the_reference_does() {
    let (directory, prompts) = loaded("same");
    let model = prompts.model("m").unwrap();
    assert_eq!(model.tokenizer().implementation(), Implementation::Fast);
    let reference = Tokenizer::load_reference(&directory.join("tokenizer.json")).unwrap();
    assert_eq!(reference.implementation(), Implementation::HuggingFace);
    let any_text = prop::collection::vec(
        prop_oneof![
            any::<char>().prop_map(String::from),
            "[ a-z'\\n0-9]{0,12}",
            prop::sample::select(vec![
                "<|im_start|>",
                "<|im_end|>",
                "<think>",
                "<|im_",
                "é",
                "e\u{301}",
                "the and "
            ])
            .prop_map(str::to_owned),
        ],
        0..40,
    );
    proptest!(ProptestConfig::with_cases(400), |(parts in any_text)| {
        let text = parts.concat();
        for special in [false, true] {
            prop_assert_eq!(model.tokenizer().encode(&text, special), reference.encode(&text, special));
        }
    });
    let (hits, _) = model.tokenizer().cached_segments();
    assert!(hits > 0, "segments between special tokens are taken from the cache");
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_chat_is_what_its_rendered_text_is() {
    let (directory, prompts) = loaded("chat");
    let model = prompts.model("m").unwrap();
    let input = chat(r#"[{"role":"user","content":"the end"}]"#);
    let text = "<|im_start|>user\nthe end<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(model.render(&input, 0).unwrap(), text);
    let tokenized = prompts.tokenize("m", &input).unwrap();
    assert_eq!(Some(&tokenized.ids), model.tokenizer().encode(text, false).as_ref());
    assert_eq!(
        (tokenized.model.as_str(), tokenized.adapter, tokenized.standing),
        ("m", None, Standing::Assumed)
    );
    let adapter = prompts.tokenize("m-lora", &input).unwrap();
    assert_eq!((adapter.model.as_str(), adapter.adapter.as_deref()), ("m", Some("m-lora")));
    assert_eq!(adapter.ids, tokenized.ids);
    assert_eq!(prompts.names(), ["m"]);
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn the_next_turn_costs_its_new_text() {
    let (directory, prompts) = loaded("turns");
    let model = prompts.model("m").unwrap();
    let mut messages = Vec::new();
    for turn in 0..20 {
        messages.push(format!(r#"{{"role":"user","content":"question {turn}"}}"#));
        let (_, before) = model.tokenizer().cached_segments();
        prompts.tokenize("m", &chat(&format!("[{}]", messages.join(",")))).unwrap();
        let (_, after) = model.tokenizer().cached_segments();
        assert!(after - before <= 5, "turn {turn} computed {} segments", after - before);
        messages.push(format!(r#"{{"role":"assistant","content":"answer {turn}"}}"#));
    }
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn requests_that_are_wrong_name_their_field() {
    let (directory, prompts) = loaded("wrong");
    let field = |input: &PromptInput| blamed(prompts.tokenize("m", input).unwrap_err());
    for messages in [
        "[]",
        "[1]",
        r#"[{"content":"no role"}]"#,
        r#"[{"role":"user","content":7}]"#,
        r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]"#,
        r#"[{"role":"assistant","tool_calls":7}]"#,
        r#"[{"role":"assistant","tool_calls":[{"type":"other"}]}]"#,
        r#"[{"role":"forbidden","content":"x"}]"#,
        r#"[{"role":"echo","content":"secret words"}]"#,
    ] {
        assert_eq!(field(&chat(messages)), (ErrorCode::InvalidArgument, Some("messages")), "{messages}");
    }
    let json = |text: &str| Json::parse(text.as_bytes()).unwrap();
    let user = || json(r#"[{"role":"user","content":"x"}]"#);
    assert_eq!(blamed(PromptInput::chat(json("{}"), None, None).unwrap_err()).1, Some("messages"));
    assert_eq!(blamed(PromptInput::chat(user(), Some(json("{}")), None).unwrap_err()).1, Some("tools"));
    assert_eq!(
        blamed(PromptInput::chat(user(), None, Some(json("[]"))).unwrap_err()).1,
        Some("chat_template_kwargs")
    );
    let kwargs = PromptInput::chat(user(), None, Some(json(r#"{"messages":[]}"#))).unwrap();
    assert_eq!(field(&kwargs).1, Some("chat_template_kwargs"));
    let tools = PromptInput::chat(user(), Some(json(r#"[{"type":"function"}]"#)), None).unwrap();
    assert_eq!(field(&tools).1, Some("tools"));
    let unknown = prompts.tokenize("other", &PromptInput::text("x")).unwrap_err();
    assert_eq!(blamed(unknown), (ErrorCode::InvalidArgument, Some("model")));
    // The template's own sentence is repeated, one that was made of the prompt is not.
    let said = |role: &str| {
        let input = chat(&format!(r#"[{{"role":"{role}","content":"secret words"}}]"#));
        prompts.tokenize("m", &input).unwrap_err().to_string()
    };
    assert!(said("forbidden").contains("this role is not allowed"));
    assert!(!said("echo").contains("secret"), "{}", said("echo"));
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn nothing_is_longer_than_it_may_be() {
    let (directory, prompts) = loaded("long");
    let long = PromptInput::text("x".repeat(crate::MAX_TEXT + 1));
    assert_eq!(blamed(prompts.tokenize("m", &long).unwrap_err()).1, Some("prompt"));
    let many = vec![r#"{"role":"user","content":""}"#; crate::MAX_MESSAGES + 1].join(",");
    assert_eq!(blamed(prompts.tokenize("m", &chat(&format!("[{many}]"))).unwrap_err()).1, Some("messages"));
    // A template that makes much of little, and one that takes many steps for it.
    for template in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    ] {
        write_model(&directory, template);
        let model = Model::load(&ModelSpec::from_directory("m", &directory)).unwrap();
        let error = model.ids(&chat(r#"[{"role":"user","content":"x"}]"#), 0).unwrap_err();
        assert_eq!(blamed(error), (ErrorCode::InvalidArgument, Some("messages")));
    }
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn files_that_are_wrong_are_named() {
    let directory = model_directory("files");
    let named = |spec: &ModelSpec| Model::load(spec).unwrap_err().to_string();
    let spec = ModelSpec::from_directory("m", directory.join("missing"));
    assert!(named(&spec).contains("missing"), "{}", named(&spec));
    write_model(&directory, "{% for x in %}");
    let spec = ModelSpec::from_directory("m", &directory);
    assert!(named(&spec).contains("chat template"), "{}", named(&spec));
    write_model(&directory, "");
    for text in ["", "{}", "{\"model\":", "[]", "\u{0}"] {
        fs::write(directory.join("tokenizer.json"), text).unwrap();
        assert!(named(&spec).contains("is not a tokenizer.json"), "{text:?}: {}", named(&spec));
    }
    fs::remove_file(directory.join("tokenizer.json")).unwrap();
    assert!(named(&spec).contains("has no tokenizer.json"), "{}", named(&spec));
    fs::remove_dir_all(&directory).unwrap();

    let (directory, prompts) = loaded("twice");
    drop(prompts);
    let spec = ModelSpec::from_directory("m", &directory);
    assert_eq!(Prompts::load(vec![spec.clone(), spec]).unwrap_err().0, 1);
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_hugging_face_cache_is_a_directory_too() {
    let directory = model_directory("cache");
    let cache = directory.join("models--org--name");
    let snapshot = cache.join("snapshots").join("0123abc");
    fs::create_dir_all(cache.join("refs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    write_model(&snapshot, "{{ messages[0].content }}");
    fs::write(cache.join("refs/main"), "0123abc\n").unwrap();
    let model = Model::load(&ModelSpec::from_directory("m", &cache)).unwrap();
    assert_eq!(model.render(&chat(r#"[{"role":"user","content":"x"}]"#), 0).unwrap(), "x");
    for reference in ["gone", "../../..", ""] {
        fs::write(cache.join("refs/main"), reference).unwrap();
        assert!(Model::load(&ModelSpec::from_directory("m", &cache)).is_err(), "{reference}");
    }
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn templates_are_found_where_models_have_them() {
    let directory = model_directory("templates");
    fs::remove_file(directory.join("chat_template.jinja")).unwrap();
    let config = |json: &str| fs::write(directory.join("tokenizer_config.json"), json).unwrap();
    let input = |tools: Option<&str>| {
        let json = |text: &str| Json::parse(text.as_bytes()).unwrap();
        PromptInput::chat(json(r#"[{"role":"user","content":"x"}]"#), tools.map(json), None).unwrap()
    };
    let spec = ModelSpec::from_directory("m", &directory);
    let rendered = |input: &PromptInput| Model::load(&spec).unwrap().render(input, 0);
    config(
        r#"{"model_max_length":1000000000000000019884624838656,"chat_template":"a{{ bos_token }}","bos_token":{"content":"<s>"}}"#,
    );
    assert_eq!(rendered(&input(None)).unwrap(), "a<s>");
    config(r#"{"chat_template":[{"name":"default","template":"d"},{"name":"tool_use","template":"t"}]}"#);
    assert_eq!(rendered(&input(None)).unwrap(), "d");
    assert_eq!(rendered(&input(Some(r#"[{"function":{"name":"f"}}]"#))).unwrap(), "t");
    config("{}");
    let none = rendered(&input(None)).unwrap_err();
    assert_eq!(blamed(none), (ErrorCode::InvalidArgument, Some("messages")));
    assert!(Model::load(&spec).unwrap().ids(&PromptInput::text("plain"), 0).is_ok());
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn what_an_engine_contradicts_is_not_given_out() {
    let (directory, prompts) = loaded("parity");
    let input = chat(r#"[{"role":"user","content":"x"}]"#);
    let dimensions = input.dimensions();
    prompts.begin("m", "e");
    prompts.observe("m", "e", dimensions, Evidence::Ids { equal: true });
    assert_eq!(prompts.tokenize("m", &input).unwrap().standing, Standing::Proven);
    let found = prompts.observe("m", "e", dimensions, Evidence::Length { equal: false }).unwrap();
    assert!(found.dimensions.contains(Dimension::Chat));
    let error = prompts.tokenize("m", &input).unwrap_err();
    assert_eq!(blamed(error), (ErrorCode::Unavailable, None));
    // Plain text is another dimension, and an engine that is gone says nothing.
    assert_eq!(prompts.tokenize("m", &PromptInput::text("x")).unwrap().standing, Standing::Assumed);
    prompts.forget("m", "e");
    assert!(prompts.tokenize("m", &input).is_ok());
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn debug_shows_neither_text_nor_ids() {
    let (directory, prompts) = loaded("debug");
    let input = chat(r#"[{"role":"user","content":"secret"}]"#);
    let tokenized = prompts.tokenize("m", &input).unwrap();
    let shown = format!("{input:?} {:?} {tokenized:?} {prompts:?}", PromptInput::text("secret"));
    assert!(!shown.contains("secret"), "{shown}");
    assert!(!shown.contains(&format!("{}, {}", tokenized.ids[0], tokenized.ids[1])), "{shown}");
    fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn a_text_under_a_deadline_has_the_same_ids() {
    let (directory, prompts) = loaded("async");
    let text = "the and ".repeat(10_000);
    let expected = prompts.tokenize("m", &PromptInput::text(text.clone())).unwrap().ids;
    let here = prompts.clone();
    let bytes = text.len();
    let work = move || here.tokenize("m", &PromptInput::text(text));
    let made = prompts.in_time(bytes, Duration::from_mins(10), work).await.unwrap();
    assert_eq!(made.ids, expected);
    fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn what_is_late_keeps_its_place_and_what_waits_is_bounded() {
    let prompts = Prompts::default();
    let (free, held) = mpsc::sync_channel::<()>(8);
    let held = Arc::new(Mutex::new(held));
    let stuck = |held: &Arc<Mutex<mpsc::Receiver<()>>>| {
        let held = held.clone();
        move || held.lock().recv().map_err(|_| PromptError::Panicked)
    };
    let soon = Duration::from_millis(1);
    // Every place for long texts is taken by work that does not end.
    for _ in 0..8 {
        let late = prompts.in_time(1 << 20, soon, stuck(&held)).await;
        assert_eq!(late, Err(PromptError::TooSlow { after: soon }));
    }
    // The next one has no place, and does not begin.
    let begun = Arc::new(AtomicBool::new(false));
    let here = begun.clone();
    let late = prompts.in_time(1 << 20, soon, move || {
        here.store(true, Ordering::Relaxed);
        Ok(())
    });
    assert_eq!(late.await, Err(PromptError::TooSlow { after: soon }));
    assert!(!begun.load(Ordering::Relaxed));
    // Short texts do not wait behind long ones.
    assert_eq!(prompts.in_time(100, Duration::from_mins(10), || Ok(7)).await, Ok(7));
    // Beyond a number of waiters, the next one is refused at once.
    let waiting: Vec<_> = (0..1_024)
        .map(|_| {
            let (prompts, long) = (prompts.clone(), Duration::from_mins(10));
            kvplane_runtime::spawn("waiting", async move { prompts.in_time(1 << 20, long, || Ok(())).await })
        })
        .collect();
    while prompts.waiting() < 1_024 {
        tokio::task::yield_now().await;
    }
    assert_eq!(prompts.in_time(1 << 20, Duration::from_mins(10), || Ok(())).await, Err(PromptError::Busy));
    for _ in 0..8 {
        free.send(()).unwrap();
    }
    for one in waiting {
        assert_eq!(one.await.unwrap(), Ok(()));
    }
    let counters = prompts.counters();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((read(&counters.too_slow), read(&counters.busy)), (9, 1));
    assert_eq!(Prompts::deadline(Duration::from_millis(50), 400 << 10), Duration::from_millis(150));
}
