//! What a value should have been, in words for people.

/// Names that serde and toml have for kinds of values, and ours.
const WORDS: [(&str, &str); 13] = [
    ("usize", "a whole number that is not negative"),
    ("u64", "a whole number that is not negative"),
    ("u32", "a whole number that is not negative"),
    ("u16", "a whole number from 0 to 65535"),
    ("i64", "a whole number"),
    ("i32", "a whole number"),
    ("f64", "a number"),
    ("a boolean", "true or false"),
    ("a string", "text"),
    ("path string", "a path"),
    ("a sequence", "a list"),
    ("a map", "an object with keys"),
    ("value", "a JSON value"),
];

/// A sentence of serde with what it expected in plain words: "expected usize" becomes "expected a whole
/// number …".
pub fn in_plain_words(sentence: &str) -> String {
    const EXPECTED: &str = "expected ";
    let sentence = sentence.replace('\n', " ");
    let Some((before, expected)) = sentence.rsplit_once(EXPECTED) else { return sentence };
    let (name, place) = expected.split_at(expected.find(" at line ").unwrap_or(expected.len()));
    let known = WORDS.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| *ours);
    let words = if name.starts_with("struct ") { "an object with keys" } else { known.unwrap_or(name) };
    format!("{before}{EXPECTED}{words}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences() {
        for (theirs, ours) in [
            (
                "invalid type: string \"many\", expected usize",
                "invalid type: string \"many\", expected a whole number that is not negative",
            ),
            (
                "invalid type: map, expected a sequence at line 1 column 3",
                "invalid type: map, expected a list at line 1 column 3",
            ),
            (
                "invalid type: string \"x\", expected struct EngineConfig",
                "invalid type: string \"x\", expected an object with keys",
            ),
            (
                "unknown field `htpp`, expected `http` or `grpc`",
                "unknown field `htpp`, expected `http` or `grpc`",
            ),
            ("missing field `id`", "missing field `id`"),
        ] {
            assert_eq!(in_plain_words(theirs), ours);
        }
    }
}
