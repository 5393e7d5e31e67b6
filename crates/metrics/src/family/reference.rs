//! The tables of docs/reference/metrics.md: made of the descriptions, between comments that name a section.
//! `make reference` writes them.

use std::collections::BTreeSet;

use super::Family;
use super::list::SECTIONS;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
const END: &str = "<!-- end -->";

fn begin(section: &str) -> String {
    format!("<!-- metrics: {section} -->")
}

fn row(family: &Family) -> String {
    let kind = family.kind.as_str();
    let ending = if kind == "counter" { "_total" } else { "" };
    let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
    format!("| `{}{ending}` | {kind} | {} | {} |\n", family.name, labels.join(", "), family.help)
}

fn table(families: &[Family]) -> String {
    let rows: String = families.iter().map(row).collect();
    format!("| metric | type | labels | |\n|---|---|---|---|\n{rows}")
}

/// The page with every section's table as it is to be.
fn written(page: &str) -> String {
    let mut page = page.to_owned();
    for (section, families) in SECTIONS {
        let begin = begin(section);
        let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("{begin} is not on the page"));
        let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("{begin} has no {END}"));
        page = format!("{before}{begin}\n{}{END}{after}", table(families));
    }
    page
}

#[test]
fn the_reference_says_what_the_descriptions_say() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let written = written(&page);
    if std::env::var_os("KVPLANE_WRITE_REFERENCE").is_some() {
        std::fs::write(PAGE, &written).unwrap();
    } else {
        assert!(page == written, "docs/reference/metrics.md is not up to date: run `make reference`");
    }
    let tables = page.matches("<!-- metrics: ").count();
    assert_eq!(tables, SECTIONS.len(), "the page has a table of a section that there is not");
}

#[test]
fn descriptions_can_be_written_as_they_are() {
    let families: Vec<&Family> = SECTIONS.iter().flat_map(|(_, families)| *families).collect();
    let names: BTreeSet<&str> = families.iter().map(|family| family.name).collect();
    assert_eq!(names.len(), families.len(), "a name is there twice");
    for Family { name, help, .. } in families {
        let known = ["kvplane_", "inferencecache_", "dynamo_kvindexer_"];
        assert!(known.iter().any(|prefix| name.starts_with(prefix)), "{name}");
        // Exposed as text and put into a table: nothing is escaped on the way.
        assert!(!help.contains(['\n', '\\', '"', '|', '<']), "{name}");
        assert!(!help.ends_with('.') && !help.is_empty(), "{name}");
    }
}
