//! The binary, with keys and certificates: who may ask, what is read again, and what is never printed.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, unreachable_pub, reason = "tests")]

mod abuse;
mod reports;
mod rig;

use std::io::{Read as _, Write as _};
use std::process::Command;

use rig::{Files, SECRETS, Served, connect, get, kvplane, run, said};

const ADD: [&str; 4] = ["add", "a", "--engine", "vllm=tcp://127.0.0.1:1,model=m"];

#[test]
fn commands_prove_who_they_are() {
    let files = Files::new("commands");
    let served = Served::start(&files.config());
    let token = files.at("read.token");
    let ok = |command: &mut Command| {
        let output = run(command);
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    };
    let refused = |command: &mut Command, words: &str| {
        let output = run(command);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(words), "{}", said(&output));
    };
    refused(&mut served.engines(&files, &[]), "bearer token");
    refused(served.engines(&files, &[]).env("KVPLANE_TOKEN", "hush-wrong"), "unknown token");
    ok(served.engines(&files, &[]).arg("--token-file").arg(&token));
    refused(served.engines(&files, &ADD).arg("--token-file").arg(&token), "role admin");
    ok(served.engines(&files, &ADD).env("KVPLANE_TOKEN", "hush-admin"));
    // A certificate instead of a token.
    let shown = |command: &mut Command| {
        ok(command.arg("--cert").arg(files.at("client.pem")).arg("--key").arg(files.at("client.key")))
    };
    shown(&mut served.engines(&files, &["remove", "a"]));

    // The same over gRPC.
    let tail = |words: &[&str]| {
        let mut command = kvplane();
        let limited = ["tail", "--seconds", "1", "--plane", &served.grpc(), "--ca"];
        command.args(limited).arg(files.at("ca.pem")).args(words);
        command
    };
    refused(&mut tail(&[]), "bearer token");
    ok(tail(&[]).arg("--token-file").arg(&token));
    shown(&mut tail(&[]));

    // The wrong authority, and no TLS at all, fail soon.
    let output =
        run(kvplane().args(["engines", "--server", &served.http()]).env("KVPLANE_TOKEN", "hush-admin"));
    assert!(said(&output).contains("certificate"), "{}", said(&output));
    let plain = served.http().replace("https://", "http://");
    let output = run(kvplane().args(["engines", "--server", &plain]).env("KVPLANE_TOKEN", "hush-admin"));
    assert!(said(&output).contains("use https"), "{}", said(&output));

    // Somebody else's certificate. The server says so after the handshake.
    files.stranger("stranger");
    let mut command = served.engines(&files, &[]);
    command.arg("--cert").arg(files.at("stranger.pem")).arg("--key").arg(files.at("stranger.key"));
    let output = run(&mut command);
    assert!(output.status.code() == Some(1) && said(&output).contains("alert"), "{}", said(&output));

    let log = served.process.stop();
    for secret in SECRETS.iter().chain(&["hush-wrong", "hush"]) {
        assert!(!log.contains(secret), "{secret} is in the log: {log}");
    }
    assert!(log.contains("unknown_token") || log.contains("no_key"), "{log}");
}

#[test]
fn a_probe_with_the_configuration_needs_no_address_and_no_authority() {
    for (name, has_tls) in [("probe-tls", true), ("probe-plain", false)] {
        let files = Files::new(name);
        let config = if has_tls { files.config() } else { files.plain_config() };
        let served = Served::start(&config);
        let probe = |address: &str| {
            let mut command = kvplane();
            command.args(["ready", "--config"]).arg(&config).env("KVPLANE__LISTEN__HTTP", address);
            // It is sent to nobody.
            run(command.env("KVPLANE_TOKEN", "hush-wrong"))
        };
        for address in [format!("127.0.0.1:{}", served.http_port), format!("0.0.0.0:{}", served.http_port)] {
            let output = probe(&address);
            assert_eq!((output.status.code(), said(&output).as_str()), (Some(0), "ready\n"), "{address}");
        }
        let output = probe("127.0.0.1:0");
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains("--server"), "{}", said(&output));
        let mut both = kvplane();
        both.args(["ready", "--server", &served.http(), "--config"]).arg(&config);
        assert_eq!(run(&mut both).status.code(), Some(2), "one of the two");
        assert!(!served.process.stop().contains("unknown_token"));
    }
}

#[test]
fn who_asks_for_tls_where_there_is_none_gets_an_error() {
    let files = Files::new("none");
    let served = Served::start(&files.plain_config());
    let mut tail = kvplane();
    tail.args(["tail", "--seconds", "1", "--plane", &served.grpc(), "--ca"]).arg(files.at("ca.pem"));
    for mut command in [served.engines(&files, &[]), tail] {
        let output = run(command.env("KVPLANE_TOKEN", "hush-admin"));
        assert!(said(&output).contains("use http"), "{}", said(&output));
    }
}

#[test]
fn keys_and_certificates_are_read_again_on_sighup() {
    let files = Files::new("reload");
    let config = files.config();
    let mut served = Served::start(&config);
    let list = |served: &Served, token: &str| {
        run(served.engines(&files, &[]).env("KVPLANE_TOKEN", token)).status.success()
    };
    assert!(list(&served, "hush-read-1") && !list(&served, "hush-read-2"));
    files.write("read.token", "hush-read-2");
    files.certificate("server", "elsewhere");
    served.process.hang_up();
    served.process.logged("configuration reloaded");
    // The name on the certificate is another one now.
    let output = run(served.engines(&files, &[]).env("KVPLANE_TOKEN", "hush-read-2"));
    assert!(said(&output).contains("certificate"), "{}", said(&output));
    files.certificate("server", "localhost");
    served.process.hang_up();
    served.process.logged("configuration reloaded");
    assert!(!list(&served, "hush-read-1") && list(&served, "hush-read-2"));

    // What cannot be read changes nothing.
    files.write("read.token", "\n");
    served.process.hang_up();
    served.process.logged("configuration not reloaded: nothing has changed");
    files.write("read.token", "hush-read-2");
    files.write("server.pem", "-----BEGIN");
    served.process.hang_up();
    served.process.logged("configuration not reloaded: nothing has changed");
    assert!(list(&served, "hush-read-2"));
    // Access is not opened by a file that has lost its keys.
    let text = std::fs::read_to_string(&config).unwrap();
    files.certificate("server", "localhost");
    files.write("kvplane.toml", text.split("[[auth").next().unwrap());
    served.process.hang_up();
    let line = served.process.logged("configuration not reloaded: nothing has changed");
    assert!(line["error"].as_str().unwrap().contains("cannot be opened"), "{line}");
    assert!(list(&served, "hush-read-2"));
    let log = served.process.stop();
    for secret in SECRETS {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

#[test]
fn certificates_of_the_gateway_and_the_picker_are_read_again_too() {
    let files = Files::new("listeners");
    let config = files.plain_config();
    let tls =
        format!("tls = {{ cert = {}, key = {} }}", files.quoted("server.pem"), files.quoted("server.key"));
    let text = std::fs::read_to_string(&config).unwrap();
    let more = format!(
        "[gateway]\nlisten = \"127.0.0.1:0\"\n{tls}\n[picker]\nlisten = \"127.0.0.1:0\"\n{tls}\n\
         [[picker.endpoint]]\naddress = \"127.0.0.1:1\"\n"
    );
    files.write("kvplane.toml", &format!("{text}{more}"));
    let mut served = Served::start(&config);
    let port = |listener: &str| served.process.port(listener);
    let (gateway, picker) = (port("gateway listening"), port("picker listening"));
    let asked = || {
        let mut over_http = kvplane();
        over_http.args(["engines", "--server", &format!("https://localhost:{gateway}")]);
        let mut over_grpc = kvplane();
        over_grpc.args(["tail", "--seconds", "1", "--plane", &format!("https://localhost:{picker}")]);
        [over_http, over_grpc].map(|mut command| {
            said(&run(command.arg("--ca").arg(files.at("ca.pem")).env("KVPLANE_TOKEN", "hush-admin")))
        })
    };
    for answer in asked() {
        assert!(!answer.contains("certificate"), "{answer}");
    }
    files.certificate("server", "elsewhere");
    served.process.hang_up();
    served.process.logged("configuration reloaded");
    for answer in asked() {
        assert!(answer.contains("certificate"), "{answer}");
    }
}

#[test]
fn a_token_is_revoked_although_an_engine_cannot_be_described() {
    let files = Files::new("revoked");
    let config = files.plain_config();
    let mut served = Served::start(&config);
    let status = |served: &Served, token: &str| {
        get(&served.http_port, "/v1/engines", token).lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(status(&served, "hush-read-1"), "HTTP/1.1 200 OK");
    let text = std::fs::read_to_string(&config).unwrap();
    let engine = "[[engine]]\nid = \"a b\"\nkind = \"vllm\"\nevents = \"tcp://127.0.0.1:1\"\n";
    files.write("kvplane.toml", &format!("{text}{engine}"));
    files.write("read.token", "hush-read-2");
    served.process.hang_up();
    let line = served.process.logged("configuration applied in part");
    assert_eq!(line["applied"], "auth");
    assert!(line["error"].as_str().unwrap().contains("engine[0]"), "{line}");
    assert_eq!(status(&served, "hush-read-1"), "HTTP/1.1 401 Unauthorized");
    assert_eq!(status(&served, "hush-read-2"), "HTTP/1.1 200 OK");
    // The same again: now nothing is left to apply.
    served.process.hang_up();
    served.process.logged("configuration not reloaded: nothing has changed");
    files.write("kvplane.toml", &text);
    served.process.hang_up();
    assert_eq!(served.process.logged("configuration reloaded")["auth_changed"], false);
}

#[test]
fn calls_may_finish_after_a_stop_until_the_drain_timeout() {
    let files = Files::new("drain");
    let text = std::fs::read_to_string(files.plain_config()).unwrap();
    let body = r#"{"model":"m","token_ids":[1,2,3]}"#;
    let half = |port: &str| {
        let mut stream = connect(port);
        let head = format!(
            "POST /v1/query HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer hush-read-1\r\n\
             content-type: application/json\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // The handler reads the body: the call is under way.
        let mut line = [0; 25];
        stream.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream
    };
    // A call that is under way may finish, and then the process ends.
    let long = files.write("long.toml", &text.replace("[listen]\n", "[listen]\ndrain_timeout = \"10m\"\n"));
    let mut served = Served::start(&long);
    let mut stream = half(&served.http_port);
    served.process.terminate();
    served.process.logged("stopping: draining connections");
    assert!(std::net::TcpStream::connect(format!("127.0.0.1:{}", served.grpc_port)).is_err());
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    // There is no engine: the answer says that, and it came.
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("model"), "{answer}");
    served.process.logged("stopped");
    // One that takes longer is cut off.
    let short =
        files.write("short.toml", &text.replace("[listen]\n", "[listen]\ndrain_timeout = \"50ms\"\n"));
    let mut served = Served::start(&short);
    let _stream = half(&served.http_port);
    served.process.terminate();
    let line = served.process.logged("drain timeout reached; closing remaining connections");
    assert_eq!(line["drain_timeout"], "50ms");
    served.process.logged("stopped");
    // A second signal does not wait.
    let mut served = Served::start(&long);
    let _stream = half(&served.http_port);
    served.process.terminate();
    served.process.logged("stopping: draining connections");
    served.process.terminate();
    assert_eq!(served.process.ended(), Some(130));
}

#[test]
fn listeners_beyond_loopback_refuse_to_start_without_keys() {
    for (flag, key) in [("--http", "listen.http"), ("--grpc", "listen.grpc")] {
        let other = if flag == "--http" { "--grpc" } else { "--http" };
        let output = run(kvplane().args(["serve", other, "127.0.0.1:0", flag, "0.0.0.0:0"]));
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        for word in [key, "[auth]", "--insecure"] {
            assert!(said(&output).contains(word), "{}", said(&output));
        }
    }
    let loopback = ["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let engine = "vllm=tcp://127.0.0.1:1,grpc=http://127.0.0.1:2,front=0.0.0.0:0";
    let output = run(kvplane().args(loopback).args(["--engine", engine]));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("front"), "{}", said(&output));
    let republish = "engine.0.republish={ events = \"tcp://0.0.0.0:0\" }";
    let engine = [
        "--set",
        "engine.0.id=a",
        "--set",
        "engine.0.kind=vllm",
        "--set",
        "engine.0.events=tcp://127.0.0.1:1",
    ];
    let output = run(kvplane().args(loopback).args(engine).args(["--set", republish]));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("open = true"), "{}", said(&output));
}

#[test]
fn the_printed_configuration_has_no_secret() {
    let files = Files::new("printed");
    let config = files.config();
    let mut command = kvplane();
    command.args(["serve", "--dump-config", "--config"]).arg(&config).env("TEST_ADMIN_TOKEN", "hush-admin");
    let output = run(&mut command);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains("TEST_ADMIN_TOKEN") && !said(&output).contains("hush"),
        "{}",
        said(&output)
    );
    // A token where its file belongs is not repeated.
    for wrong in ["KVPLANE__AUTH__TOKEN", "KVPLANE__AUTH__TOKEN__0__FILE__X"] {
        let output = run(kvplane().args(["serve", "--dump-config"]).env(wrong, "hush-read-1"));
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(!said(&output).contains("hush"), "{}", said(&output));
    }
}

#[test]
fn a_mistake_ends_with_two_and_a_file_that_is_not_there_yet_with_one() {
    let code = |words: &[&str]| {
        let output =
            run(kvplane().args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]).args(words));
        (output.status.code(), said(&output))
    };
    let (ended, reported) = code(&["--set", "listen.htpp=1"]);
    assert_eq!(ended, Some(2), "{reported}");
    let token = ["auth.token.0.name=a", "auth.token.0.role=read", "auth.token.0.file=/nowhere/token"];
    let of_files: [&[&str]; 5] = [
        &["--config", "/nowhere/kvplane.toml"],
        &["--set", "listen.tls={ cert = \"/nowhere/cert.pem\", key = \"/nowhere/key.pem\" }"],
        &["--set", token[0], "--set", token[1], "--set", token[2]],
        &["--engine", "vllm=tcp://127.0.0.1:1,http=http://127.0.0.1:2,api_key_file=/nowhere/key"],
        &["--engine", "kvplane=https://127.0.0.1:1,grpc_ca=/nowhere/ca.pem"],
    ];
    for words in of_files {
        let (ended, reported) = code(words);
        assert!(ended == Some(1) && reported.contains("/nowhere/"), "{words:?}: {ended:?}, {reported}");
    }
}

#[test]
fn tokens_that_cannot_be_sent_are_refused() {
    let files = Files::new("unfit");
    let config = files.plain_config();
    for unfit in ["", "\n", "hush\nhush", "hush hush", "hush-\u{e4}", "hush\u{0}", "\u{feff}hush"] {
        files.write("read.token", unfit);
        let output = run(kvplane().args(["serve", "--config"]).arg(&config).env("TEST_ADMIN_TOKEN", "x"));
        // The file may be another one in a moment: a service manager tries again.
        assert_eq!(output.status.code(), Some(1), "{unfit:?}: {}", said(&output));
        assert!(said(&output).contains("read.token") && !said(&output).contains("hush"), "{}", said(&output));
    }
    files.write("read.token", "hush-read-1");
    for unfit in ["", "hush\nhush", "hush-\u{e4}", "hush-read-1"] {
        let output = run(kvplane().args(["serve", "--config"]).arg(&config).env("TEST_ADMIN_TOKEN", unfit));
        assert_eq!(output.status.code(), Some(2), "{unfit:?}: {}", said(&output));
        assert!(said(&output).contains("operator") && !said(&output).contains("hush"), "{}", said(&output));
    }
    let mut asking = kvplane();
    asking.args(["engines", "--server", "http://127.0.0.1:1"]).env("KVPLANE_TOKEN", "hush\nhush");
    let output = run(&mut asking);
    assert!(!output.status.success() && !said(&output).contains("hush"), "{}", said(&output));
}
