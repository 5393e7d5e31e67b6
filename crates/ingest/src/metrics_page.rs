//! Pages of metrics, as Prometheus reads them.

/// One number of a page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<'p> {
    /// The metric.
    pub name: &'p str,
    /// The line, for its labels.
    line: &'p str,
    /// The number.
    pub value: f64,
}

impl<'p> Sample<'p> {
    /// The value of a label, escapes as they are.
    pub fn label(&self, name: &str) -> Option<&'p str> {
        label(self.line, name)
    }
}

/// Every number of a page. What cannot be read is passed over.
pub fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let name_ends = line.find(['{', ' '])?;
        // Values of labels may hold anything but a bare quote; the last one ends at the last brace.
        let rest = line.rfind('}').map_or(&line[name_ends..], |at| &line[at + 1..]);
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Sample { name: &line[..name_ends], line, value })
    })
}

/// The value of a label in a line.
pub(crate) fn label<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let mut rest = line;
    while let Some(at) = rest.find(name) {
        let (before, after) = rest.split_at(at);
        let after = &after[name.len()..];
        if before.ends_with(['{', ','])
            && let Some(value) = after.strip_prefix("=\"")
        {
            return value.split('"').next();
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_and_without_labels() {
        let page =
            "# HELP a b\na 1\nb{x=\"1\",model_name=\"m}n\"} 2.5e1 1700000000\nc{} NaN\nd{\nbroken\ne x\n";
        let found: Vec<_> = samples(page).collect();
        assert_eq!(found.iter().map(|sample| sample.name).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!((found[0].value - 1.0).abs() < f64::EPSILON && (found[1].value - 25.0).abs() < f64::EPSILON);
        assert_eq!((found[1].label("model_name"), found[1].label("name")), (Some("m}n"), None));
        assert!(found[2].value.is_nan());
    }
}
