//! How the cost of a lookup grows with engines and depth, from empty caches of the processor.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::broom::Broom;
use crate::measure::time_lookups;
use crate::subjects::{Column, Name};
use crate::table;
use crate::workload::{Depth, Shape, World};

/// Who is asked.
const COLUMNS: [Column; 3] = [Column::Kvplane, Column::KvplaneDense, Column::ChainIndex];

/// Fleets and depths.
#[derive(Debug)]
pub(crate) struct Scaling {
    /// Engines, and blocks in the cache of each.
    fleets: Vec<(usize, usize)>,
    /// Depths, and prompts of each.
    depths: Vec<(Depth, usize)>,
    rounds: usize,
}

/// Microseconds, by subject, depth and engines.
type Times = BTreeMap<(Column, usize, usize), Vec<f64>>;

impl Scaling {
    pub(crate) fn full() -> Self {
        let depth = |blocks, share, turns, prompts| (Depth { blocks, share, turns }, prompts);
        Self {
            fleets: vec![(8, 131_072), (64, 32_768), (512, 16_384), (2048, 16_384)],
            // The deeper, the fewer turns: all depths are to be reached while the caches fill up.
            depths: vec![
                depth(64, 0.5, 4, 4096),
                depth(512, 0.3, 4, 1024),
                depth(2048, 0.15, 3, 256),
                depth(8192, 0.05, 2, 64),
            ],
            rounds: 5,
        }
    }

    pub(crate) fn quick() -> Self {
        let depth = |blocks, share, turns, prompts| (Depth { blocks, share, turns }, prompts);
        Self {
            fleets: vec![(8, 8192), (64, 2048)],
            depths: vec![depth(64, 0.7, 4, 64), depth(512, 0.3, 2, 16)],
            rounds: 3,
        }
    }

    /// Measures, and returns the table.
    pub(crate) fn run(&self, subjects: &[Name], seed: u64) -> String {
        let mut times = Times::new();
        for &(engines, capacity) in &self.fleets {
            eprintln!("scaling: {engines} engines");
            self.measure(engines, capacity, subjects, seed, &mut times);
        }
        self.markdown(&times)
    }

    fn measure(&self, engines: usize, capacity: usize, subjects: &[Name], seed: u64, times: &mut Times) {
        let depths = self.depths.iter().map(|(depth, _)| *depth).collect();
        let mut world = World::of_conversations(&Shape { engines, capacity, depths }, seed);
        let slice = world.fill();
        let mut asked: Vec<_> = subjects.iter().filter_map(|name| name.make(engines)).collect();
        asked.retain(|subject| COLUMNS.contains(&subject.columns()[0]));
        for subject in &mut asked {
            subject.stage(&slice, &world.blocks);
            subject.apply(0..slice.events.len());
            subject.drain();
            subject.unstage();
        }
        let mut broom = Broom::default();
        for (depth, count) in &self.depths {
            let prompts = world.cached_prompts(depth.blocks, *count);
            if prompts.is_empty() {
                continue;
            }
            let contents: Vec<_> = prompts.iter().map(|prompt| world.blocks.contents(prompt)).collect();
            for _ in 0..self.rounds {
                for column in COLUMNS {
                    let subject = asked.iter().find(|subject| subject.columns().contains(&column));
                    let Some(subject) = subject else { continue };
                    let mut reader = subject.reader(column);
                    broom.sweep();
                    let time = time_lookups(&mut *reader, &contents);
                    times.entry((column, depth.blocks, engines)).or_default().push(time);
                }
            }
        }
    }

    fn markdown(&self, times: &Times) -> String {
        let mut text = String::from("| us a lookup | depth |");
        for (engines, capacity) in &self.fleets {
            let _ = write!(text, " {engines} engines × {capacity} |");
        }
        text.push_str("\n|---|---:|");
        text.push_str(&"---:|".repeat(self.fleets.len()));
        text.push('\n');
        for column in COLUMNS {
            for (depth, _) in &self.depths {
                let _ = write!(text, "| {} | {} |", column.title(), depth.blocks);
                for (engines, _) in &self.fleets {
                    let times = times.get(&(column, depth.blocks, *engines));
                    let shown = times.map_or_else(|| "–".to_owned(), |times| table::show(times));
                    let _ = write!(text, " {shown} |");
                }
                text.push('\n');
            }
        }
        text
    }
}
