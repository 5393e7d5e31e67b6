//! The kinds of engines in the schema: their own crate knows no schemas.

use kvplane_core::EngineKind;
use schemars::{Schema, SchemaGenerator, json_schema};

pub(super) fn kind(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": EngineKind::ALL.map(EngineKind::as_str)})
}

pub(super) fn kind_or_none(_: &mut SchemaGenerator) -> Schema {
    let kinds = EngineKind::ALL.iter().filter(|kind| kind.grpc_service().is_some());
    json_schema!({"type": ["string", "null"], "enum": kinds.map(|kind| Some(kind.as_str())).chain([None]).collect::<Vec<_>>()})
}
