//! A plane that asks who calls, as a process of its own.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::Value;

/// Far beyond anything that should take: only a hang reaches it.
pub const DEADLINE: Duration = Duration::from_mins(1);
pub const SECRETS: [&str; 4] = ["hush-read-1", "hush-read-2", "hush-report", "hush-admin"];

pub fn kvplane() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvplane"));
    command.env_remove("KVPLANE_TOKEN").stdin(Stdio::null());
    command
}

pub fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A directory that goes with the test, with an authority, certificates and tokens in it.
pub struct Files {
    path: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Files {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kvplane-access-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let files = Self { path, authority: authority() };
        files.write("ca.pem", &files.authority.pem());
        files.certificate("server", "localhost");
        files.certificate("client", "operator.example");
        files.write("read.token", "hush-read-1\n");
        files.write("report.token", "hush-report");
        files
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Where a file is, as it stands in a configuration.
    pub fn quoted(&self, name: &str) -> String {
        format!("{:?}", self.at(name).display().to_string())
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn certificate(&self, file: &str, name: &str) {
        self.certificate_by(&self.authority, file, name);
    }

    /// A certificate of an authority that nobody knows, with the name of one that has a role.
    pub fn stranger(&self, file: &str) {
        self.certificate_by(&authority(), file, "operator.example");
    }

    fn certificate_by(&self, authority: &CertifiedIssuer<'static, KeyPair>, file: &str, name: &str) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        self.write(&format!("{file}.pem"), &params.signed_by(&key, authority).unwrap().pem());
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }

    /// A configuration with a token of each kind, a certificate, and TLS.
    pub fn config(&self) -> PathBuf {
        let tls = format!(
            "tls = {{ cert = {}, key = {}, client_ca = {} }}\n",
            self.quoted("server.pem"),
            self.quoted("server.key"),
            self.quoted("ca.pem")
        );
        let certificate =
            "[[auth.certificate]]\nname = \"robot\"\nrole = \"admin\"\nsan = \"operator.example\"\n";
        self.config_with(&tls, certificate)
    }

    /// The same without TLS: raw bytes can be sent to it.
    pub fn plain_config(&self) -> PathBuf {
        self.config_with("", "")
    }

    fn config_with(&self, listen: &str, auth: &str) -> PathBuf {
        let text = format!(
            "[listen]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\n{listen}\
             [[auth.token]]\nname = \"dashboard\"\nrole = \"read\"\nfile = {}\n\
             [[auth.token]]\nname = \"sidecar\"\nrole = \"report\"\nfile = {}\n\
             [[auth.token]]\nname = \"operator\"\nrole = \"admin\"\nenv = \"TEST_ADMIN_TOKEN\"\n{auth}",
            self.quoted("read.token"),
            self.quoted("report.token"),
        );
        self.write("kvplane.toml", &text)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A connection to a server without TLS on this machine.
pub fn connect(port: &str) -> TcpStream {
    let stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// A request for a page, as its bytes.
pub fn request(path: &str, token: &str, connection: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: {connection}\r\n\r\n"
    )
}

/// The whole answer to one.
pub fn get(port: &str, path: &str, token: &str) -> String {
    let (mut stream, mut answer) = (connect(port), String::new());
    stream.write_all(request(path, token, "close").as_bytes()).unwrap();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A process of ours that logs.
pub struct Process {
    child: Child,
    log: PathBuf,
    /// How much of the log was looked at.
    seen: usize,
}

impl Process {
    pub fn start(command: &mut Command, log: PathBuf) -> Self {
        let command =
            command.args(["--log-format", "json", "--log", "trace"]).env("TEST_ADMIN_TOKEN", "hush-admin");
        let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        Self { child, log, seen: 0 }
    }

    /// Waits for the next line of the log that says this.
    pub fn logged(&mut self, message: &str) -> Value {
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

    /// The port of a listener, from the line that says so, wherever it is in the log.
    pub fn port(&self, message: &str) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap();
        let line = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let line = { line }.find(|line| line["message"] == message).unwrap();
        line["address"].as_str().unwrap().rsplit(':').next().unwrap().to_owned()
    }

    pub fn hang_up(&self) {
        let killed = Command::new("kill").args(["-HUP", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }

    pub fn terminate(&self) {
        let killed = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(killed.success());
    }

    /// Waits for its end, and returns its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Ends it, and returns all that it has logged.
    pub fn stop(mut self) -> String {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        self.child.wait().unwrap();
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running plane.
pub struct Served {
    pub process: Process,
    pub http_port: String,
    pub grpc_port: String,
}

impl Served {
    pub fn start(config: &Path) -> Self {
        let log = config.with_extension("log");
        let mut process = Process::start(kvplane().args(["serve", "--config"]).arg(config), log);
        let serving = process.logged("serving");
        let port = |key: &str| serving[key].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
        let (http_port, grpc_port) = (port("http"), port("grpc"));
        Self { process, http_port, grpc_port }
    }

    pub fn http(&self) -> String {
        format!("https://localhost:{}", self.http_port)
    }

    pub fn grpc(&self) -> String {
        format!("https://localhost:{}", self.grpc_port)
    }

    /// `kvplane engines …` with this authority.
    pub fn engines(&self, files: &Files, words: &[&str]) -> Command {
        let mut command = kvplane();
        command.arg("engines").args(words).args(["--server", &self.http(), "--ca"]).arg(files.at("ca.pem"));
        command
    }
}
