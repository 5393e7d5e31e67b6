//! The line that every operation leaves in the log.

use std::sync::{Arc, OnceLock};

use kvplane_core::EngineKind;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use crate::operations::scripted::{Act, Scripted, rig};
use crate::operations::talk::{admin, flush_request};
use crate::rig::{DEADLINE, call};

/// Lines of the audit so far, of all tests in this process: each is found by its operation.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Value>>>);

#[derive(Default)]
struct Fields(serde_json::Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), json!(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), json!(value));
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "kvplane::audit" {
            let mut fields = Fields::default();
            event.record(&mut fields);
            self.0.lock().push(Value::Object(fields.0));
        }
    }
}

fn lines() -> &'static Lines {
    static LINES: OnceLock<Lines> = OnceLock::new();
    LINES.get_or_init(|| {
        let lines = Lines::default();
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines.clone())).unwrap();
        lines
    })
}

/// Waits for the line of an operation.
async fn line_of(operation: &str) -> Value {
    let found = async {
        loop {
            let line = lines().0.lock().iter().find(|line| line["operation"] == operation).cloned();
            match line {
                Some(line) => return line,
                None => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(DEADLINE, found).await.expect("no audit line")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_says_who_asked_for_what_and_how_it_ended() {
    lines();
    let server = Scripted::new(|engine| match engine {
        "yes" => Act::Say(200, r#"{"success": true}"#),
        _ => Act::Say(200, r#"{"success": false}"#),
    })
    .await;
    let specs = ["yes", "busy"].map(|id| server.silent(id, EngineKind::Vllm, 1));
    let rig = rig(specs.into()).await;
    let body = json!({"model": "m", "proof_timeout_s": 0.05});
    let (_, answer) = call(rig.http, "POST", "/flush_cache", &body).await;
    let line = line_of(answer["operation"].as_str().unwrap()).await;
    for (field, value) in [
        ("verb", "flush"),
        ("caller", "loopback"),
        ("proof", "loopback"),
        ("selection", "model=m"),
        ("outcome", "partly"),
        ("verdicts", "done=1 refused=1"),
        ("not_good", "busy/0=refused"),
        ("may_still_complete", ""),
        ("not_asked", ""),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    assert!(line["options"].as_str().unwrap().contains("proof_timeout=50ms"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_early_is_in_the_log_too_with_what_may_still_complete() {
    lines();
    let server = Scripted::new(|_| Act::Hang).await;
    let specs = (0..40).map(|number| server.silent(&format!("e{number:02}"), EngineKind::Vllm, 1));
    let rig = rig(specs.collect()).await;
    let request = flush_request(&json!({"proof_timeout_s": 0.0, "deadline_s": 600.0}));
    let mut steps = admin(&rig).await.flush(request).await.unwrap().into_inner();
    let plan = steps.message().await.unwrap().unwrap().item.unwrap();
    let kvplane_proto::kvplane::v1::progress::Item::Plan(plan) = plan else { panic!("{plan:?}") };
    server.until_seen(32).await;
    drop(steps);
    let line = line_of(&plan.operation).await;
    assert_eq!((&line["outcome"], &line["verdicts"]), (&json!("cancelled"), &json!("")), "{line}");
    let open = line["may_still_complete"].as_str().unwrap();
    assert!(open.ends_with("and 16 more"), "32 were asked, 16 are named: {line}");
    assert_eq!(line["not_asked"].as_str().unwrap().split(' ').count(), 8, "{line}");
}
