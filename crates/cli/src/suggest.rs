//! What somebody may have meant.

/// How alike two words must be, from 0 to 1, to be suggested.
const ALIKE: f64 = 0.75;

/// `, did you mean "…"?`, if one of the known words is nearly the given one; else nothing.
pub(crate) fn did_you_mean<'k>(given: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    let given = given.to_lowercase();
    let alike = known.into_iter().map(|word| (strsim::jaro_winkler(&given, &word.to_lowercase()), word));
    let best = alike.filter(|(alike, _)| *alike >= ALIKE).max_by(|(one, _), (two, _)| one.total_cmp(two));
    best.map(|(_, word)| format!(", did you mean {word:?}?")).unwrap_or_default()
}

/// The same for serde's sentence about an unknown field, which names the known ones in backticks.
pub(crate) fn with_suggestion(sentence: &str) -> String {
    let mut quoted = sentence.split('`').skip(1).step_by(2);
    let unknown = sentence.starts_with("unknown field") || sentence.starts_with("unknown variant");
    let (Some(given), true) = (quoted.next(), unknown) else { return sentence.to_owned() };
    format!("{sentence}{}", did_you_mean(given, quoted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_suggested_and_a_far_one_is_not() {
        assert_eq!(did_you_mean("htpp", ["grpc", "http"]), ", did you mean \"http\"?");
        assert_eq!(did_you_mean("banana", ["grpc", "http"]), "");
        let sentence = "unknown field `drain_timout`, expected one of `http`, `drain_timeout`";
        assert!(with_suggestion(sentence).ends_with(", did you mean \"drain_timeout\"?"));
        assert_eq!(with_suggestion("missing field `id`"), "missing field `id`");
    }
}
