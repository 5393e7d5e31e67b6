//! Tables for people, and printing a whole page.

use std::io::Write as _;

use anyhow::Context as _;

use super::Failure;

/// Rows in columns, each as wide as its widest cell.
pub(crate) fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut page = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        page.push_str(cells.join("  ").trim_end());
        page.push('\n');
    }
    page
}

/// Prints to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        // Whoever read has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result.context("cannot print")?),
    }
}
