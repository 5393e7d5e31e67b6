//! What is wrong with a question that cannot be read, as the peers say it: 400 where it is not JSON, 422
//! where it is JSON of another form.
//!
//! Questions are read by hand, for speed. One that cannot be read is read once more here, by the peers' own
//! form, because a client expects the status that they would send.

use std::fmt;
use std::marker::PhantomData;

use axum::http::StatusCode;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Refusal;

/// A list of which nothing is kept.
struct Each<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Each<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
                while list.next_element::<T>()?.is_some() {}
                Ok(())
            }
        }
        deserializer.deserialize_seq(List(PhantomData::<T>)).map(|()| Self(PhantomData))
    }
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only whether it can be read counts")]
struct ByTokens {
    token_ids: Each<u32>,
    model_name: String,
    #[serde(default)]
    routing_group: String,
    #[serde(default)]
    tenant_id: String,
    lora_name: Option<String>,
    cache_salt: Option<String>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "only whether it can be read counts")]
struct ByHashes {
    block_hashes: Each<i64>,
    model_name: String,
    #[serde(default)]
    routing_group: String,
    #[serde(default)]
    tenant_id: String,
    cache_salt: Option<String>,
}

/// Why a question, by tokens or by hashes, cannot be read.
pub(super) fn unreadable(body: &[u8], by_tokens: bool) -> Refusal {
    check(body, by_tokens).unwrap_or_else(|| {
        // A list of the fields' values.
        let message = "the JSON body is not an object of this form".to_owned();
        Refusal::Text(StatusCode::UNPROCESSABLE_ENTITY, message)
    })
}

/// Why the peers would not read a question; `None` if they would.
pub(super) fn check(body: &[u8], by_tokens: bool) -> Option<Refusal> {
    let read = if by_tokens {
        serde_json::from_slice::<ByTokens>(body).map(drop)
    } else {
        serde_json::from_slice::<ByHashes>(body).map(drop)
    };
    let error = read.err()?;
    let (status, what) = if error.is_data() {
        (StatusCode::UNPROCESSABLE_ENTITY, "Failed to deserialize the JSON body into the target type")
    } else {
        (StatusCode::BAD_REQUEST, "Failed to parse the request body as JSON")
    };
    Some(Refusal::Text(status, format!("{what}: {}", without_values(&error))))
}

/// Values are prompts: errors name the missing field, and of a wrong value only its place.
fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if ["missing field", "duplicate field"].iter().any(|start| text.starts_with(start)) {
        return text;
    }
    format!("at line {} column {}", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(body: &str, by_tokens: bool) -> (u16, String) {
        match unreadable(body.as_bytes(), by_tokens) {
            Refusal::Text(status, message) => (status.as_u16(), message),
            other @ Refusal::Json(..) => panic!("{other:?}"),
        }
    }

    #[test]
    fn statuses_are_the_peers_and_values_are_not_repeated() {
        for (body, status) in [
            ("", 400),
            ("{", 400),
            (r#"{"token_ids":[1,],"model_name":"m"}"#, 400),
            (r#"{"token_ids":[1] "model_name":"m"}"#, 400),
            (r#"{"token_ids":"hush","#, 422),
            (r#"{"token_ids":["hush"],"model_name":"m"}"#, 422),
            (r#"{"token_ids":[4294967296],"model_name":"m"}"#, 422),
            (r#"{"token_ids":[1],"model_name":"m","routing_group":null}"#, 422),
            (r#"{"token_ids":[1],"token_ids":[1],"model_name":"m"}"#, 422),
            (r#"{"token_ids":[1]}"#, 422),
            (r#"[[1],"m","g","t",null,null]"#, 422),
        ] {
            let (refused, message) = refused(body, true);
            assert_eq!(refused, status, "{body}: {message}");
            assert!(!message.contains("hush") && !message.contains("4294967296"), "{message}");
        }
        assert!(refused(r#"{"block_hashes":[1]}"#, false).1.contains("`model_name`"));
        assert_eq!(refused(r#"{"block_hashes":[9223372036854775808],"model_name":"m"}"#, false).0, 422);
    }
}
