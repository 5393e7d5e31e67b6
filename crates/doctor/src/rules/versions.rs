//! Releases that are known to tell their caches wrongly, or not at all.

use kvplane_core::EngineKind;

use super::reach::is_published;
use crate::heard::shown;
use crate::seen::EngineSeen;
use crate::{Code, Finding, Severity};

type Version = [u32; 3];

/// What is wrong with a range of releases.
struct Broken {
    kind: EngineKind,
    /// The first release that is right.
    before: Version,
    from: Version,
    severity: Severity,
    /// Whether it matters for this engine.
    applies: fn(&EngineSeen) -> bool,
    what: &'static str,
    todo: &'static str,
}

const ALWAYS: fn(&EngineSeen) -> bool = |_| true;

/// Every such range.
const BROKEN: [Broken; 7] = [
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
        applies: ALWAYS,
        what: "loses every batch under --prefix-caching-hash-algo sha256: its hashes do not fit into a message, and replay does not have it either",
        todo: "use 0.10.2 or later, or the hash algorithm builtin",
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
        broken.kind == seen.kind && (broken.from..broken.before).contains(&version) && (broken.applies)(seen)
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

/// The numbers that a version begins with; none where it has fewer than two. What is built between releases says too little.
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
    Some([major, minor, numbers.next().flatten().unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_engines_write_them() {
        assert_eq!(parse("0.32.0"), Some([0, 32, 0]));
        assert_eq!(parse("v0.4.6.post5"), Some([0, 4, 6]));
        assert_eq!(parse("1.3.0rc27"), Some([1, 3, 0]));
        assert_eq!(parse("0.20"), Some([0, 20, 0]));
        assert_eq!(parse("0.1.dev1+g123"), None);
        assert_eq!(parse("main"), None);
        assert_eq!(parse(""), None);
    }
}
