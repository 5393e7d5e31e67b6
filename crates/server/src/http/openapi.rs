//! `/openapi.json`: every route, with its parameters, bodies and answers.
//!
//! Routes are written down in `crates/server/openapi`, a file for each group of them. Schemas of what is read
//! and written by types come from the types; who may call comes from the table of roles. The document is put
//! together once.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use kvplane_access::Needs;
use kvplane_access::table::PAGES;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::{discover, hints, indexer, policy, probe, query, status, watch};
use crate::fleet::EngineConfig;
use crate::ops::{Plan, RankReport, Summary};
use crate::publishers::Publishers;
use crate::watch::{Cell, Link, Past};

const COMMON: &str = include_str!("../../openapi/common.json");

/// Groups of routes, each `{"paths", "schemas", "responses", …}`: paths, and parts of `components`.
const GROUPS: [&str; 7] = [
    include_str!("../../openapi/process.json"),
    include_str!("../../openapi/engines.json"),
    include_str!("../../openapi/questions.json"),
    include_str!("../../openapi/routing.json"),
    include_str!("../../openapi/indexer.json"),
    include_str!("../../openapi/operations.json"),
    include_str!("../../openapi/hints.json"),
];

pub(super) async fn page() -> Response {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.clone()).into_response()
}

fn document() -> Value {
    // A test reads every file; one that could not be read would leave its routes out.
    let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap_or_default();
    let mut document = Value::Object(read(COMMON));
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    for group in GROUPS {
        for (part, entries) in read(group) {
            let into =
                if part == "paths" { &mut document["paths"] } else { &mut document["components"][part] };
            add(into, entries);
        }
    }
    add(&mut document["components"]["schemas"], schemas());
    let parameters = document["components"]["parameters"].clone();
    for operation in operations(&mut document) {
        complete(operation, &parameters);
    }
    for &(method, path, needs) in PAGES {
        if let Some(operation) = document["paths"][path].get_mut(method.to_ascii_lowercase()) {
            secure(operation, needs);
        }
    }
    document
}

fn operations(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    let items = document["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    items.filter_map(Value::as_object_mut).flat_map(Map::values_mut)
}

/// Adds what follows from the rest: the answers that every operation may give, and the schema of a body that
/// takes what the query does.
fn complete(operation: &mut Value, shared: &Value) {
    let is_indexers = operation["tags"] == json!(["indexer"]);
    let other = if is_indexers { "IndexerOther" } else { "Other" };
    operation["responses"]["default"] = json!({"$ref": format!("#/components/responses/{other}")});
    let lacks_schema = |body: &Value| body.is_object() && body["content"].is_null();
    if operation.get("requestBody").is_none_or(|body| !lacks_schema(body)) {
        return;
    }
    let mut properties = Map::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let name = parameter["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
        let parameter = name.map_or(parameter, |name| &shared[name]);
        let also = parameter["x-kvplane-also"].as_array().into_iter().flatten();
        for name in also.chain([&parameter["name"]]).filter_map(Value::as_str) {
            properties.insert(name.to_owned(), parameter["schema"].clone());
        }
    }
    let schema = json!({"type": ["object", "null"], "additionalProperties": false, "properties": properties});
    operation["requestBody"]["content"] = json!({"application/json": {"schema": schema}});
}

/// Puts entries beside those that are there.
fn add(into: &mut Value, entries: Value) {
    match (into, entries) {
        (Value::Object(into), Value::Object(entries)) => into.extend(entries),
        (into @ Value::Null, entries) => *into = entries,
        _ => {}
    }
}

/// What types look like in JSON.
fn schemas() -> Value {
    let settings = || {
        SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
    };
    let mut read = SchemaGenerator::new(settings().for_deserialize());
    read.subschema_for::<EngineConfig>();
    read.subschema_for::<indexer::RegisterRequest>();
    read.subschema_for::<indexer::UnregisterRequest>();
    read.subschema_for::<indexer::PeerRequest>();
    read.subschema_for::<policy::PolicySnapshot>();
    read.subschema_for::<probe::ProbeRequest>();
    let mut written = SchemaGenerator::new(settings().for_serialize());
    written.subschema_for::<status::PlaneStatus>();
    written.subschema_for::<Publishers>();
    written.subschema_for::<discover::Discovered>();
    written.subschema_for::<query::StreamJson<'_>>();
    written.subschema_for::<query::MatchJson<'_>>();
    written.subschema_for::<query::NotCreditedJson<'_>>();
    written.subschema_for::<query::CountsJson>();
    written.subschema_for::<Plan>();
    written.subschema_for::<RankReport>();
    written.subschema_for::<Summary>();
    written.subschema_for::<indexer::Worker>();
    written.subschema_for::<hints::Snapshot>();
    written.subschema_for::<probe::ProbeResult>();
    written.subschema_for::<watch::PlaneJson>();
    written.subschema_for::<Cell>();
    written.subschema_for::<super::overview::Overview>();
    written.subschema_for::<Past>();
    written.subschema_for::<Link>();
    written.subschema_for::<watch::RemarkJson<'_>>();
    let mut schemas = read.take_definitions(true);
    schemas.extend(written.take_definitions(true));
    Value::Object(schemas)
}

/// Who may call, and what the others get.
fn secure(operation: &mut Value, needs: Needs) {
    let role = match needs {
        Needs::Nothing => {
            operation["security"] = json!([]);
            return;
        }
        Needs::AnyRole => "any",
        Needs::Role(role) => role.as_str(),
    };
    operation["security"] = json!([{"token": []}, {"certificate": []}]);
    operation["x-kvplane-role"] = role.into();
    for (code, name) in [("401", "Unauthenticated"), ("403", "Forbidden")] {
        operation["responses"][code] = json!({"$ref": format!("#/components/responses/{name}")});
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_there_and_no_other() {
        let document = document();
        let mut described = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for method in item.as_object().unwrap().keys() {
                described.insert((method.to_ascii_uppercase(), path.clone()));
            }
        }
        let routes: BTreeSet<_> =
            PAGES.iter().map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned())).collect();
        assert_eq!(described, routes);
    }

    #[test]
    fn files_are_read_and_overwrite_nothing() {
        let mut names = BTreeSet::new();
        let schemas = schemas();
        let typed = schemas.as_object().unwrap().keys().map(|name| format!("schemas/{name}"));
        names.extend(typed);
        for text in GROUPS {
            let group: Value = serde_json::from_str(text).unwrap();
            for (part, entries) in group.as_object().unwrap() {
                for name in entries.as_object().unwrap().keys() {
                    assert!(names.insert(format!("{part}/{name}")), "{part}/{name}");
                }
            }
        }
    }

    #[test]
    fn what_is_referred_to_exists() {
        fn walk(value: &Value, document: &Value) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(reference)) = fields.get("$ref") {
                        let target = document.pointer(reference.trim_start_matches('#'));
                        assert!(target.is_some(), "{reference}");
                    }
                    fields.values().for_each(|value| walk(value, document));
                }
                Value::Array(values) => values.iter().for_each(|value| walk(value, document)),
                _ => {}
            }
        }
        let document = document();
        walk(&document, &document);
    }
}
