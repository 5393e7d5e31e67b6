//! The reader beside `serde_json`: the same bodies are taken, with the same values.

use serde_json::Value;

use super::*;

/// Everything that is read, in order; `None` if the body is refused. A list under `list` is read by the fast
/// reader.
fn ours(body: &[u8]) -> Option<Vec<(String, Value)>> {
    let mut fields = Fields::open(body).ok()?;
    let mut read = Vec::new();
    while let Some(name) = fields.next().ok()? {
        let value = if name == "list" {
            let mut list = Vec::new();
            let given = fields.numbers(usize::MAX, |number| {
                if number.negative {
                    return false;
                }
                list.push(number);
                true
            });
            if given.ok()? {
                Value::from(list.iter().map(|number| number.magnitude).collect::<Vec<_>>())
            } else {
                Value::Null
            }
        } else {
            fields.value::<Value>().ok()?
        };
        read.push((name.into_owned(), value));
    }
    Some(read)
}

/// The same by `serde_json` alone, with our rules for the list: whole numbers of 64 bits that are not
/// negative, bare or in quotes, or null.
fn theirs(body: &[u8]) -> Option<Vec<(String, Value)>> {
    struct Pairs(Vec<(String, Value)>);
    impl<'de> Deserialize<'de> for Pairs {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Object;
            impl<'de> serde::de::Visitor<'de> for Object {
                type Value = Pairs;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }

                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                    let mut pairs = Vec::new();
                    while let Some(pair) = map.next_entry()? {
                        pairs.push(pair);
                    }
                    Ok(Pairs(pairs))
                }
            }
            deserializer.deserialize_map(Object)
        }
    }
    let Pairs(pairs) = serde_json::from_slice(body).ok()?;
    let whole = |value: &Value| match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            let leads = text.len() > 1 && text.starts_with('0');
            text.parse().ok().filter(|_| digits && !leads)
        }
        _ => None,
    };
    let pair = |(name, value): (String, Value)| match value {
        value if name != "list" => Some((name, value)),
        Value::Null => Some((name, Value::Null)),
        Value::Array(list) => {
            Some((name, Value::from(list.iter().map(whole).collect::<Option<Vec<u64>>>()?)))
        }
        _ => None,
    };
    pairs.into_iter().map(pair).collect()
}

/// A generator without a dependency.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }

    fn pick<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.roll(of.len())]
    }

    fn body(&mut self) -> Vec<u8> {
        const NAMES: [&str; 6] = ["\"list\"", "\"list\"", "\"model\"", "\"l\\u0069st\"", "\"\"", "\"a b\""];
        const SPACES: [&str; 6] = ["", "", "", " ", "\n\t", "  "];
        const NUMBERS: [&str; 16] = [
            "0",
            "7",
            "42",
            "151643",
            "9999999",
            "12345678",
            "18446744073709551615",
            "18446744073709551616",
            "\"5\"",
            "00",
            "01",
            "1.5",
            "1e3",
            "-0",
            "-1",
            "\"007\"",
        ];
        const VALUES: [&str; 10] = [
            "null",
            "true",
            "\"x\\n\"",
            "\"\\ud83d\\ude00\"",
            "\"\\ud800\"",
            "{\"d\":[1,{}]}",
            "[[],[1]]",
            "1.25e2",
            "nul",
            "\"a",
        ];
        let mut text = String::from("{");
        for at in 0..self.roll(4) {
            if at > 0 {
                text.push(',');
            }
            let name = self.pick(&NAMES);
            text += self.pick(&SPACES);
            text += name;
            text += self.pick(&SPACES);
            text.push(':');
            text += self.pick(&SPACES);
            if name.contains("st\"") && self.roll(8) > 0 {
                text.push('[');
                let separator = self.pick(&[",", ", ", " ,", ",\n"]);
                let simple = self.roll(3) > 0;
                for at in 0..self.roll(60) {
                    if at > 0 {
                        text += separator;
                    }
                    let among = if simple && self.roll(50) > 0 { &NUMBERS[..5] } else { &NUMBERS[..] };
                    text += self.pick(among);
                }
                text.push(']');
            } else {
                text += self.pick(&VALUES);
            }
            text += self.pick(&SPACES);
        }
        text.push('}');
        let mut bytes = text.into_bytes();
        // One of some has a byte that does not belong there, or ends early.
        match self.roll(6) {
            0 => {
                let at = self.roll(bytes.len());
                bytes[at] = b"{}[],:\"0-.e \\\xff"[self.roll(14)];
            }
            1 => bytes.truncate(self.roll(bytes.len() + 1)),
            _ => {}
        }
        bytes
    }
}

#[test]
fn bodies_are_read_as_serde_reads_them() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut taken = 0;
    for _ in 0..60_000 {
        let body = dice.body();
        crate::checks::query_json(&body);
        let (ours, theirs) = (ours(&body), theirs(&body));
        taken += usize::from(ours.is_some());
        assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(&body));
    }
    assert!(taken > 10_000, "{taken}");
}
