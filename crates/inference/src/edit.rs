//! Changes of a request's body: bytes are put in behind its first brace, and nothing else is touched.

use bytes::Bytes;

/// Fields to put in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Edit {
    /// `"name":value,` one after the other.
    fields: String,
}

impl Edit {
    /// Whether nothing is put in.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The engine sends the usage as the last event.
    pub fn include_usage(&mut self) {
        self.fields.push_str(r#""stream_options":{"include_usage":true},"#);
    }

    /// The engine takes these ids and tokenizes nothing.
    pub fn token_ids(&mut self, kind: &str, ids: &[u32]) {
        let list = |out: &mut String| {
            out.reserve(6 * ids.len());
            for (at, id) in ids.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                out.push_str(itoa(*id, &mut [0; 10]));
            }
        };
        match kind {
            "vllm" => {
                self.fields.push_str(r#""kv_transfer_params":{"prompt_token_ids":["#);
                list(&mut self.fields);
                self.fields.push_str("]},");
            }
            "sglang" => {
                self.fields.push_str(r#""input_ids":["#);
                list(&mut self.fields);
                self.fields.push_str("],");
            }
            _ => {}
        }
    }

    /// Puts the fields into a body that is an object with at least one field of its own. The rest is shared,
    /// not copied.
    pub fn apply(self, body: Vec<Bytes>) -> Vec<Bytes> {
        let mut out = Vec::with_capacity(body.len() + 2);
        let mut fields = Some(self.fields);
        for mut chunk in body {
            let brace = chunk.iter().position(|byte| *byte == b'{').filter(|_| fields.is_some());
            if let (Some(at), Some(fields)) = (brace, brace.and_then(|_| fields.take())) {
                out.push(chunk.split_to(at + 1));
                out.push(Bytes::from(fields));
            }
            if !chunk.is_empty() {
                out.push(chunk);
            }
        }
        out
    }
}

/// A number's digits.
fn itoa(mut number: u32, room: &mut [u8; 10]) -> &str {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    std::str::from_utf8(&room[at..]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_put_behind_the_first_brace() {
        let mut edit = Edit::default();
        edit.include_usage();
        edit.token_ids("vllm", &[0, 7, 4_294_967_295]);
        edit.token_ids("trtllm", &[1]);
        let body = [" ", "\n{", "\"model\":{}}"].map(|text| Bytes::from_static(text.as_bytes())).to_vec();
        let text = String::from_utf8(edit.apply(body).concat()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "stream_options": {"include_usage": true},
                "kv_transfer_params": {"prompt_token_ids": [0, 7, 4_294_967_295u32]},
                "model": {},
            })
        );
        let mut edit = Edit::default();
        assert!(edit.is_empty());
        edit.token_ids("sglang", &[10]);
        assert_eq!(
            edit.apply(vec![Bytes::from_static(b"{\"a\":1}")]).concat(),
            b"{\"input_ids\":[10],\"a\":1}"
        );
    }
}
