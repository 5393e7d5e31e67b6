//! Putting the layers together: file, environment, flags. Every mistake is one line that says what and where.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use kvplane_core::in_plain_words;
use toml::{Table, Value};

use super::Config;
use super::schema::is_unquoted;
use crate::args::ServeArgs;
use crate::suggest::with_suggestion;

const PREFIX: &str = "KVPLANE__";
/// The next step after a mistake.
const SEE_KEYS: &str = "; `kvplane config schema` lists the keys";

/// The variables of this process's environment that configure it. Others may hold anything.
pub(crate) fn environment() -> anyhow::Result<Vec<(String, String)>> {
    configuring(std::env::vars_os())
}

fn configuring(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> anyhow::Result<Vec<(String, String)>> {
    let ours = |name: &OsString| name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
    let ours = environment.into_iter().filter(|(name, _)| ours(name));
    let text = |(name, value): (OsString, OsString)| {
        let shown = name.to_string_lossy().into_owned();
        let not_utf8 = || anyhow!("environment {shown}: is not UTF-8; set it again, or unset it");
        let name = name.into_string().map_err(|_| not_utf8())?;
        Ok((name, value.into_string().map_err(|_| not_utf8())?))
    };
    ours.map(text).collect()
}

/// Reads every layer.
pub(crate) fn load(
    args: &ServeArgs,
    environment: impl IntoIterator<Item = (String, String)>,
) -> anyhow::Result<Config> {
    let mut tree = file_and_environment(args.config.as_deref(), environment)?;
    for flag in &args.set {
        let (key, value) = flag.split_once('=').ok_or_else(|| anyhow!("--set {flag:?}: write KEY=VALUE"))?;
        let path: Vec<String> = key.split('.').map(str::to_owned).collect();
        let value = scalar(path.last().map_or("", String::as_str), value);
        set(&mut tree, &path, value).with_context(|| format!("--set {flag}"))?;
    }
    let flags = [
        ("http", args.http.map(|address| address.to_string())),
        ("grpc", args.grpc.map(|address| address.to_string())),
        ("drain_timeout", args.drain_timeout.map(|span| span.to_string())),
    ];
    for (key, value) in flags {
        if let Some(value) = value {
            set(&mut tree, &["listen".to_owned(), key.to_owned()], Value::String(value))?;
        }
    }
    if !args.peers.is_empty() {
        let peers = args.peers.iter().cloned().map(Value::String).collect();
        set(&mut tree, &["indexer".to_owned(), "peers".to_owned()], Value::Array(peers))?;
    }
    for flag in &args.engine {
        add_engine(&mut tree, flag).with_context(|| format!("--engine {flag}"))?;
    }
    check(&tree)
}

/// Reads a file and the environment: what a kvplane serves with that was given no flags.
pub(crate) fn load_file(
    path: &Path,
    environment: impl IntoIterator<Item = (String, String)>,
) -> anyhow::Result<Config> {
    check(&file_and_environment(Some(path), environment)?)
}

fn file_and_environment(
    path: Option<&Path>,
    environment: impl IntoIterator<Item = (String, String)>,
) -> anyhow::Result<Table> {
    let mut tree = match path {
        Some(path) => read_file(path)?,
        None => Table::new(),
    };
    let mut variables: Vec<(String, String)> =
        environment.into_iter().filter(|(name, _)| name.starts_with(PREFIX)).collect();
    // Elements of a list in the order of their numbers, not of their digits.
    variables.sort_by_key(|(name, _)| {
        let part = |text: &str| (text.parse::<usize>().unwrap_or(usize::MAX), text.to_owned());
        name.split("__").map(part).collect::<Vec<_>>()
    });
    for (name, value) in variables {
        let path: Vec<String> = name[PREFIX.len()..].split("__").map(str::to_lowercase).collect();
        let value = scalar(path.last().map_or("", String::as_str), &value);
        set(&mut tree, &path, value).with_context(|| format!("environment {name}"))?;
    }
    Ok(tree)
}

/// Reads the file; a mistake names its line.
fn read_file(path: &Path) -> anyhow::Result<Table> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read {name}; correct --config, or let kvplane's user read it"))?;
    let at = |error: &toml::de::Error| {
        let line =
            error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        anyhow!("{name}:{line}: {}{SEE_KEYS}", with_suggestion(&in_plain_words(error.message())))
    };
    // Once as what it must be, for errors that know their line; once as a tree, to lay the others over it.
    toml::from_str::<Config>(&text).map_err(|error| at(&error))?;
    toml::from_str::<Table>(&text).map_err(|error| at(&error))
}

fn check(tree: &Table) -> anyhow::Result<Config> {
    serde_path_to_error::deserialize(Value::Table(tree.clone())).map_err(|error| {
        let path = error.path().to_string();
        let message = with_suggestion(&in_plain_words(error.into_inner().message()));
        if path == "." {
            return anyhow!("{message}{SEE_KEYS}");
        }
        // A key that was set by the environment is named by its variable.
        let variable = path.to_uppercase().replace(['.', '['], "__").replace(']', "");
        anyhow!("{path}: {message} (by file, --set, --engine or {PREFIX}{variable}){SEE_KEYS}")
    })
}

/// A value as it would be written in the file: numbers and lists as such, everything else as text.
fn scalar(key: &str, text: &str) -> Value {
    if !is_unquoted(key) && !text.starts_with(['[', '{']) {
        return Value::String(text.to_owned());
    }
    let parsed: Option<Table> = toml::from_str(&format!("value = {text}")).ok();
    parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Sets a key deep in the tree; a number names an element of a list, and one past its end appends.
fn set(tree: &mut Table, path: &[String], value: Value) -> anyhow::Result<()> {
    let Some((key, rest)) = path.split_first().filter(|(key, _)| !key.is_empty()) else {
        bail!("names no key; write section.key{SEE_KEYS}");
    };
    if rest.is_empty() {
        tree.insert(key.clone(), value);
        return Ok(());
    }
    if let Ok(index) = rest[0].parse::<usize>() {
        let list = tree.entry(key.clone()).or_insert_with(|| Value::Array(Vec::new()));
        let list = list.as_array_mut().ok_or_else(|| anyhow!("{key} is not a list"))?;
        if index > list.len() {
            bail!("{key} has {} elements: the next is number {}", list.len(), list.len());
        }
        if index == list.len() {
            list.push(Value::Table(Table::new()));
        }
        let element = list[index].as_table_mut().ok_or_else(|| anyhow!("{key}[{index}] has no keys"))?;
        return set(element, &rest[1..], value);
    }
    let section = tree.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
    set(section.as_table_mut().ok_or_else(|| anyhow!("{key} has no keys"))?, rest, value)
}

/// `KIND=EVENTS[,key=value …]`, with the file's keys.
pub(crate) fn engine_flag(flag: &str) -> anyhow::Result<Table> {
    let mut parts = flag.split(',');
    let (kind, events) = parts
        .next()
        .and_then(|first| first.split_once('='))
        .ok_or_else(|| anyhow!("write KIND=EVENTS, for example vllm=tcp://127.0.0.1:5557"))?;
    let mut engine = Table::new();
    engine.insert("kind".to_owned(), Value::String(kind.to_owned()));
    // An engine's HTTP server is where its events are only if they are drained; the others tell there where
    // they publish.
    let at = match kind {
        "kvplane" => "grpc",
        "trtllm" => "events",
        _ if events.starts_with("http://") => "http",
        _ => "events",
    };
    engine.insert(at.to_owned(), Value::String(events.to_owned()));
    for part in parts {
        let (key, value) = part.split_once('=').ok_or_else(|| anyhow!("{part:?}: write key=value"))?;
        engine.insert(key.to_owned(), scalar(key, value));
    }
    Ok(engine)
}

/// Adds an engine to the tree. The id is the kind and a number unless given.
fn add_engine(tree: &mut Table, flag: &str) -> anyhow::Result<()> {
    let mut engine = engine_flag(flag)?;
    let list = tree.entry("engine").or_insert_with(|| Value::Array(Vec::new()));
    let list = list.as_array_mut().ok_or_else(|| anyhow!("engine is not a list"))?;
    let kind = engine.get("kind").and_then(Value::as_str).unwrap_or_default();
    let id = format!("{kind}-{}", list.len());
    engine.entry("id").or_insert(Value::String(id));
    list.push(Value::Table(engine));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn args(words: &[&str]) -> ServeArgs {
        let words = ["kvplane", "serve"].into_iter().chain(words.iter().copied());
        match crate::args::Args::parse_from(words).command {
            crate::args::Command::Serve(serve) => serve,
            other => panic!("{other:?}"),
        }
    }

    fn load_with(words: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<Config> {
        load(&args(words), environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())))
    }

    fn file(text: &str) -> (std::path::PathBuf, impl Drop) {
        struct Remove(std::path::PathBuf);
        impl Drop for Remove {
            fn drop(&mut self) {
                let _ = std::fs::remove_file(&self.0);
            }
        }
        let name = format!("kvplane-{}-{:?}.toml", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        (path.clone(), Remove(path))
    }

    /// Words, environment, and what the error must say.
    type Case = (&'static [&'static str], &'static [(&'static str, &'static str)], &'static str);

    const ENGINE: &str = "vllm=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558,model=llama";

    #[test]
    fn one_engine_by_a_flag() {
        let config = load_with(&["--engine", ENGINE], &[]).unwrap();
        let plans = config.plans().unwrap();
        let engine = plans[0].spec();
        assert_eq!(engine.id.as_str(), "vllm-0");
        assert_eq!(engine.model, "llama");
        assert_eq!(engine.source.ranks()[0].replay.as_deref(), Some("tcp://127.0.0.1:5558"));
        assert_eq!(config.listen.http.to_string(), "127.0.0.1:8090");
    }

    #[test]
    fn an_engine_that_is_asked_where_it_publishes() {
        let config = load_with(&["--engine", "sglang=http://gpu-7:30000,model=m"], &[]).unwrap();
        let plans = config.plans().unwrap();
        assert!(matches!(plans[0].spec().source, kvplane_ingest::Source::Discovered(_)));
        let config = load_with(&["--engine", "vllm=tcp://a:1,http=http://a:2"], &[]).unwrap();
        assert!(matches!(config.plans().unwrap()[0].spec().source, kvplane_ingest::Source::Published(_)));
        let config = load_with(&["--engine", "vllm=tcp://a:1,http=http://a:2,discover=true"], &[]).unwrap();
        assert!(matches!(config.plans().unwrap()[0].spec().source, kvplane_ingest::Source::Discovered(_)));
    }

    #[test]
    fn flags_beat_the_environment_and_that_beats_the_file() {
        let text = "[listen]\nhttp = \"127.0.0.1:1\"\ngrpc = \"127.0.0.1:2\"\n[journal]\nmax_batches = 3\n\
            [[engine]]\nid = \"a\"\nkind = \"vllm\"\nevents = \"tcp://127.0.0.1:5557\"\n";
        let (path, _remove) = file(text);
        let words = ["--config", path.to_str().unwrap(), "--http", "127.0.0.1:9"];
        let environment = [
            ("KVPLANE__LISTEN__HTTP", "127.0.0.1:7"),
            ("KVPLANE__LISTEN__GRPC", "127.0.0.1:8"),
            ("KVPLANE__JOURNAL__MAX_BYTES", "1MiB"),
            ("KVPLANE__ENGINE__0__MODEL", "m"),
            ("OTHER", "x"),
        ];
        let config = load_with(&words, &environment).unwrap();
        assert_eq!(config.listen.http.to_string(), "127.0.0.1:9");
        assert_eq!(config.listen.grpc.to_string(), "127.0.0.1:8");
        assert_eq!(config.journal.max_batches, 3);
        assert_eq!(config.journal.max_bytes.0, 1 << 20);
        assert_eq!(config.engine[0].model, "m");
        let printed = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<Config>(&printed).unwrap(), config);
    }

    #[test]
    fn variables_of_others_may_hold_anything() {
        use std::os::unix::ffi::OsStringExt as _;
        let broken = || OsString::from_vec(vec![b'x', 0xff]);
        let others = [(OsString::from("OTHER"), broken()), (broken(), "y".into())];
        let ours = [(OsString::from("KVPLANE__LISTEN__HTTP"), OsString::from("127.0.0.1:7"))];
        let found = configuring(others.into_iter().chain(ours)).unwrap();
        assert_eq!(found, [("KVPLANE__LISTEN__HTTP".to_owned(), "127.0.0.1:7".to_owned())]);
        let error = configuring([("KVPLANE__LISTEN__HTTP".into(), broken())]).unwrap_err().to_string();
        assert!(error.contains("KVPLANE__LISTEN__HTTP") && error.contains("UTF-8"), "{error}");
    }

    #[test]
    fn connections_are_drained_for_as_long_as_is_configured() {
        let drained = |words: &[&str]| load_with(words, &[]).unwrap().listen.drain_timeout.to_string();
        assert_eq!(drained(&[]), "30s");
        assert_eq!(drained(&["--set", "listen.drain_timeout=2m"]), "120s");
        assert_eq!(drained(&["--drain-timeout", "500ms"]), "500ms");
    }

    #[test]
    fn mistakes_are_one_line_that_says_what_and_where() {
        let (path, _remove) = file("[listen]\nhttp = \"127.0.0.1:1\"\nhtpp = 1\n");
        let error = format!("{:#}", load_with(&["--config", path.to_str().unwrap()], &[]).unwrap_err());
        assert!(error.contains(".toml:3:") && error.contains("htpp"), "{error}");
        assert!(!error.contains('\n'));
        let cases: [Case; 8] = [
            (&["--config", "/nowhere/x.toml"], &[], "/nowhere/x.toml"),
            (&["--engine", "vllm"], &[], "KIND=EVENTS"),
            (&["--engine", "vlm=tcp://a:1"], &[], "vlm"),
            (&["--engine", "vllm=tcp://a:1,colour=red"], &[], "colour"),
            (&["--set", "journal.max_bytes=lots"], &[], "journal.max_bytes"),
            (&[], &[("KVPLANE__JOURNAL__MAX_BATCHES", "many")], "KVPLANE__JOURNAL__MAX_BATCHES"),
            (&[], &[("KVPLANE__JOURNAL__MAX_BATCHES", "many")], "expected a whole number"),
            (&["--set", "a..b=1"], &[], "config schema"),
        ];
        for (words, environment, expected) in cases {
            let error = format!("{:#}", load_with(words, environment).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_only_a_restart_changes_is_named() {
        let before = load_with(&["--engine", ENGINE], &[]).unwrap();
        let after = load_with(&["--set", "journal.max_batches=3", "--http", "127.0.0.1:1"], &[]).unwrap();
        assert_eq!(before.differs_in(&after).unwrap(), ["journal.max_batches", "listen.http"]);
        assert!(before.differs_in(&before).unwrap().is_empty());
    }

    #[test]
    fn engines_are_checked_before_anything_is_contacted() {
        let cases: [(&[&str], &str); 13] = [
            (
                &[
                    "--set",
                    "engine.0.id=a",
                    "--set",
                    "engine.0.kind=vllm",
                    "--set",
                    "engine.0.events=tcp://a:1",
                    "--set",
                    "engine.0.republish.events=tcp://127.0.0.1:7000",
                    "--set",
                    "journal.tokens=drop",
                ],
                "republish: needs tokens",
            ),
            (&["--engine", "vllm=tcp://a:1,id=x", "--engine", "vllm=tcp://a:2,id=x"], "used twice"),
            (&["--engine", "vllm=a:1"], "is not an address"),
            (&["--engine", "vllm=tcp://a:1,replay=b"], "is not an address"),
            (&["--engine", "vllm=tcp://a:1,ranks=0"], "ranks"),
            (&["--engine", "vllm=tcp://a:65535,ranks=2"], "port"),
            (&["--engine", "vllm=tcp://a:1,http=a:1"], "http"),
            (&["--set", "engine.0.id=a", "--set", "engine.0.kind=vllm"], "events: is missing"),
            (&["--engine", "vllm=tcp://a:1,discover=true"], "needs http or grpc"),
            (&["--engine", "vllm=bind:tcp://a:1,discover=true,http=http://a:2"], "tcp://…"),
            (&["--engine", "vllm=grpc://a:1,discover=true,http=http://a:2"], "tcp://…"),
            (&["--engine", "vllm=http://a:1,replay=b"], "is not an address"),
            (&["--engine", "trtllm=tcp://a:1,discover=true,http=http://a:2"], "kind vllm"),
        ];
        for (words, expected) in cases {
            let error = load_with(words, &[]).unwrap().plans().unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(expected), "{error}");
        }
    }
}
