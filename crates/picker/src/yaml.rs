//! YAML as a JSON value: what files of llm-d's router need of it, and no aliases, which can make little text large.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// Bytes of a file.
pub(crate) const MAX_TEXT: usize = 4 << 20;
/// Values within one another.
const MAX_DEPTH: usize = 64;

/// A container that is not complete.
enum Open {
    List(Vec<Value>),
    /// Its entries, and the key of the next one.
    Object(Map<String, Value>, Option<String>),
}

/// Reads the first document of a text.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    if text.len() > MAX_TEXT {
        return Err(format!("has more than {MAX_TEXT} bytes"));
    }
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| format!("line {}: {}", error.marker().line(), error.info()))?;
        let line = span.start.line();
        let value = match event {
            Event::Scalar(text, style, ..) => Some(scalar(&text, style)),
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                None
            }
            Event::MappingStart(..) => {
                open.push(Open::Object(Map::new(), None));
                None
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(|complete| match complete {
                Open::List(items) => Value::Array(items),
                Open::Object(entries, _) => Value::Object(entries),
            }),
            Event::Alias(_) => {
                return Err(format!("line {line}: aliases are not supported: write the value out"));
            }
            Event::DocumentEnd => break,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) => None,
        };
        if open.len() > MAX_DEPTH {
            return Err(format!("line {line}: more than {MAX_DEPTH} values within one another"));
        }
        let Some(value) = value else { continue };
        match open.last_mut() {
            None => return Ok(value),
            Some(Open::List(items)) => items.push(value),
            Some(Open::Object(entries, key)) => match (key.take(), value) {
                (Some(key), value) => {
                    entries.insert(key, value);
                }
                (None, Value::String(name)) => *key = Some(name),
                (None, name @ (Value::Number(_) | Value::Bool(_))) => *key = Some(name.to_string()),
                (None, _) => return Err(format!("line {line}: a key is not text")),
            },
        }
    }
    Ok(Value::Null)
}

/// A plain scalar is a number, true, false or null where it looks like one (YAML 1.2).
fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return text.into();
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        _ => match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(number), _) => number.into(),
            (_, Ok(number))
                if number.is_finite()
                    && text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) =>
            {
                number.into()
            }
            _ => text.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_every_kind() {
        let text = "# comment\na: 1\nb:\n- x: y\n  'q': \"5\"\n- [1.5, true, ~, -3]\nc: {d: 10.0.0.1, e: inf, 7: z}\nf: |\n  two\n  lines\n";
        assert_eq!(
            parse(text).unwrap(),
            json!({
                "a": 1, "b": [{"x": "y", "q": "5"}, [1.5, true, null, -3]], "c": {"d": "10.0.0.1", "e": "inf", "7": "z"},
                "f": "two\nlines\n",
            })
        );
        assert_eq!(parse("").unwrap(), Value::Null);
        assert_eq!(parse("{\"json\": [1, {\"too\": null}]}").unwrap(), json!({"json": [1, {"too": null}]}));
    }

    #[test]
    fn what_is_not_taken_is_named_with_its_line() {
        for (text, part) in [
            ("a: &x 1\nb: *x\n", "line 2: aliases"),
            ("a: [1\n", "line"),
            ("? [1]\n: 2\n", "a key is not text"),
            (&"[".repeat(100), "within one another"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(parse(&" ".repeat(MAX_TEXT + 1)).is_err());
    }
}
