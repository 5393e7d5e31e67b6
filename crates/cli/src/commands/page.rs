//! Tables for people, and printing a whole page.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Context as _;

use super::Failure;

/// Text without anything that a terminal would obey. What engines and planes call themselves is theirs to
/// choose, and must not move the cursor, retitle the window or forge a line.
///
/// A control character becomes what JSON writes for it, so that a document stays one. Marks that turn the
/// direction of text count as such.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// The same for a page: its lines end where they ended.
fn harmless_page(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let harms = |c: char| (c.is_control() || turns(c)) && !keep(c);
    if !text.chars().any(harms) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if harms(c) {
            // Writing to a string cannot fail.
            let _ = write!(clean, "\\u{:04x}", c as u32);
        } else {
            clean.push(c);
        }
    }
    Cow::Owned(clean)
}

/// Rows in columns, each as wide as its widest cell. Cells are made harmless.
pub(crate) fn aligned(rows: &[impl AsRef<[String]>]) -> String {
    let rows: Vec<Vec<Cow<'_, str>>> =
        rows.iter().map(|row| row.as_ref().iter().map(|cell| harmless(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell_width =
        |row: &Vec<Cow<'_, str>>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let width = |column| rows.iter().map(|row| cell_width(row, column)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut page = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        page.push_str(cells.join("  ").trim_end());
        page.push('\n');
    }
    page
}

/// Prints a page to standard output, made harmless.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_as_it_is(&harmless_page(text))
}

/// Prints a page whose colours are ours, and whose words were made harmless before.
pub(crate) fn print_as_it_is(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe: not an error.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result.context("cannot print")?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_printed() {
        assert!(matches!(harmless("llama 3 äöü 模型"), Cow::Borrowed(_)));
        let title = "\u{1b}]0;owned\u{7}";
        assert_eq!(harmless(title), "\\u001b]0;owned\\u0007");
        assert_eq!(harmless("a\r\nb\u{9b}2J\u{7f}\u{202e}"), "a\\u000d\\u000ab\\u009b2J\\u007f\\u202e");
        // A document is the same document.
        let document = serde_json::json!({ "model": "a\u{9b}2J\u{7f}\u{1b}[2J" });
        let printed = harmless_page(&format!("{document}\n")).into_owned();
        assert!(printed.ends_with('\n') && !printed.trim_end().chars().any(char::is_control), "{printed:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).unwrap(), document);
    }

    #[test]
    fn a_cell_is_one_cell() {
        let row = |model: &str| ["a".to_owned(), model.to_owned(), "z".to_owned()];
        let page = aligned(&[row("MODEL"), row("\u{1b}[2J\nforged")]);
        assert_eq!(page, "a  MODEL                  z\na  \\u001b[2J\\u000aforged  z\n");
    }
}
