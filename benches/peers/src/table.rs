//! Results as Markdown: medians, their noise, and how kvplane compares.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::clock::quantile;
use crate::subjects::Column;

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
    /// There is nothing to compare.
    Neither,
}

/// Something that is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    pub(crate) title: &'static str,
    pub(crate) better: Better,
}

#[derive(Debug)]
enum Cell {
    Samples(Vec<f64>),
    Text(String),
}

#[derive(Debug)]
struct Row {
    measure: Measure,
    workload: String,
    cells: BTreeMap<Column, Cell>,
}

/// Columns of caches that are more than one tier and one group: what that costs is told beside.
const VARIANTS: [Column; 2] = [Column::KvplaneTiers, Column::KvplaneGroups];

/// All results of a run.
#[derive(Debug, Default)]
pub(crate) struct Results {
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Results {
    /// One more measurement for a cell.
    pub(crate) fn sample(&mut self, measure: Measure, workload: &str, column: Column, value: f64) {
        match self.row(measure, workload).cells.entry(column).or_insert_with(|| Cell::Samples(Vec::new())) {
            Cell::Samples(samples) => samples.push(value),
            Cell::Text(_) => {}
        }
    }

    /// A cell that is not a measurement.
    pub(crate) fn text(&mut self, measure: Measure, workload: &str, column: Column, text: String) {
        self.row(measure, workload).cells.insert(column, Cell::Text(text));
    }

    /// Something to know about a workload.
    pub(crate) fn note(&mut self, workload: &str, text: &str) {
        self.notes.push(format!("{workload}: {text}"));
    }

    fn row(&mut self, measure: Measure, workload: &str) -> &mut Row {
        let known =
            self.rows.iter().position(|row| row.measure.title == measure.title && row.workload == workload);
        let number = known.unwrap_or_else(|| {
            self.rows.push(Row { measure, workload: workload.to_owned(), cells: BTreeMap::new() });
            self.rows.len() - 1
        });
        &mut self.rows[number]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Notes, as a list.
    pub(crate) fn notes(&self) -> String {
        self.notes.iter().map(|note| format!("- {note}\n")).collect()
    }

    /// The table. Rows of the same measure stand together, in the order in which measures came up first.
    pub(crate) fn markdown(&self) -> String {
        let columns: Vec<Column> = Column::ALL
            .into_iter()
            .filter(|column| self.rows.iter().any(|row| row.cells.contains_key(column)))
            .collect();
        let mut table = String::from("| | workload |");
        for column in &columns {
            let _ = write!(table, " {} |", column.title());
        }
        let variants: Vec<Column> = VARIANTS.into_iter().filter(|column| columns.contains(column)).collect();
        table.push_str(" × ChainIndex | × CRTC |");
        for variant in &variants {
            let _ = write!(table, " {}, × the plain cost |", variant.title().trim_start_matches("… "));
        }
        table.push_str("\n|---|---|");
        table.push_str(&"---:|".repeat(columns.len() + 2 + variants.len()));
        table.push('\n');
        let mut measures: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !measures.contains(&row.measure.title) {
                measures.push(row.measure.title);
            }
        }
        for measure in measures {
            for row in self.rows.iter().filter(|row| row.measure.title == measure) {
                row.write(&columns, &variants, &mut table);
            }
        }
        table
    }
}

impl Row {
    fn write(&self, columns: &[Column], variants: &[Column], table: &mut String) {
        let _ = write!(table, "| {} | {} |", self.measure.title, self.workload);
        for column in columns {
            let text = self.cells.get(column).map_or_else(|| "–".to_owned(), Cell::show);
            let _ = write!(table, " {text} |");
        }
        // How much better than a peer, and how much worse than itself with nothing but one tier and one
        // group: the same ratio.
        for other in [Column::ChainIndex, Column::Crtc].iter().chain(variants) {
            let ratio =
                self.ratio(*other).map_or_else(|| "–".to_owned(), |ratio| format!("**{}**", digits(ratio)));
            let _ = write!(table, " {ratio} |");
        }
        table.push('\n');
    }

    /// How many times better kvplane is.
    fn ratio(&self, peer: Column) -> Option<f64> {
        let ours = self.cells.get(&Column::Kvplane)?.median()?;
        let theirs = self.cells.get(&peer)?.median()?;
        match self.measure.better {
            Better::Higher => Some(ours / theirs),
            Better::Lower => Some(theirs / ours),
            Better::Neither => None,
        }
    }
}

impl Cell {
    fn median(&self) -> Option<f64> {
        match self {
            Self::Samples(samples) => median(samples),
            Self::Text(_) => None,
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Samples(samples) => show(samples),
            Self::Text(text) => text.clone(),
        }
    }
}

pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    quantile(&mut samples.to_vec(), 0.5)
}

/// The median, and half the distance between the quartiles in percent of it.
pub(crate) fn show(samples: &[f64]) -> String {
    let at = |share| quantile(&mut samples.to_vec(), share).unwrap_or(f64::NAN);
    let middle = at(0.5);
    if samples.len() < 3 || middle == 0.0 {
        return digits(middle);
    }
    let noise = (at(0.75) - at(0.25)) / 2.0 / middle * 100.0;
    format!("{} ±{noise:.0}%", digits(middle))
}

/// Three digits that count.
pub(crate) fn digits(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        size if size >= 1.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: Measure = Measure { title: "speed", better: Better::Higher };
    const TIME: Measure = Measure { title: "time", better: Better::Lower };

    #[test]
    fn ratios_say_how_many_times_better() {
        let mut results = Results::default();
        for (measure, ours, theirs) in [(SPEED, 20.0, 10.0), (TIME, 0.5, 2.0)] {
            for _ in 0..3 {
                results.sample(measure, "w", Column::Kvplane, ours);
                results.sample(measure, "w", Column::ChainIndex, theirs);
            }
        }
        results.text(SPEED, "w", Column::RadixTree, "text".into());
        let table = results.markdown();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "| | workload | kvplane | ChainIndex | RadixTree | × ChainIndex | × CRTC |");
        assert_eq!(lines[2], "| speed | w | 20.0 ±0% | 10.0 ±0% | text | **2.00** | – |");
        assert_eq!(lines[3], "| time | w | 0.500 ±0% | 2.00 ±0% | – | **4.00** | – |");
    }
}
