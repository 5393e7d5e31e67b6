//! Tables for people, and printing a whole page.

use std::io::Write as _;

use anyhow::Context as _;

use super::Failure;

/// Rows in columns, each as wide as its widest cell.
pub(crate) fn aligned(rows: &[impl AsRef<[String]>]) -> String {
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let cell_width = |row: &[String], column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let width = |column| rows.iter().map(|row| cell_width(row.as_ref(), column)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut page = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.as_ref().iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
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
