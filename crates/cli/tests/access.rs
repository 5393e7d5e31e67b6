//! The binary, with keys and certificates: who may ask, what is read again, and what is never printed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::Value;

/// Far beyond anything that should take: only a hang reaches it.
const DEADLINE: Duration = Duration::from_mins(1);
const SECRETS: [&str; 3] = ["hush-read-1", "hush-read-2", "hush-admin"];

fn kvplane() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvplane"));
    command.env_remove("KVPLANE_TOKEN").stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A directory that goes with the test, with an authority, certificates and tokens in it.
struct Files {
    path: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Files {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kvplane-access-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let files = Self { path, authority };
        files.write("ca.pem", &files.authority.pem());
        files.certificate("server", "localhost");
        files.certificate("client", "operator.example");
        files.write("read.token", "hush-read-1\n");
        files
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn certificate(&self, file: &str, name: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        self.write(&format!("{file}.pem"), &params.signed_by(&key, &self.authority).unwrap().pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }

    /// A configuration with a token of each kind, a certificate, and TLS.
    fn config(&self) -> PathBuf {
        let at = |name: &str| self.at(name).display().to_string();
        let text = format!(
            "[listen]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\n\
             tls = {{ cert = {:?}, key = {:?}, client_ca = {:?} }}\n\
             [[auth.token]]\nname = \"dashboard\"\nrole = \"read\"\nfile = {:?}\n\
             [[auth.token]]\nname = \"operator\"\nrole = \"admin\"\nenv = \"TEST_ADMIN_TOKEN\"\n\
             [[auth.certificate]]\nname = \"robot\"\nrole = \"admin\"\nsan = \"operator.example\"\n",
            at("server.pem"),
            at("server.key"),
            at("ca.pem"),
            at("read.token"),
        );
        self.write("kvplane.toml", &text)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A running plane.
struct Served {
    process: Child,
    log: PathBuf,
    /// How much of the log was looked at.
    seen: usize,
    http: String,
    grpc: String,
}

impl Served {
    fn start(files: &Files, config: &Path) -> Self {
        let log = files.at("log");
        let process = kvplane()
            .args(["serve", "--log-format", "json", "--log", "trace", "--config"])
            .arg(config)
            .env("TEST_ADMIN_TOKEN", "hush-admin")
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut served = Self { process, log, seen: 0, http: String::new(), grpc: String::new() };
        let serving = served.logged("serving");
        let port = |key: &str| serving[key].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
        served.http = format!("https://localhost:{}", port("http"));
        served.grpc = format!("https://localhost:{}", port("grpc"));
        served
    }

    /// Waits for the next line of the log that says this.
    fn logged(&mut self, message: &str) -> Value {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let log = std::fs::read_to_string(&self.log).unwrap();
            while let Some(length) = log[self.seen..].find('\n') {
                let line = &log[self.seen..self.seen + length];
                self.seen += length + 1;
                let line: Value = serde_json::from_str(line).unwrap_or_default();
                if line["message"] == message {
                    return line;
                }
            }
            assert!(Instant::now() < deadline, "no {message:?} in {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn hang_up(&self) {
        let killed = Command::new("kill").args(["-HUP", &self.process.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }

    /// `kvplane engines …` with this authority.
    fn engines(&self, files: &Files, words: &[&str]) -> Command {
        let mut command = kvplane();
        command.arg("engines").args(words).args(["--server", &self.http, "--ca"]).arg(files.at("ca.pem"));
        command
    }

    /// Ends it, and returns all that it has logged.
    fn stop(mut self) -> String {
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        self.process.wait().unwrap();
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const ADD: [&str; 4] = ["add", "a", "--engine", "vllm=tcp://127.0.0.1:1,model=m"];

#[test]
fn commands_prove_who_they_are() {
    let files = Files::new("commands");
    let served = Served::start(&files, &files.config());
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
    refused(served.engines(&files, &[]).env("KVPLANE_TOKEN", "hush-wrong"), "not known");
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
        let limited = ["tail", "--seconds", "1", "--plane", &served.grpc, "--ca"];
        command.args(limited).arg(files.at("ca.pem")).args(words);
        command
    };
    refused(&mut tail(&[]), "bearer token");
    ok(tail(&[]).arg("--token-file").arg(&token));
    shown(&mut tail(&[]));

    // The wrong authority, and no TLS at all, are told soon.
    let output =
        run(kvplane().args(["engines", "--server", &served.http]).env("KVPLANE_TOKEN", "hush-admin"));
    assert!(said(&output).contains("certificate"), "{}", said(&output));
    let plain = served.http.replace("https://", "http://");
    let output = run(kvplane().args(["engines", "--server", &plain]).env("KVPLANE_TOKEN", "hush-admin"));
    assert!(said(&output).contains("use https"), "{}", said(&output));

    let log = served.stop();
    for secret in SECRETS.iter().chain(&["hush-wrong", "hush"]) {
        assert!(!log.contains(secret), "{secret} is in the log: {log}");
    }
    assert!(log.contains("unknown_token") || log.contains("no_key"), "{log}");
}

#[test]
fn keys_and_certificates_are_read_again_on_sighup() {
    let files = Files::new("reload");
    let config = files.config();
    let mut served = Served::start(&files, &config);
    let list = |served: &Served, token: &str| {
        run(served.engines(&files, &[]).env("KVPLANE_TOKEN", token)).status.success()
    };
    assert!(list(&served, "hush-read-1") && !list(&served, "hush-read-2"));
    files.write("read.token", "hush-read-2");
    files.certificate("server", "elsewhere");
    served.hang_up();
    served.logged("configuration reloaded");
    // The name on the certificate is another one now.
    let output = run(served.engines(&files, &[]).env("KVPLANE_TOKEN", "hush-read-2"));
    assert!(said(&output).contains("certificate"), "{}", said(&output));
    files.certificate("server", "localhost");
    served.hang_up();
    served.logged("configuration reloaded");
    assert!(!list(&served, "hush-read-1") && list(&served, "hush-read-2"));

    // What cannot be read changes nothing.
    files.write("read.token", "\n");
    served.hang_up();
    served.logged("configuration not reloaded: nothing has changed");
    files.write("read.token", "hush-read-1");
    files.write("server.pem", "-----BEGIN");
    served.hang_up();
    served.logged("configuration not reloaded: nothing has changed");
    assert!(list(&served, "hush-read-2"));
    // Access is not opened by a file that has lost its keys.
    let text = std::fs::read_to_string(&config).unwrap();
    files.certificate("server", "localhost");
    files.write("kvplane.toml", text.split("[[auth").next().unwrap());
    served.hang_up();
    let line = served.logged("configuration not reloaded: nothing has changed");
    assert!(line["error"].as_str().unwrap().contains("cannot be opened"), "{line}");
    assert!(list(&served, "hush-read-2"));
    let log = served.stop();
    for secret in SECRETS {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
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
