//! `kvplane report` and `[[report]]`, to a plane that asks who reports.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::access::rig::{DEADLINE, Files, Process, Served, get, kvplane, run, said};

/// A simulated engine under load. Returns where it publishes.
fn engine(files: &Files) -> (Process, String) {
    let mut command = kvplane();
    let any = "tcp://127.0.0.1:0";
    command.args(["sim", "--events", any, "--replay", any, "--http", "127.0.0.1:0", "--load", "20"]);
    let mut process = Process::start(&mut command, files.at("sim.log"));
    let events = process.logged("publishing")["events"].as_str().unwrap().to_owned();
    (process, events)
}

/// `kvplane report` of an engine to a plane.
fn report(files: &Files, served: &Served, events: &str) -> Command {
    let mut command = kvplane();
    command.args(["report", "-engine-endpoint", events, "-topic", "", "-engine-metrics-url", ""]);
    command.args([
        "-replica-id",
        "r",
        "-model-id",
        "sim",
        "-tenant-id",
        "t",
        "-server",
        &served.grpc(),
        "-ca",
    ]);
    command.arg(files.at("ca.pem"));
    command
}

const NOT_TAKEN: &str = "report rejected; retrying";

#[test]
fn a_reporter_shows_a_token() {
    let files = Files::new("token");
    let served = Served::start(&files.config());
    let (_engine, events) = engine(&files);
    let mut stranger = Process::start(&mut report(&files, &served, &events), files.at("stranger.log"));
    assert_eq!(stranger.logged(NOT_TAKEN)["code"], "Unauthenticated");

    let token = files.write("sidecar.token", "hush-read-1");
    let mut command = report(&files, &served, &events);
    command.args(["-metrics-listen", "127.0.0.1:0"]);
    let mut reporter = Process::start(command.arg("-token-file").arg(&token), files.at("reporter.log"));
    let pages =
        reporter.logged("metrics")["address"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
    assert_eq!(reporter.logged(NOT_TAKEN)["code"], "PermissionDenied");
    let page = get(&pages, "/metrics", "none");
    assert!(page.contains("kvplane_report_failing") && page.contains(" 1\n"), "{page}");
    let elsewhere = get(&pages, "/v1/query", "none");
    assert!(elsewhere.contains("are served here") && !elsewhere.contains("openapi"), "{elsewhere}");
    // The file is read again after a refusal, also where it is no token for a while.
    files.write("sidecar.token", "");
    files.write("sidecar.token", "hush-report\n");
    reporter.logged("reports accepted");
    for log in [reporter.stop(), stranger.stop(), served.process.stop()] {
        assert!(!log.contains("hush"), "{log}");
    }
}

#[test]
fn the_pages_of_a_reporter_are_not_opened_by_chance() {
    let mut command = kvplane();
    command.args(["report", "-replica-id", "r", "-model-id", "m", "-metrics-listen", "0.0.0.0:0"]);
    let output = run(&mut command);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("--insecure"), "{}", said(&output));
}

#[test]
fn a_plane_shows_a_certificate_to_whom_it_reports() {
    let files = Files::new("certificate");
    let served = Served::start(&files.config());
    let (_engine, events) = engine(&files);
    // Its owner has the role `admin`, which includes `report`.
    let text = format!(
        "[listen]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\n\
         [[engine]]\nid = \"e\"\nkind = \"vllm\"\nmodel = \"sim\"\nevents = {events:?}\n\
         [[report]]\nserver = {:?}\nca = {}\ncert = {}\nkey = {}\n",
        served.grpc(),
        files.quoted("ca.pem"),
        files.quoted("client.pem"),
        files.quoted("client.key"),
    );
    let reporting = Served::start(&files.write("reporting.toml", &text));
    let deadline = Instant::now() + DEADLINE;
    loop {
        let page = get(&reporting.http_port, "/metrics", "none");
        let reported = page.lines().filter(|line| line.starts_with("kvplane_report_told_blocks_total"));
        if reported.into_iter().any(|line| !line.ends_with(" 0")) {
            return;
        }
        assert!(Instant::now() < deadline, "{page}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
