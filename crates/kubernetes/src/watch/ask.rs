//! Which model an engine serves, as its own list of models says.

use std::time::Duration;

use kvplane_transport::HttpClient;
use serde_json::Value;

/// A list of models is some hundred bytes, with adapters some thousand.
const MAX_ANSWER: usize = 1 << 20;
pub(crate) const DEADLINE: Duration = Duration::from_secs(3);

/// The first model that is no adapter of another one.
pub(crate) async fn model(client: &HttpClient, url: &str) -> Option<String> {
    let (status, body) = client.get(url, "/v1/models", MAX_ANSWER, DEADLINE).await.ok()?;
    first(&serde_json::from_slice(&body).ok().filter(|_| status.is_success())?)
}

fn first(answer: &Value) -> Option<String> {
    let models = answer.get("data")?.as_array()?;
    let base = models.iter().find(|model| model.get("parent").is_none_or(Value::is_null))?;
    base.get("id")?.as_str().filter(|id| !id.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn adapters_are_not_the_model() {
        let adapter = json!({"id": "sql", "parent": "llama"});
        let answer =
            json!({"object": "list", "data": [adapter, {"id": "llama", "parent": null}, {"id": "other"}]});
        assert_eq!(first(&answer).as_deref(), Some("llama"));
        assert_eq!(first(&json!({"data": [{"id": "m"}]})).as_deref(), Some("m"));
        for nonsense in [json!({}), json!({"data": []}), json!({"data": [{"id": ""}]}), json!([])] {
            assert_eq!(first(&nonsense), None);
        }
    }
}
