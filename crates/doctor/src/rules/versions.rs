//! Releases that are known to tell their caches wrongly, or not at all.

use std::collections::BTreeMap;

use kvplane_core::EngineKind;

use super::reach::is_published;
use crate::heard::shown;
use crate::seen::EngineSeen;
use crate::{Code, Finding, Heard, Severity};

/// The numbers of a release.
type Numbers = [u32; 3];

/// A release, or what came before it under its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    numbers: Numbers,
    is_final: bool,
}

/// The first vLLM that hashes what is salted, adapted or multimodal in another way.
const KEYED_ANEW: Version = Version::of([0, 31, 0]);

impl Version {
    const fn of(numbers: Numbers) -> Self {
        Self { numbers, is_final: true }
    }
}

/// What is wrong with a range of releases.
struct Broken {
    kind: EngineKind,
    /// The first release that is right.
    before: Numbers,
    from: Numbers,
    severity: Severity,
    /// Whether it matters for this engine.
    applies: fn(&EngineSeen) -> bool,
    what: &'static str,
    todo: &'static str,
}

const ALWAYS: fn(&EngineSeen) -> bool = |_| true;

/// What its ranks said that could be read, live or from their rings.
fn heard(seen: &EngineSeen) -> impl Iterator<Item = &Heard> {
    seen.ranks.iter().flat_map(super::both).filter(|heard| heard.first.is_some())
}

/// Whether its events tell that it offloads to the CPU.
fn offloads(seen: &EngineSeen) -> bool {
    heard(seen).any(|heard| heard.has_host || heard.widths.len() > 1)
}

/// Every such range.
const BROKEN: [Broken; 9] = [
    Broken {
        kind: EngineKind::Vllm,
        from: [0, 0, 0],
        before: [0, 9, 0],
        severity: Severity::Error,
        applies: ALWAYS,
        what: "publishes no KV-cache events",
        todo: "use 0.9.0 or later",
    },
    Broken {
        kind: EngineKind::Vllm,
        from: [0, 9, 0],
        before: [0, 10, 2],
        severity: Severity::Warning,
        applies: |seen| heard(seen).next().is_none(),
        what: "loses every batch under --prefix-caching-hash-algo sha256: its hashes do not fit into a message, and replay does not have it either",
        todo: "use 0.10.2 or later, or the hash algorithm builtin",
    },
    Broken {
        kind: EngineKind::Vllm,
        from: [0, 11, 1],
        before: [0, 24, 0],
        severity: Severity::Info,
        applies: offloads,
        what: "writes the hashes of its CPU tier as bytes, also where those of the device are integers",
        todo: "nothing for kvplane, which joins the two forms; for other consumers use 0.24.0 or later",
    },
    Broken {
        kind: EngineKind::Vllm,
        from: [0, 9, 0],
        before: [0, 30, 0],
        severity: Severity::Info,
        applies: offloads,
        what: "tells evictions from the CPU as removals from the device, if it runs with SimpleCPUOffload: blocks are then missed that are there",
        todo: "use 0.30.0 or later, or another way to offload",
    },
    Broken {
        kind: EngineKind::Sglang,
        from: [0, 0, 0],
        before: [0, 4, 6],
        severity: Severity::Error,
        applies: ALWAYS,
        what: "publishes no KV-cache events",
        todo: "use 0.4.6 or later",
    },
    Broken {
        kind: EngineKind::Sglang,
        from: [0, 4, 6],
        before: [0, 5, 6],
        severity: Severity::Error,
        applies: ALWAYS,
        what: "gives equal pages at different places of a prompt the same hash: which of them a removal means cannot be told",
        todo: "use 0.5.6 or later",
    },
    Broken {
        kind: EngineKind::Sglang,
        from: [0, 4, 6],
        before: [0, 5, 15],
        severity: Severity::Warning,
        applies: |seen| seen.ranks.len() > 1,
        what: "lets all ranks of plain data parallelism publish at one port, so that only one is heard",
        todo: "use 0.5.15 or later, or data parallelism of attention",
    },
    Broken {
        kind: EngineKind::Sglang,
        from: [0, 5, 6],
        before: [0, 5, 22],
        severity: Severity::Warning,
        applies: |seen| seen.word().is_some_and(|word| word.untold_adapters),
        what: "serves adapters, and its events and hashes do not tell them apart",
        todo: "use 0.5.22 or later with \"format\": \"dynamo\" in --kv-events-config",
    },
    Broken {
        kind: EngineKind::Trtllm,
        from: [0, 0, 0],
        before: [1, 3, 0],
        severity: Severity::Warning,
        applies: is_published,
        what: "refuses kv_events_config, or has it only in release candidates: events are drained over HTTP",
        todo: "configure events = \"http://host:port\", or use 1.3.0 or later",
    },
];

/// What is known of the engine's release.
pub(super) fn judge(seen: &EngineSeen) -> Vec<Finding> {
    let Some((text, version)) =
        seen.said.version.as_deref().and_then(|text| parse(text).map(|version| (text, version)))
    else {
        return Vec::new();
    };
    let broken = BROKEN.iter().filter(|broken| {
        broken.kind == seen.kind
            && (Version::of(broken.from)..Version::of(broken.before)).contains(&version)
            && (broken.applies)(seen)
    });
    let finding = |broken: &Broken| {
        Finding::new(
            Code::EngineVersionBroken,
            broken.severity,
            &seen.id,
            format!("release {} {}", shown(text), broken.what),
            broken.todo,
        )
    };
    broken.map(finding).collect()
}

/// The numbers that a version begins with; none where it has fewer than two. What is built between releases
/// says too little.
fn parse(text: &str) -> Option<Version> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut numbers = text.split('.').map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    if text.contains("dev") {
        return None;
    }
    let (major, minor) = (numbers.next()??, numbers.next()??);
    let numbers = [major, minor, numbers.next().flatten().unwrap_or(0)];
    Some(Version { numbers, is_final: !is_early(text) })
}

/// Whether a version is one before a release: `1.3.0rc1`, `1.3.0-beta.2`, `1.3.0a1`. What follows a plus
/// names a build.
fn is_early(text: &str) -> bool {
    let version = text.split('+').next().unwrap_or(text);
    let word = version.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    ["a", "b", "c", "rc", "alpha", "beta", "pre", "preview"].iter().any(|early| {
        word.strip_prefix(early).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphabetic()))
    })
}

/// Engines of one model on both sides of a change in vLLM's hashes.
pub(super) fn judge_fleet(seen: &[EngineSeen]) -> Vec<Finding> {
    let mut by_model: BTreeMap<&str, [Vec<&str>; 2]> = BTreeMap::new();
    for engine in seen.iter().filter(|engine| engine.kind == EngineKind::Vllm) {
        if let Some(version) = engine.said.version.as_deref().and_then(parse) {
            let sides = by_model.entry(&engine.model).or_default();
            sides[usize::from(version >= KEYED_ANEW)].push(&engine.id);
        }
    }
    let mixed = by_model.into_iter().filter(|(_, sides)| sides.iter().all(|side| !side.is_empty()));
    let finding = |(model, [old, new]): (&str, [Vec<&str>; 2])| {
        Finding::new(
            Code::EngineVersionBroken,
            Severity::Info,
            if model.is_empty() { "fleet".to_owned() } else { format!("model {model}") },
            format!(
                "vLLM from 0.31 on ({}) and before ({}) hash blocks with a salt, an adapter or an image in different ways",
                new.join(", "),
                old.join(", ")
            ),
            "nothing for kvplane, which computes its own; for whoever compares the engines' hashes use releases of one side",
        )
    };
    mixed.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_engines_write_them() {
        let release = |numbers| Some(Version::of(numbers));
        assert_eq!(parse("0.32.0"), release([0, 32, 0]));
        assert_eq!(parse("v0.4.6.post5"), release([0, 4, 6]));
        assert_eq!(parse("0.11.0+cu129"), release([0, 11, 0]));
        assert_eq!(parse("0.11.0+rc1"), release([0, 11, 0]));
        assert_eq!(parse("0.20"), release([0, 20, 0]));
        assert_eq!(parse("0.1.dev1+g123"), None);
        assert_eq!(parse("main"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn what_comes_before_a_release_is_below_it() {
        for early in ["1.3.0rc27", "1.3.0.rc1", "1.3.0-beta.2", "1.3.0a1", "v1.3.0rc1+cu129"] {
            let version = parse(early).unwrap();
            assert!(version < Version::of([1, 3, 0]) && version > Version::of([1, 2, 99]), "{early}");
        }
    }
}
