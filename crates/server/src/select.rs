//! Finding the engine and the rank that a caller means.

use std::sync::Arc;

use kvplane_core::{ErrorCode, PublicError};
use kvplane_ingest::{Engine, Plane, Stream};

fn names(plane: &Plane) -> String {
    let names: Vec<&str> = plane.engines().iter().map(|engine| engine.spec.id.as_str()).collect();
    names.join(", ")
}

/// The engine of that name; without a name the only one.
pub(crate) fn engine<'p>(plane: &'p Plane, name: Option<&str>) -> Result<&'p Engine, PublicError> {
    match (name, plane.engines()) {
        (Some(name), _) => plane.engine(name).ok_or_else(|| {
            PublicError::new(ErrorCode::NotFound, format!("no engine {name:?}; there are: {}", names(plane)))
        }),
        (None, [only]) => Ok(only),
        (None, []) => Err(PublicError::new(ErrorCode::NotFound, "there are no engines")),
        (None, _) => Err(PublicError::new(
            ErrorCode::InvalidArgument,
            format!("name one of several engines: {}", names(plane)),
        )),
    }
}

/// The stream of that rank; without a rank the only one.
pub(crate) fn stream(engine: &Engine, rank: Option<u32>) -> Result<&Arc<Stream>, PublicError> {
    let id = &engine.spec.id;
    let last = engine.streams.len().saturating_sub(1);
    match (rank, &engine.streams[..]) {
        (Some(rank), streams) => streams.get(rank as usize).ok_or_else(|| {
            PublicError::new(
                ErrorCode::NotFound,
                format!("engine {id} has no rank {rank}; it has 0 to {last}"),
            )
        }),
        (None, [only]) => Ok(only),
        (None, _) => Err(PublicError::new(
            ErrorCode::InvalidArgument,
            format!("engine {id} has several ranks: name one of 0 to {last}"),
        )),
    }
}
