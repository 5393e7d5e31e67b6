//! The same by a full parse of the whole body: what the scanner is compared with.

use serde_json::Value;

use super::{Format, MAX_USAGE, Scanner, Usage};

/// The usage of a document, by its tree. Of two keys of one name the scanner sees both, and a tree only the last.
fn of_document(document: &[u8]) -> Vec<Usage> {
    let Ok(json) = serde_json::from_slice::<Value>(document) else { return Vec::new() };
    let objects = [json.get("message"), json.get("response"), Some(&json)];
    let usages = objects.into_iter().flatten().filter_map(|object| object.get("usage"));
    let usages = usages.filter(|usage| usage.is_object());
    usages.filter_map(|usage| Usage::parse(&serde_json::to_vec(usage).ok()?)).collect()
}

/// Reads a body in pieces of any length, and compares with the whole: as JSON, or as events whose data is
/// JSON without new lines.
pub fn usage_of_pieces(events: bool, body: &[u8], cuts: &[usize]) {
    let format = if events { Format::Events } else { Format::Json };
    let mut scanner = Scanner::new(format);
    let mut from = 0;
    for cut in cuts {
        let to = (from + cut).min(body.len());
        scanner.feed(&body[from..to]);
        from = to;
    }
    scanner.feed(&body[from..]);
    let mut whole = Scanner::new(format);
    whole.feed(body);
    assert_eq!(scanner.usage(), whole.usage(), "pieces make a difference");
    if events || body.len() > MAX_USAGE {
        return;
    }
    // Keys twice in one object, and both an inner and an outer usage, are distinguished by order alone.
    let expected = of_document(body);
    if let [only] = expected[..]
        && memchr::memmem::find_iter(body, b"\"usage\"").count() == 1
    {
        assert_eq!(whole.usage(), only);
    }
}
