//! What the guide says that a block takes is what it takes. Alone in its file: it measures this process's
//! memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/fill.rs"]
mod fill;

use fill::{Taken, fill};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The figures of the first row of the guide that begins like this.
fn row(guide: &str, begins: &str) -> Vec<f64> {
    let row =
        guide.lines().find(|line| line.starts_with(begins)).unwrap_or_else(|| panic!("no row {begins:?}"));
    let cells = row[begins.len()..].split('|').map(str::trim);
    cells.filter_map(|cell| cell.parse().ok()).collect()
}

#[test]
fn a_block_takes_what_the_guide_says() {
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/size.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let said = row(&guide, "| 10,000 batches |");
    let Taken { process, state, window, index } = fill(16, 62_500, 10_000, true);
    let found = [process, state, window, index];
    println!("the process {process:.0}, the state {state:.0}, the window {window:.0}, the index {index:.0}");
    assert_eq!(said.len(), found.len(), "{said:?}");
    for (said, found) in said.into_iter().zip(found) {
        let share = found / said;
        assert!((0.85..1.15).contains(&share), "{found:.0} bytes a block, and the guide says {said}");
    }
}
