//! What was found, for people and for programs.

use kvplane_doctor::{Finding, Severity};
use serde_json::{Value, json};

use super::Looked;
use crate::commands::page::harmless;

/// Lines are broken before they get longer than this.
const WIDTH: usize = 100;
/// Where what is said of a finding begins.
const INDENT: usize = 9;
/// Where the sentences begin: behind `seen`, `why` and `do`.
const SENTENCE: usize = INDENT + 6;

/// One document.
pub(super) fn json(looked: &Looked) -> Value {
    let count = |severity| looked.findings.iter().filter(|finding| finding.severity == severity).count();
    json!({
        "findings": looked.findings,
        "summary": {
            "errors": count(Severity::Error),
            "warnings": count(Severity::Warning),
            "infos": count(Severity::Info),
        },
        "looked_at": { "engines": looked.engines, "plane": looked.plane },
    })
}

/// A paragraph for each finding, and a line with the numbers.
pub(super) fn page(looked: &Looked, coloured: bool) -> String {
    let mut page = String::new();
    for finding in &looked.findings {
        page.push_str(&paragraph(finding, coloured));
        page.push('\n');
    }
    page.push_str(&summary(looked));
    page
}

fn paragraph(finding: &Finding, coloured: bool) -> String {
    let Finding { code, severity, subject, seen, why, todo } = finding;
    let (on, off) = if coloured { (colour(*severity), "\x1b[0m") } else { ("", "") };
    let mut text = format!("{on}{:<INDENT$}{off}{code}  {}\n", severity.as_str(), harmless(subject));
    for (word, sentence) in [("seen", seen.as_str()), ("why", why), ("do", todo)] {
        let mut lines = wrapped(&harmless(sentence), WIDTH - SENTENCE).into_iter();
        let first = lines.next().unwrap_or_default();
        text.push_str(&format!("{:INDENT$}{word:<6}{first}\n", ""));
        lines.for_each(|line| text.push_str(&format!("{:SENTENCE$}{line}\n", "")));
    }
    text
}

fn summary(looked: &Looked) -> String {
    let count = |severity| looked.findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    let engines = counted(looked.engines.len(), "engine");
    let plane = looked.plane.as_deref().map(harmless);
    let of = plane.map_or_else(|| engines.clone(), |plane| format!("{plane}, {engines}"));
    if looked.findings.is_empty() {
        return format!("{of}: nothing is wrong\n");
    }
    let numbers = [(errors, "error"), (warnings, "warning"), (count(Severity::Info), "info")];
    let numbers = numbers.map(|(number, word)| counted(number, word));
    format!("{of}: {}\n", numbers.join(", "))
}

/// A count and its noun.
pub(super) fn counted(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

fn colour(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "\x1b[31m",
        Severity::Warning => "\x1b[33m",
        Severity::Info => "\x1b[36m",
    }
}

/// Wraps to lines of at most this many characters, unless one word is longer.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use kvplane_doctor::Code;

    use super::*;

    fn looked() -> Looked {
        let finding = Finding::new(
            Code::Silent,
            Severity::Warning,
            "vllm-0/0",
            "nothing came ".repeat(12),
            "send a prompt",
        );
        Looked { engines: vec!["vllm-0".to_owned()], plane: None, findings: vec![finding] }
    }

    #[test]
    fn a_page_is_narrow_and_coloured_on_terminals_alone() {
        let page = page(&looked(), false);
        assert!(page.starts_with("warning  silent  vllm-0/0\n         seen  nothing came"), "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= WIDTH), "{page}");
        assert!(page.ends_with("1 engine: 0 errors, 1 warning, 0 infos\n"), "{page}");
        assert!(!page.contains('\x1b'));
        assert!(super::page(&looked(), true).contains("\x1b[33mwarning"));
    }

    #[test]
    fn words_of_engines_are_not_obeyed() {
        let mut looked = looked();
        looked.plane = Some("http://a\u{1b}[2J".to_owned());
        looked.findings[0].subject = "a\u{1b}]0;owned\u{7}/0".to_owned();
        looked.findings[0].seen = "topic \u{9b}2J".to_owned();
        let page = page(&looked, false);
        assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
        assert!(page.contains("a\\u001b]0;owned\\u0007/0") && page.contains("topic \\u009b2J"), "{page}");
    }

    #[test]
    fn a_document_has_every_field() {
        let document = json(&looked());
        assert_eq!(document["summary"]["warnings"], 1);
        let finding = document["findings"][0].as_object().unwrap();
        let mut keys: Vec<&str> = finding.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["code", "seen", "severity", "subject", "todo", "why"]);
        assert_eq!((&finding["code"], &finding["severity"]), (&json!("silent"), &json!("warning")));
    }
}
