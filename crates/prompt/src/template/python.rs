//! What Python and transformers give to templates: functions, filters, and methods of strings.

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use crate::json::{python_float, write_string};

/// Marks an error of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("the template refuses the request")]
struct Refusal(String);

/// Adds what Jinja in Python has.
pub(super) fn extend(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.add_function("raise_exception", |words: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Refusal(words.to_string())))
    });
    environment.add_function("dict", dict);
    environment.add_filter("tojson", tojson);
    environment.add_filter("trim", |value: Value, chars: Option<Value>| {
        let text = value.to_string();
        let chars =
            chars.filter(|chars| !chars.is_none() && !chars.is_undefined()).map(|chars| chars.to_string());
        strip_by(&text, chars.as_deref(), true, true).to_owned()
    });
    // None is not iterable in Python; a string and a mapping are.
    environment.add_test("iterable", |value: &Value| match value.kind() {
        ValueKind::None => false,
        _ => value.try_iter().is_ok(),
    });
}

/// What the template said when it refused the request.
pub(super) fn refusal(error: &Error) -> Option<String> {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Refusal(words)) = cause.downcast_ref() {
            return Some(words.clone());
        }
        source = cause.source();
    }
    None
}

/// `dict(pairs, **more)`.
#[allow(clippy::needless_pass_by_value, reason = "templates call it")]
fn dict(given: Rest<Value>, more: Kwargs) -> Result<Value, Error> {
    let wrong = || Error::new(ErrorKind::InvalidOperation, "dict takes a mapping or pairs");
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    if let Some(given) = given.first() {
        for item in given.try_iter()? {
            if given.kind() == ValueKind::Map {
                let value = given.get_item(&item)?;
                pairs.push((item, value));
            } else {
                let mut pair = item.try_iter()?;
                match (pair.next(), pair.next(), pair.next()) {
                    (Some(key), Some(value), None) => pairs.push((key, value)),
                    _ => return Err(wrong()),
                }
            }
        }
    }
    for name in more.args().collect::<Vec<_>>() {
        pairs.push((Value::from(name), more.peek(name)?));
    }
    Ok(Value::from_pairs(pairs))
}

// === json.dumps ===

struct Dumps {
    ensure_ascii: bool,
    /// What one level is indented by.
    indent: Option<String>,
    sort_keys: bool,
    item: String,
    key: String,
}

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, without Jinja's
/// escapes for HTML.
#[allow(clippy::needless_pass_by_value, reason = "templates call it")]
fn tojson(value: &Value, given: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    const NAMES: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let mut options: [Option<Value>; NAMES.len()] = Default::default();
    if given.len() > NAMES.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    for (at, name) in NAMES.into_iter().enumerate() {
        let value: Option<Value> =
            if named.has(name) { Some(named.get(name)?) } else { given.get(at).cloned() };
        options[at] = value.filter(|value| !value.is_none() && !value.is_undefined());
    }
    named.assert_all_used()?;
    let [ensure_ascii, indent, separators, sort_keys] = options;
    let indent = indent.map(|indent| match indent.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(indent.as_usize().unwrap_or(0).min(64)),
    });
    let (item, key) = match separators {
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let truth = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let dumps = Dumps { ensure_ascii: truth(ensure_ascii), indent, sort_keys: truth(sort_keys), item, key };
    let mut out = String::new();
    dumps.write(value, 0, &mut out)?;
    Ok(out)
}

impl Dumps {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        let impossible = || Error::new(ErrorKind::BadSerialization, "a value that is no JSON");
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&python_float(f64::try_from(value.clone())?)),
            ValueKind::String => {
                write_string(value.as_str().ok_or_else(impossible)?, self.ensure_ascii, out);
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list(('[', ']'), items.len(), depth, out, |at, out| {
                    self.write(&items[at], depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list(('{', '}'), keys.len(), depth, out, |at, out| {
                    self.write_key(&keys[at], out)?;
                    out.push_str(&self.key);
                    self.write(&value.get_item(&keys[at])?, depth + 1, out)
                })?;
            }
            _ => return Err(impossible()),
        }
        Ok(())
    }

    /// Keys that are no text are written as such.
    fn write_key(&self, key: &Value, out: &mut String) -> Result<(), Error> {
        if let Some(text) = key.as_str() {
            write_string(text, self.ensure_ascii, out);
            return Ok(());
        }
        out.push('"');
        self.write(key, 0, out)?;
        out.push('"');
        Ok(())
    }

    fn list(
        &self,
        (open, close): (char, char),
        items: usize,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        for at in 0..items {
            if at > 0 {
                out.push_str(&self.item);
            }
            line(depth + 1, out);
            write(at, out)?;
        }
        if items > 0 {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }
}

// === methods of strings ===

/// Python's white space: Unicode's, and four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `text.strip()`.
pub(super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `text.rstrip()`.
pub(super) fn strip_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

fn strip_by<'t>(mut text: &'t str, chars: Option<&str>, start: bool, end: bool) -> &'t str {
    let matches = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    if start {
        text = text.trim_start_matches(matches);
    }
    if end {
        text = text.trim_end_matches(matches);
    }
    text
}

fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, name, args);
    };
    let stripped = |start, end| {
        let (chars,): (Option<&Value>,) = from_args(args)?;
        let chars = chars.filter(|chars| !chars.is_none()).and_then(Value::as_str);
        Ok(Value::from(strip_by(text, chars, start, end)))
    };
    match name {
        "strip" => stripped(true, true),
        "lstrip" => stripped(true, false),
        "rstrip" => stripped(false, true),
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "isspace" => Ok(Value::from(!text.is_empty() && text.chars().all(is_space))),
        "split" | "rsplit" => split(text, name == "rsplit", args),
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts =
                text.split_once(separator).map_or([text, "", ""], |(head, tail)| [head, separator, tail]);
            Ok(parts.into_iter().map(Value::from).collect())
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts =
                text.rsplit_once(separator).map_or(["", "", text], |(head, tail)| [head, separator, tail]);
            Ok(parts.into_iter().map(Value::from).collect())
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            Ok(lines(text, keep.unwrap_or(false)).into_iter().map(Value::from).collect())
        }
        _ => unknown_method_callback(state, value, name, args),
    }
}

/// `text.split(separator, most)` and `rsplit`.
fn split(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (args, named) = from_args::<(Rest<Value>, Kwargs)>(args)?;
    let option = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = if named.has(name) { Some(named.get(name)?) } else { args.get(at).cloned() };
        Ok(value.filter(|value: &Value| !value.is_none() && !value.is_undefined()))
    };
    let (separator, most) = (option(0, "sep")?, option(1, "maxsplit")?);
    named.assert_all_used()?;
    let most = most.and_then(|most| most.as_i64()).and_then(|most| usize::try_from(most).ok());
    let limit = most.map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<&str> = match separator.as_ref().map(Value::as_str) {
        Some(Some("") | None) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "split takes a separator that is not empty"));
        }
        Some(Some(separator)) if from_end => text.rsplitn(limit, separator).collect(),
        Some(Some(separator)) => text.splitn(limit, separator).collect(),
        None => words(text, most, from_end),
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Words between white space; the rest after `most` splits is kept whole. From the end: the last word first.
fn words(text: &str, most: Option<usize>, from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip(text);
    while !rest.is_empty() {
        let at = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = at.filter(|_| most.is_none_or(|most| parts.len() < most)) else {
            parts.push(rest);
            break;
        };
        let space = rest[at..].chars().next().map_or(1, char::len_utf8);
        let (head, tail) = (&rest[..at], &rest[at + space..]);
        let (word, left) = if from_end {
            (tail, head.trim_end_matches(is_space))
        } else {
            (head, tail.trim_start_matches(is_space))
        };
        parts.push(word);
        rest = left;
    }
    parts
}

/// `text.splitlines(keep)`: at every line end that Unicode knows.
fn lines(text: &str, keep: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let mut end = at + rest[at..].chars().next().map_or(1, char::len_utf8);
        if rest[at..].starts_with("\r\n") {
            end = at + 2;
        }
        lines.push(&rest[..if keep { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}
