//! What streams and their blocks take, in the process's own memory: idle streams, and blocks with different
//! windows.
//!
//! `cargo run --release -p kvplane-ingest --example memory_bench streams [STREAMS]`
//! `cargo run --release -p kvplane-ingest --example memory_bench blocks [ENGINES] [BLOCKS] [WINDOW] [keep|drop]`
//!
//! One measurement a process: memory that was given back is used again. Without huge pages, as `kvplane
//! serve` is.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "../tests/support/fill.rs"]
mod fill;

use kvplane_catalog::Catalog;
use kvplane_ingest::Stream;
use kvplane_stream::{JournalOptions, Recorder, State};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u64| words.get(at).map_or(usual, |word| word.parse().unwrap());
    if words.first().is_some_and(|word| word == "blocks") {
        let window = number(3, JournalOptions::default().max_batches as u64);
        let keep = words.get(4).is_none_or(|word| word != "drop");
        let fill::Taken { process, state, window: kept, index } =
            fill::fill(number(1, 16), number(2, 62_500), window as usize, keep);
        println!("| window | bytes a block | counted: state | window | index |");
        println!("|---|---|---|---|---|");
        println!("| {window} batches | {process:.0} | {state:.0} | {kept:.0} | {index:.0} |");
    } else {
        measure_streams(number(1, 5_000));
    }
}

fn measure_streams(streams: u64) {
    println!(
        "a Stream is {} bytes, of which its Recorder {} and its State {}",
        size_of::<Stream>(),
        size_of::<Recorder>(),
        size_of::<State>()
    );
    let catalog = Catalog::new(kvplane_index::Options::default());
    let before = fill::resident();
    let idle: Vec<_> =
        (0..streams).map(|number| fill::stream(&catalog, number, JournalOptions::default())).collect();
    let made = fill::resident();
    for (number, stream) in (0..).zip(&idle) {
        fill::feed(stream, 0, fill::batch(number << 32, None, 1));
    }
    let heard = fill::resident();
    let each = |bytes: u64| bytes as f64 / streams as f64 / 1024.0;
    println!("{streams} streams: {:.1} KiB each", each(made - before));
    println!("with a batch of one block: {:.1} KiB each", each(heard - before));
}
