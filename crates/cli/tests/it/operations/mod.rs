//! The commands that operate on engines: what they ask, what they print, and how they end.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

mod script;
mod served;

use std::process::{Command, Output, Stdio};

use kvplane_proto::kvplane::v1::{
    EngineSelection, FlushRequest, OperationRequest, Phase, RankReport, StartProfileRequest, TierRemaining,
    Verdict,
};
use serde_json::Value;
use tonic::Status;

use script::{Asked, Script, Scripted, begun, on_the_way, over, plan, reported, whole};

fn kvplane(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvplane"));
    command.args(words).env_remove("KVPLANE_TOKEN").stdin(Stdio::null());
    command
}

/// Runs a command against a plane that plays this script.
async fn run_against(plane: &Scripted, words: &[&str]) -> Output {
    let mut command = kvplane(words);
    command.args(["--plane", &plane.url]);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

async fn run(script: Script, words: &[&str]) -> Output {
    run_against(&Scripted::start(script).await, words).await
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn the_exit_code_says_how_many_are_fine() {
    use Verdict::{Done, Failed, Proven, Refused, Timeout, Unknown, Unspecified, Unsupported};
    for fine in [&[Proven][..], &[Done], &[Proven, Done, Proven]] {
        let output = run(Script::Tell(reported(fine)), &["flush", "--all"]).await;
        assert_eq!(code(&output), 0, "{}{}", out(&output), err(&output));
    }
    for other in [Refused, Unsupported, Failed, Timeout, Unknown, Unspecified] {
        let output = run(Script::Tell(reported(&[other, other])), &["flush", "--all"]).await;
        assert_eq!(code(&output), 1, "{other:?}");
        assert!(err(&output).contains("2 of 2 ranks are neither proven nor done"), "{}", err(&output));
        let output = run(Script::Tell(reported(&[Proven, other])), &["flush", "--all"]).await;
        assert_eq!(code(&output), 3, "{other:?}");
        assert!(err(&output).contains("1 of 2 ranks"), "{}", err(&output));
    }
}

#[tokio::test]
async fn the_table_names_tiers_and_says_why() {
    let proven = RankReport {
        tiers_cleared: vec!["device".to_owned(), "host".to_owned()],
        proof_s: 1.0,
        ..over(0, Verdict::Proven, "its stream shows the clear")
    };
    let behind = |tier: &str, blocks| TierRemaining { tier: tier.to_owned(), blocks };
    let partly = RankReport {
        tiers_cleared: vec!["device".to_owned()],
        tiers_remaining: vec![behind("host", Some(12)), behind("disk", None)],
        ..over(1, Verdict::Done, "the host tier still holds blocks")
    };
    let late = RankReport { may_still_complete: true, ..over(2, Verdict::Timeout, "no answer in time") };
    // Failures are reported first, and shown last.
    let script = Script::Tell(whole(plan(3), vec![late, proven, partly]));
    let output = run(script, &["flush", "--all"]).await;
    assert_eq!(code(&output), 3);
    let page = out(&output);
    let lines: Vec<&str> = page.lines().collect();
    assert_eq!(
        lines[..4],
        [
            "ENGINE  RANK  KIND    VERDICT  CLEARED       REMAINING        SECONDS  WHY",
            "e0      0     sglang  proven   device, host  -                1.2      its stream shows the clear",
            "e1      0     sglang  done     device        host 12, disk ?  0.2      the host tier still holds blocks",
            "e2      0     sglang  timeout  -             -                0.2      no answer in time (may still complete)",
        ]
    );
    assert!(lines[4].starts_with("flush op-7: 3 ranks, 3 servers, "), "{page}");
    assert!(lines[4].ends_with(": 1 proven, 1 done, 1 timeout; 1 may still complete"), "{page}");
}

#[tokio::test]
async fn mistakes_end_with_2_and_everything_else_with_1() {
    for status in [
        Status::invalid_argument("timeout_s: is negative"),
        Status::not_found("no engine of model x"),
        Status::unauthenticated("a bearer token is needed"),
        Status::permission_denied("needs the role admin"),
    ] {
        // Refused at once, or as the first thing that comes.
        for script in [Script::Refuse(status.clone()), Script::BreakOff(vec![], status.clone())] {
            let output = run(script, &["flush", "--all"]).await;
            assert_eq!(code(&output), 2, "{status}");
            assert!(err(&output).contains(status.message()), "{}", err(&output));
            assert_eq!(out(&output), "");
        }
    }
    for status in [Status::resource_exhausted("too many operations"), Status::unimplemented("")] {
        let output = run(Script::Refuse(status), &["flush", "--all"]).await;
        assert_eq!(code(&output), 1);
        assert!(err(&output).len() > "kvplane: \n".len());
    }
    // Nobody is there.
    let output = kvplane(&["flush", "--all", "--plane", "http://127.0.0.1:1"]).output().unwrap();
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("is `kvplane serve` running?"), "{}", err(&output));
    // What is wrong already here is not sent.
    let plane = Scripted::start(Script::Tell(reported(&[Verdict::Proven]))).await;
    for wrong in
        ["--timeout=-1s", "--timeout=nan", "--timeout=5", "--proof-timeout=inf", "--deadline=x", "--colour"]
    {
        let output = run_against(&plane, &["flush", "--all", wrong]).await;
        assert_eq!(code(&output), 2, "{wrong}");
    }
    // A flush that names nobody, and one that names everybody and somebody.
    assert_eq!(code(&run_against(&plane, &["flush"]).await), 2);
    assert_eq!(code(&run_against(&plane, &["flush", "--all", "--engine=a"]).await), 2);
    assert_eq!(code(&run_against(&plane, &["profile", "start", "--num-steps=-1"]).await), 2);
    assert_eq!(plane.asked(), []);
}

#[tokio::test]
async fn what_is_asked_for_reaches_the_plane() {
    let plane = Scripted::start(Script::Tell(reported(&[Verdict::Done]))).await;
    let selecting =
        ["--engine=a", "--engine=b", "--model=m", "--kind=vllm", "--kind=sglang", "--deadline=1500ms"];
    let strings = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let operation = OperationRequest {
        selection: Some(EngineSelection {
            engines: strings(&["a", "b"]),
            models: strings(&["m"]),
            kinds: strings(&["vllm", "sglang"]),
        }),
        deadline_s: Some(1.5),
        dry_run: true,
    };
    let everything =
        OperationRequest { selection: Some(EngineSelection::default()), ..OperationRequest::default() };

    let all = |words: &[&'static str]| [words, &selecting[..], &["--dry-run"]].concat();
    let flush_words =
        ["flush", "--timeout=30s", "--proof-timeout=2m", "--nudge", "--reset-running", "--reset-external"];
    run_against(&plane, &all(&flush_words)).await;
    run_against(&plane, &["flush", "--all"]).await;
    let start_words = [
        "profile",
        "start",
        "--output-dir=/traces",
        "--prefix=run",
        "--start-step=1",
        "--num-steps=20",
        "--activity=CPU",
        "--activity=GPU",
        "--with-stack=true",
        "--record-shapes=false",
        "--by-stage",
        "--stage=prefill",
        "--merge",
    ];
    run_against(&plane, &all(&start_words)).await;
    run_against(&plane, &["profile", "start"]).await;
    run_against(&plane, &all(&["profile", "stop"])).await;
    for verb in ["info", "loads", "health"] {
        run_against(&plane, &all(&[verb])).await;
    }
    let flush = FlushRequest {
        operation: Some(operation.clone()),
        timeout_s: 30.0,
        proof_timeout_s: Some(120.0),
        nudge: true,
        reset_running: true,
        reset_external: true,
    };
    let start = StartProfileRequest {
        operation: Some(operation.clone()),
        output_dir: Some("/traces".to_owned()),
        prefix: Some("run".to_owned()),
        start_step: Some(1),
        num_steps: Some(20),
        activities: strings(&["CPU", "GPU"]),
        with_stack: Some(true),
        record_shapes: Some(false),
        by_stage: true,
        stages: strings(&["prefill"]),
        merge: true,
    };
    assert_eq!(
        plane.asked(),
        [
            Asked::Flush(flush),
            Asked::Flush(FlushRequest { operation: Some(everything.clone()), ..FlushRequest::default() }),
            Asked::StartProfile(start),
            Asked::StartProfile(StartProfileRequest {
                operation: Some(everything),
                ..StartProfileRequest::default()
            }),
            Asked::Other("stop_profile", operation.clone()),
            Asked::Other("info", operation.clone()),
            Asked::Other("loads", operation.clone()),
            Asked::Other("health", operation),
        ]
    );
}

#[tokio::test]
async fn json_is_one_document() {
    let proven = RankReport {
        asked: "POST /flush_cache".to_owned(),
        proof_s: 1.5,
        tiers_cleared: vec!["device".to_owned()],
        ..over(0, Verdict::Proven, "its stream shows the clear")
    };
    let busy = RankReport {
        tiers_remaining: vec![TierRemaining { tier: "host".to_owned(), blocks: None }],
        detail_json: "{\"running\": 3}".to_owned(),
        profile_id: "kvp-1-2".to_owned(),
        may_still_complete: true,
        ..over(1, Verdict::Refused, "not idle")
    };
    let output =
        run(Script::Tell(whole(plan(2), vec![proven, busy])), &["flush", "--all", "-o", "json"]).await;
    assert_eq!(code(&output), 3);
    let document: Value = serde_json::from_str(&out(&output)).unwrap();
    let expected = serde_json::json!({
        "operation": "op-7", "verb": "flush", "backends": 2, "complete": true,
        "ranks": [
            {
                "engine": "e0", "rank": 0, "model": "llama", "kind": "sglang", "phase": "over", "verdict": "proven",
                "why": "its stream shows the clear", "asked": "POST /flush_cache", "answer_s": 0.25, "proof_s": 1.5,
                "may_still_complete": false, "tiers_cleared": ["device"], "tiers_remaining": [],
            },
            {
                "engine": "e1", "rank": 0, "model": "llama", "kind": "sglang", "phase": "over", "verdict": "refused",
                "why": "not idle", "asked": "", "answer_s": 0.25, "proof_s": 0.0, "may_still_complete": true,
                "tiers_cleared": [], "tiers_remaining": [{ "tier": "host" }],
                "detail": { "running": 3 }, "profile_id": "kvp-1-2",
            },
        ],
        "summary": { "verdicts": { "proven": 1, "refused": 1 }, "outcome": "partly", "took_s": 0.5 },
    });
    assert_eq!(document, expected);
}

#[tokio::test]
async fn a_dry_run_shows_the_plan() {
    let mut plan = plan(2);
    let words = ["flush", "--dry-run"];
    // The plan is all of it, whether a summary comes or not.
    for script in [whole(plan.clone(), vec![]), begun(plan.clone(), vec![])] {
        let output = run(Script::Tell(script), &words).await;
        assert_eq!(code(&output), 0, "{}", err(&output));
    }
    plan.ranks[1].call.clear();
    plan.ranks[1].unsupported = "it is an engine of another kvplane".to_owned();
    plan.backends = 1;
    let script = Script::Tell(whole(plan.clone(), vec![]));
    let output = run(script.clone(), &words).await;
    assert_eq!(code(&output), 3);
    assert_eq!(
        out(&output),
        "ENGINE  RANK  KIND    MODEL  CALL\n\
         e0      0     sglang  llama  POST /flush_cache\n\
         e1      0     sglang  llama  none: it is an engine of another kvplane\n\
         flush would ask 1 servers\n"
    );
    let output = run(script, &["flush", "--dry-run", "-o", "json"]).await;
    let document: Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(document["ranks"][0]["call"], "POST /flush_cache");
    assert_eq!(document["ranks"][1]["unsupported"], "it is an engine of another kvplane");
    plan.ranks.remove(0);
    assert_eq!(code(&run(Script::Tell(whole(plan, vec![])), &words).await), 1);
}

#[tokio::test]
async fn a_plane_that_breaks_off_leaves_no_verdict_behind() {
    let proven = over(0, Verdict::Proven, "its stream shows the clear");
    let reports = vec![proven.clone(), on_the_way(1, Phase::Asking), on_the_way(2, Phase::Proving)];
    let away = Status::unavailable("the plane went away");
    let output = run(Script::BreakOff(begun(plan(4), reports), away.clone()), &["flush", "--all"]).await;
    assert_eq!(code(&output), 3, "{}", out(&output));
    assert!(err(&output).contains("broke off: the plane went away"), "{}", err(&output));
    let page = out(&output);
    assert!(
        page.contains("e1      0     sglang  -        -        request in progress (may still complete)"),
        "{page}"
    );
    assert!(page.contains("keeps watching its stream (may still complete)"), "{page}");
    assert!(page.contains("not sent, unless just now\n"), "{page}");
    assert!(page.ends_with("1 proven, 1 proving, 1 asking, 1 waiting; 2 may still complete\n"), "{page}");

    let output = run(Script::BreakOff(begun(plan(1), vec![]), away), &["flush", "--all"]).await;
    assert_eq!(code(&output), 1);
    // All of them fine, but nobody said that this was the end of it.
    let output = run(Script::Tell(begun(plan(1), vec![proven])), &["flush", "--all", "-o", "json"]).await;
    assert_eq!(code(&output), 3);
    let document: Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!((&document["complete"], &document["summary"]), (&Value::Bool(false), &Value::Null));
    // A rank that was not planned belongs to something else.
    let stranger = over(9, Verdict::Proven, "");
    let output = run(Script::Tell(whole(plan(1), vec![stranger])), &["flush", "--all"]).await;
    assert_eq!(code(&output), 1);
    assert!(err(&output).contains("e9/0, which is not in its plan"), "{}", err(&output));
}

#[tokio::test]
async fn who_interrupts_it_learns_what_may_still_complete() {
    // The last report makes a line: then everything before it has been read too.
    let reports = vec![
        on_the_way(0, Phase::Asking),
        on_the_way(1, Phase::Proving),
        over(2, Verdict::Proven, "its stream shows the clear"),
    ];
    let plane = Scripted::start(Script::Hang(begun(plan(4), reports))).await;
    let mut command = kvplane(&["flush", "--all", "--plane", &plane.url]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = tokio::task::spawn_blocking({
        let mut child = child.spawn().unwrap();
        move || {
            let mut line = String::new();
            let mut lines = std::io::BufReader::new(child.stderr.take().unwrap());
            std::io::BufRead::read_line(&mut lines, &mut line).unwrap();
            assert!(line.contains("e2/0  proven  its stream shows the clear"), "{line}");
            let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
            assert!(killed.success());
            let mut rest = String::new();
            std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
            (child.wait_with_output().unwrap(), rest)
        }
    });
    let (output, said) = output.await.unwrap();
    assert_eq!(code(&output), 130);
    assert!(
        said.contains("interrupted: 2 of 4 ranks may still complete; kvplane's log has the outcome of op-7"),
        "{said}"
    );
    let page = out(&output);
    assert!(page.contains("request in progress (may still complete)"), "{page}");
    assert!(page.contains("no report: not sent"), "{page}");
}

#[tokio::test]
async fn of_a_thousand_ranks_the_lines_tell_what_is_not_fine() {
    let mut verdicts = vec![Verdict::Proven; 1000];
    verdicts[17] = Verdict::Refused;
    let output = run(Script::Tell(reported(&verdicts)), &["flush", "--all"]).await;
    assert_eq!(code(&output), 3);
    let lines = err(&output);
    assert_eq!(lines.lines().filter(|line| line.contains("/0  ")).count(), 1, "{lines}");
    assert!(lines.contains("e17/0  refused  as it is"), "{lines}");
    let page = out(&output);
    let last: Vec<&str> = page.lines().rev().take(2).collect();
    assert!(last[0].ends_with("999 proven, 1 refused"), "{}", last[0]);
    assert!(last[1].starts_with("e17 "), "{}", last[1]);
}

#[tokio::test]
async fn what_engines_say_of_themselves_is_shown_short_and_kept_whole() {
    let long = format!("{{\"version\":\"0.5.22\",\"text\":\"{}\"}}", "x".repeat(500));
    let reported = RankReport { detail_json: long, ..over(0, Verdict::Done, "the engine answered") };
    let script = Script::Tell(whole(plan(1), vec![reported]));
    let page = out(&run(script.clone(), &["info"]).await);
    let line = page.lines().nth(1).unwrap();
    assert!(line.contains("{\"version\":\"0.5.22\"") && line.ends_with('…') && line.len() < 250, "{page}");
    let document: Value = serde_json::from_str(&out(&run(script, &["info", "-o", "json"]).await)).unwrap();
    assert_eq!(document["ranks"][0]["detail"]["text"].as_str().unwrap().len(), 500);
}

#[test]
fn every_command_has_help_with_an_example() {
    for words in [
        &["flush", "--all"][..],
        &["profile"],
        &["profile", "start"],
        &["profile", "stop"],
        &["info"],
        &["loads"],
        &["health"],
    ] {
        let output = kvplane(&[words, &["--help"]].concat()).output().unwrap();
        assert_eq!(code(&output), 0);
        assert!(out(&output).contains("Example"), "{words:?}: {}", out(&output));
    }
}
