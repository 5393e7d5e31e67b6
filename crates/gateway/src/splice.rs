//! Changes of a body: bytes are put in or replaced, and the rest is shared, not copied or written anew.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use crate::call::{Places, UsageAsked};

/// A body in pieces, as it is sent.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pieces(Vec<Bytes>);

impl Pieces {
    pub(crate) fn whole(body: Bytes) -> Self {
        Self(if body.is_empty() { Vec::new() } else { vec![body] })
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    pub(crate) fn into_inner(self) -> Vec<Bytes> {
        self.0
    }
}

/// Where two engines meet: at the one that prefills, under a number of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Meeting {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) room: u64,
}

/// Changes that do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Splice {
    changes: Vec<(Range<usize>, String)>,
}

impl Splice {
    fn replace(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.changes.push((range, text.into()));
    }

    /// Puts a field in front of the others. There is one at least: the model.
    fn field(&mut self, places: &Places, name: &str, value: &str) {
        self.replace(places.inside..places.inside, format!("\"{name}\":{value},"));
    }

    /// The engine tells the usage of a streamed answer. `false`: it would anyway, and the client knows.
    pub(crate) fn include_usage(&mut self, places: &Places) -> bool {
        match &places.usage {
            UsageAsked::Anyway | UsageAsked::Yes => return false,
            UsageAsked::NoOptions => self.field(places, "stream_options", r#"{"include_usage":true}"#),
            UsageAsked::Null(here) => self.replace(here.clone(), r#"{"include_usage":true}"#),
            UsageAsked::No(here) => self.replace(here.clone(), "true"),
            UsageAsked::Without(at, empty) => {
                self.replace(
                    *at..*at,
                    if *empty { r#""include_usage":true"# } else { r#""include_usage":true,"# },
                );
            }
        }
        true
    }

    /// The blocks of the prompt get this salt.
    pub(crate) fn salt(&mut self, places: &Places, salt: &str) {
        let value = serde_json::Value::from(salt).to_string();
        match &places.cache_salt {
            Some(here) => self.replace(here.clone(), value),
            None => self.field(places, "cache_salt", &value),
        }
    }

    /// The engine takes these ids and tokenizes nothing. `false`: it has no way to.
    pub(crate) fn ids(&mut self, places: &Places, chat: bool, kind: &str, ids: &[u32]) -> bool {
        let list = list(ids);
        match (chat, kind, &places.prompt) {
            (true, "vllm", _) if places.transfer.is_none() => {
                self.field(places, "kv_transfer_params", &format!("{{\"prompt_token_ids\":{list}}}"));
            }
            (true, "sglang", _) => self.field(places, "input_ids", &list),
            (false, "vllm" | "sglang", Some(here)) => self.replace(here.clone(), list),
            _ => return false,
        }
        true
    }

    /// Nothing is generated but what an engine that prefills has to: one token, in one piece.
    pub(crate) fn prefill(&mut self, places: &Places) {
        if let Some(stream) = &places.stream {
            self.replace(stream.clone(), "false");
        }
        if let Some(options) = &places.stream_options {
            self.replace(options.clone(), "null");
        }
        for length in &places.lengths {
            self.replace(length.clone(), "1");
        }
        if places.lengths.is_empty() {
            self.field(places, "max_tokens", "1");
        }
    }

    /// What engines tell one another about blocks: an object, and in front of its fields the ids, where they
    /// are sent so.
    pub(crate) fn transfer(&mut self, places: &Places, object: &str, ids: Option<&[u32]>) {
        let rest = object.trim().strip_prefix('{').unwrap_or("}").trim_start();
        let value = match ids {
            Some(ids) if rest == "}" => format!("{{\"prompt_token_ids\":{}}}", list(ids)),
            Some(ids) => format!("{{\"prompt_token_ids\":{},{rest}", list(ids)),
            None => format!("{{{rest}"),
        };
        self.field(places, "kv_transfer_params", &value);
    }

    /// Where two of `SGLang`'s engines meet for this request.
    pub(crate) fn bootstrap(&mut self, places: &Places, meeting: &Meeting) {
        let host = serde_json::Value::from(&*meeting.host).to_string();
        self.field(places, "bootstrap_host", &host);
        self.field(places, "bootstrap_port", &meeting.port.to_string());
        self.field(places, "bootstrap_room", &meeting.room.to_string());
    }

    /// The body with the changes.
    pub(crate) fn apply(mut self, body: &Bytes) -> Pieces {
        if self.changes.is_empty() {
            return Pieces::whole(body.clone());
        }
        // What is put in at one place comes in the order in which it was named.
        self.changes.sort_by_key(|(range, _)| range.start);
        let mut pieces = Vec::with_capacity(2 * self.changes.len() + 1);
        let mut from = 0;
        for (range, text) in self.changes {
            if from < range.start {
                pieces.push(body.slice(from..range.start));
            }
            pieces.push(Bytes::from(text));
            from = range.end;
        }
        if from < body.len() {
            pieces.push(body.slice(from..));
        }
        Pieces(join_small(pieces))
    }
}

/// Pieces that are short are put together: writing many costs more than copying them.
fn join_small(pieces: Vec<Bytes>) -> Vec<Bytes> {
    const SMALL: usize = 8 << 10;
    let total: usize = pieces.iter().map(Bytes::len).sum();
    if pieces.len() < 2 || total > SMALL {
        return pieces;
    }
    let mut whole = BytesMut::with_capacity(total);
    for piece in &pieces {
        whole.extend_from_slice(piece);
    }
    vec![whole.freeze()]
}

fn list(ids: &[u32]) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(6 * ids.len() + 2);
    out.push('[');
    for (at, id) in ids.iter().enumerate() {
        // Writing into a string does not fail.
        let _ = if at == 0 { write!(out, "{id}") } else { write!(out, ",{id}") };
    }
    out.push(']');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::api::Api;
    use crate::call::read;

    fn changed(body: &Value, change: impl FnOnce(&mut Splice, &Places)) -> Value {
        let body = Bytes::from(body.to_string());
        let places = read(Api::Chat, &body).unwrap().places.unwrap();
        let mut splice = Splice::default();
        change(&mut splice, &places);
        serde_json::from_slice(&splice.apply(&body).0.concat()).unwrap()
    }

    #[test]
    fn the_usage_is_asked_for_in_every_shape() {
        for (options, expected) in [
            (None, json!({"include_usage": true})),
            (Some(json!(null)), json!({"include_usage": true})),
            (Some(json!({})), json!({"include_usage": true})),
            (Some(json!({"include_usage": false, "x": 1})), json!({"include_usage": true, "x": 1})),
            (Some(json!({"x": [1]})), json!({"include_usage": true, "x": [1]})),
            (Some(json!({"include_usage": true})), json!({"include_usage": true})),
        ] {
            let mut body = json!({"model": "m", "stream": true});
            if let Some(options) = &options {
                body["stream_options"] = options.clone();
            }
            let asks = options != Some(json!({"include_usage": true}));
            let sent = changed(&body, |splice, places| assert_eq!(splice.include_usage(places), asks));
            assert_eq!(sent["stream_options"], expected);
        }
        let plain = json!({"model": "m"});
        assert_eq!(changed(&plain, |splice, places| assert!(!splice.include_usage(places))), plain);
    }

    #[test]
    fn ids_take_the_place_of_text() {
        let chat = json!({"model": "m", "messages": []});
        let sent =
            changed(&chat, |splice, places| assert!(splice.ids(places, true, "vllm", &[1, 4_294_967_295])));
        assert_eq!(sent["kv_transfer_params"], json!({"prompt_token_ids": [1, 4_294_967_295u32]}));
        let sent = changed(&chat, |splice, places| assert!(splice.ids(places, true, "sglang", &[])));
        assert_eq!(sent["input_ids"], json!([]));
        let text = json!({"model": "m", "prompt": "text"});
        let sent = changed(&text, |splice, places| assert!(splice.ids(places, false, "vllm", &[7])));
        assert_eq!(sent, json!({"model": "m", "prompt": [7]}));
        changed(&chat, |splice, places| assert!(!splice.ids(places, true, "other", &[7])));
        let transfer = json!({"model": "m", "kv_transfer_params": {}});
        changed(&transfer, |splice, places| assert!(!splice.ids(places, true, "vllm", &[7])));
    }

    proptest! {
        /// Whatever is changed together: the fields have their new values, and the others their old ones.
        #[test]
        fn changes_go_together(
            salt in prop::option::of("\\PC{0,8}"), new in "\\PC{1,8}", stream in any::<bool>(), prompt in prop::option::of("\\PC{0,8}"),
            filler in 0usize..20_000, usage in any::<bool>(), ids in any::<bool>(),
        ) {
            let mut body = json!({"model": "m", "stream": stream, "x": {"cache_salt": 7}, "filler": "é".repeat(filler)});
            if let Some(salt) = salt { body["cache_salt"] = salt.into(); }
            if let Some(prompt) = &prompt { body["prompt"] = prompt.clone().into(); }
            let (mut asked, mut sent_ids) = (false, false);
            let sent = changed(&body, |splice, places| {
                asked = usage && splice.include_usage(places);
                splice.salt(places, &new);
                sent_ids = ids && splice.ids(places, false, "vllm", &[1, 2]);
            });
            let mut expected = body.clone();
            expected["cache_salt"] = new.into();
            if asked { expected["stream_options"] = json!({"include_usage": true}); }
            if sent_ids { expected["prompt"] = json!([1, 2]); }
            prop_assert_eq!(asked, usage && stream);
            prop_assert_eq!(sent_ids, ids && prompt.is_some());
            prop_assert_eq!(sent, expected);
        }
    }
}
