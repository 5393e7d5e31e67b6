//! `kvplane serve` as a process of its own, and a client for its questions.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

/// Short, so that most silences are longer.
const MAX_SILENCE: Duration = Duration::from_secs(1);
/// For a machine that is busy with the engines as well.
const SLACK: Duration = Duration::from_millis(500);
/// What a release without `max_silence` needs to notice a silent path.
const WITHOUT: Duration = Duration::from_secs(20);

/// Lines of the log that are kept of each engine.
const TRACED: usize = 60;

/// A running plane.
pub struct Plane {
    child: Mutex<Child>,
    pid: u32,
    address: String,
    /// How old a credited answer may be.
    pub bound: Duration,
    /// What it wrote to its log since it serves, without what it wrote of engines.
    log: Arc<Mutex<Vec<String>>>,
    /// The last lines of each engine, where they are wanted.
    of_engines: Arc<Mutex<HashMap<String, VecDeque<String>>>>,
}

impl Plane {
    /// Starts it for these engines.
    pub fn start(binary: &str, engines: &[String], bound: Option<Duration>, trace: bool) -> Self {
        let silence = format!(",max_silence={}ms", MAX_SILENCE.as_millis());
        let knows_it = Command::new(binary)
            .args(["serve", "--dump-config", "--engine", &format!("{}{silence}", engines[0])])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success();
        if !knows_it {
            println!("this kvplane has no max_silence: answers may be {WITHOUT:?} old");
        }
        let mut command = Command::new(binary);
        command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--log-format", "json"]);
        command.args(["--log", if trace { "info" } else { "error,kvplane::commands::serve=info" }]);
        // What is resident is in use: nothing that is free waits for being used again, and the kernel rounds
        // nothing up to huge pages.
        command.env("MIMALLOC_PURGE_DELAY", "0").env("MIMALLOC_ALLOW_THP", "0");
        // Windows are full soon, so that memory settles soon.
        command.args(["--set", "journal.max_batches=128", "--set", "follow.replay_idle=500ms"]);
        for engine in engines {
            command.args(["--engine", &format!("{engine}{}", if knows_it { &silence } else { "" })]);
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("the plane ended").unwrap();
            let record: Value = serde_json::from_str(&line).unwrap_or_default();
            if record["message"] == "serving" {
                break record["http"].as_str().unwrap().to_owned();
            }
            println!("{line}");
        };
        let log = Arc::new(Mutex::new(Vec::new()));
        let kept = log.clone();
        let of_engines: Arc<Mutex<HashMap<String, VecDeque<String>>>> = Arc::default();
        let traced = of_engines.clone();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(engine) = engine_of(&line) {
                    let mut traced = traced.lock();
                    let lines = traced.entry(engine).or_default();
                    lines.push_back(line);
                    if lines.len() > TRACED {
                        lines.pop_front();
                    }
                    continue;
                }
                let mut kept = kept.lock();
                if kept.len() < 10_000 {
                    kept.push(line);
                }
            }
        });
        let bound = bound.unwrap_or(if knows_it { MAX_SILENCE + SLACK } else { WITHOUT });
        Self { pid: child.id(), child: Mutex::new(child), address, bound, log, of_engines }
    }

    /// What it wrote last of an engine, for people.
    pub fn trace(&self, engine: &str) -> String {
        let of_engines = self.of_engines.lock();
        of_engines.get(engine).into_iter().flatten().map(|line| format!("\n    {line}")).collect()
    }

    /// Its resident memory.
    pub fn rss_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    /// Stops it for a moment, as a machine that is overcommitted does.
    pub fn stall(&self, time: Duration) {
        self.signal("STOP");
        thread::sleep(time);
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let _ = Command::new("kill").args([&format!("-{name}"), &self.pid.to_string()]).status();
    }

    /// What is wrong with it, if anything is.
    pub fn died(&self) -> Option<String> {
        if let Some(status) = self.child.lock().try_wait().unwrap() {
            return Some(format!("the plane ended with {status}: {:?}", self.log.lock().last()));
        }
        let log = self.log.lock();
        log.iter().find(|line| line.contains("panicked")).cloned()
    }

    /// Ends it.
    pub fn stop(&self) {
        let mut child = self.child.lock();
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Somebody who asks.
    pub fn asker(&self, model: &str) -> Asker {
        Asker { address: self.address.clone(), model: model.to_owned(), connection: None }
    }
}

/// The engine that a line of the log is about.
fn engine_of(line: &str) -> Option<String> {
    let record: Value = serde_json::from_str(line).ok()?;
    let name = record.get("stream").or_else(|| record.get("engine"))?.as_str()?;
    Some(name.split('/').next().unwrap_or(name).to_owned())
}

/// A connection for questions about one model.
pub struct Asker {
    address: String,
    model: String,
    connection: Option<BufReader<TcpStream>>,
}

/// What is said of the only engine of a model.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "the words are for people: they are printed as a whole")]
pub enum Said {
    /// It holds these tokens.
    Credited { tokens: usize, is_exact: bool },
    /// Nothing.
    Uncredited(String),
    /// The plane did not answer.
    Nothing(String),
}

impl Asker {
    /// Asks for a prompt; also when the question was sent.
    pub fn ask(&mut self, prompt: &[u32]) -> (Instant, Said) {
        let asked = Instant::now();
        let body = json!({"model": self.model, "token_ids": prompt, "all": true}).to_string();
        match self.post("/v1/query", &body) {
            Ok(answer) => (asked, said(&answer)),
            Err(error) => {
                self.connection = None;
                (asked, Said::Nothing(error.to_string()))
            }
        }
    }

    /// What the plane's status says of an engine, for people.
    pub fn status(&mut self, engine: &str) -> String {
        let status = self.request("GET", "/v1/status?limit=10000", "").unwrap_or_default();
        let engines = status["engines"].as_array();
        let found = engines.and_then(|all| all.iter().find(|one| one["id"] == engine));
        found.map_or_else(|| "no status".to_owned(), Value::to_string)
    }

    fn post(&mut self, path: &str, body: &str) -> std::io::Result<Value> {
        self.request("POST", path, body)
    }

    fn request(&mut self, method: &str, path: &str, body: &str) -> std::io::Result<Value> {
        if self.connection.is_none() {
            let stream = TcpStream::connect(&self.address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            self.connection = Some(BufReader::new(stream));
        }
        let connection = self.connection.as_mut().unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        connection.get_mut().write_all(request.as_bytes())?;
        let mut length = None;
        loop {
            let mut line = String::new();
            if connection.read_line(&mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse::<usize>().ok();
            }
        }
        let mut answer = vec![0; length.ok_or_else(|| std::io::Error::other("no content-length"))?];
        connection.read_exact(&mut answer)?;
        Ok(serde_json::from_slice(&answer)?)
    }
}

fn said(answer: &Value) -> Said {
    if let Some(found) = answer["matches"].get(0) {
        let tokens = found["tokens"].as_u64().unwrap_or(0) as usize;
        return match found["trust"].as_str() {
            Some("exact") => Said::Credited { tokens, is_exact: true },
            Some("lower") => Said::Credited { tokens, is_exact: false },
            other => Said::Uncredited(other.unwrap_or("?").to_owned()),
        };
    }
    match answer["not_credited"].get(0) {
        Some(stream) => Said::Uncredited(stream["reason"].as_str().unwrap_or("?").to_owned()),
        None => Said::Nothing(answer.to_string()),
    }
}
