//! Puts one model's name in the place of another's, in bodies that pass.

use bytes::{Bytes, BytesMut};

use super::{Format, Mark, Scanner};

/// Bytes of a name that are held back while it may be the one; a longer name passes as it is.
const MAX_NAME: usize = 4 << 10;

/// Changes the name in an answer. Of a body only a name is held back, until it has ended.
#[derive(Debug)]
pub struct Rename {
    scanner: Scanner,
    /// What is changed; absent: any name.
    from: Option<String>,
    /// What it becomes, as JSON.
    to: Bytes,
    /// Only the document's own, and only once.
    outer_once: bool,
    held: BytesMut,
    holding: bool,
    done: bool,
}

impl Rename {
    /// For an answer of this format. It reports its usage, too: see [`scanner`](Self::scanner).
    pub fn new(format: Format, from: &str, to: &str) -> Self {
        Self {
            scanner: Scanner::with_marks(format),
            from: Some(from.to_owned()),
            to: json(to),
            outer_once: false,
            held: BytesMut::new(),
            holding: false,
            done: false,
        }
    }

    /// What has read the body so far.
    pub fn scanner(&self) -> &Scanner {
        &self.scanner
    }

    /// What of the body is to be passed on now. What is not changed is shared, not copied.
    pub fn pass(&mut self, piece: &Bytes, out: &mut Vec<Bytes>) {
        if self.done {
            return out.push(piece.clone());
        }
        self.scanner.feed(piece);
        let mut from = 0;
        for mark in self.scanner.take_marks() {
            match mark {
                Mark::Begins { at, outer } if outer || !self.outer_once => {
                    self.give_up(out);
                    push(out, piece.slice(from..at));
                    from = at;
                    self.holding = true;
                }
                Mark::Ends { at } if self.holding && !self.done => {
                    self.held.extend_from_slice(&piece[from..at]);
                    from = at;
                    self.holding = false;
                    self.done = self.outer_once;
                    let name = self.held.split().freeze();
                    out.push(if self.is_meant(&name) { self.to.clone() } else { name });
                }
                Mark::Cut => self.give_up(out),
                Mark::Begins { .. } | Mark::Ends { .. } => {}
            }
            if self.done {
                break;
            }
        }
        let rest = piece.slice(from..);
        if self.holding && self.held.len() + rest.len() <= MAX_NAME {
            self.held.extend_from_slice(&rest);
        } else {
            self.give_up(out);
            push(out, rest);
        }
    }

    /// The end of the body: what is held back.
    pub fn finish(&mut self, out: &mut Vec<Bytes>) {
        self.give_up(out);
    }

    fn give_up(&mut self, out: &mut Vec<Bytes>) {
        self.holding = false;
        push(out, self.held.split().freeze());
    }

    fn is_meant(&self, name: &[u8]) -> bool {
        let Some(from) = &self.from else { return true };
        serde_json::from_slice::<String>(name).is_ok_and(|name| name == *from)
    }
}

fn push(out: &mut Vec<Bytes>, bytes: Bytes) {
    if !bytes.is_empty() {
        out.push(bytes);
    }
}

fn json(name: &str) -> Bytes {
    Bytes::from(serde_json::Value::from(name).to_string())
}

/// A request's body that asks for another model. All but the name is shared, not copied.
pub fn rename_model(body: Vec<Bytes>, to: &str) -> Vec<Bytes> {
    let mut rename = Rename { from: None, outer_once: true, ..Rename::new(Format::Json, "", to) };
    let mut out = Vec::with_capacity(body.len() + 2);
    for piece in body {
        rename.pass(&piece, &mut out);
    }
    rename.finish(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn renamed(format: Format, body: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut rename = Rename::new(format, "tuned", "asked \"for\"");
        let (mut out, mut rest) = (Vec::new(), Bytes::copy_from_slice(body));
        for cut in cuts {
            rename.pass(&rest.split_to((*cut).min(rest.len())), &mut out);
            assert!(rename.held.len() <= MAX_NAME);
        }
        rename.pass(&rest, &mut out);
        rename.finish(&mut out);
        out.concat()
    }

    #[test]
    fn names_of_answers_and_nothing_else() {
        let body = json!({
            "id": "tuned", "model": "tuned", "choices": [{"model": "tuned", "text": "\"model\":\"tuned\""}],
            "message": {"model": "tuned", "x": {"model": "tuned"}}, "response": {"model": "other"},
        });
        let got: Value =
            serde_json::from_slice(&renamed(Format::Json, body.to_string().as_bytes(), &[])).unwrap();
        let expected = json!({
            "id": "tuned", "model": "asked \"for\"", "choices": [{"model": "tuned", "text": "\"model\":\"tuned\""}],
            "message": {"model": "asked \"for\"", "x": {"model": "tuned"}}, "response": {"model": "other"},
        });
        assert_eq!(got, expected);
        let escaped = br#"{"model" : "t\u0075ned"}"#;
        assert_eq!(renamed(Format::Json, escaped, &[5, 8]), br#"{"model" : "asked \"for\""}"#);
        let events = b"data: {\"model\":\"tuned\",\"choices\":[]}\n\ndata: {\"model\":\"tun\n\ndata: {\"model\":\"tuned\"}\n\ndata: [DONE]\n\n";
        let expected = "data: {\"model\":\"asked \\\"for\\\"\",\"choices\":[]}\n\ndata: {\"model\":\"tun\n\ndata: {\"model\":\"asked \\\"for\\\"\"}\n\ndata: [DONE]\n\n";
        for cut in 0..events.len() {
            assert_eq!(renamed(Format::Events, events, &[cut]), expected.as_bytes(), "{cut}");
        }
    }

    #[test]
    fn names_that_are_too_long_pass() {
        let body = json!({"model": "x".repeat(2 * MAX_NAME), "usage": {"prompt_tokens": 1}}).to_string();
        let cuts = vec![1_000; 20];
        assert_eq!(renamed(Format::Json, body.as_bytes(), &cuts), body.as_bytes());
    }

    #[test]
    fn requests_ask_for_another_model() {
        let body = r#"{"response":{"model":"x"},"messages":[{"model":"y"}],"model" :"a\"b","n":{"model":1}}"#;
        for cut in 0..body.len() {
            let pieces = [&body[..cut], &body[cut..]].map(|part| Bytes::copy_from_slice(part.as_bytes()));
            let out = rename_model(pieces.to_vec(), "t").concat();
            let text = String::from_utf8(out).unwrap();
            assert_eq!(
                text,
                r#"{"response":{"model":"x"},"messages":[{"model":"y"}],"model" :"t","n":{"model":1}}"#
            );
        }
    }

    /// By its tree: what the streamed form is compared with.
    fn by_tree(value: &mut Value) {
        let change = |one: &mut Value| {
            if let Some(model) = one.get_mut("model").filter(|model| *model == "tuned") {
                *model = "asked \"for\"".into();
            }
        };
        change(value);
        for key in ["message", "response"] {
            if let Some(inner) = value.get_mut(key).filter(|inner| inner.is_object()) {
                change(inner);
            }
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            3 => prop_oneof![Just("tuned"), Just("other"), Just("\"model\":\"tuned\"")].prop_map(Value::from),
            1 => any::<i32>().prop_map(Value::from),
            1 => Just(Value::Null),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let key = prop_oneof![Just("model"), Just("message"), Just("response"), Just("a"), Just("mod\"el")];
            prop_oneof![
                1 => vec(inner.clone(), 0..4).prop_map(Value::from),
                3 => vec((key, inner), 0..4).prop_map(|pairs| pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_document_in_any_pieces(value in value(), cuts in vec(0usize..9, 0..30), pretty in any::<bool>()) {
            prop_assume!(value.is_object());
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let mut expected = value;
            by_tree(&mut expected);
            let got: Value = serde_json::from_slice(&renamed(Format::Json, text.as_bytes(), &cuts)).unwrap();
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn any_bytes_without_the_name_pass(body in vec(prop_oneof![Just(b'"'), Just(b'\\'), Just(b'{'), Just(b'\n'), any::<u8>()], 0..200), cuts in vec(0usize..9, 0..30), events in any::<bool>()) {
            let format = if events { Format::Events } else { Format::Json };
            prop_assert_eq!(renamed(format, &body, &cuts), body);
        }
    }
}
