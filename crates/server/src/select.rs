//! Finding the engine and the rank that a caller means.

use std::sync::Arc;

use kvplane_core::{ErrorCode, PublicError};
use kvplane_ingest::{Engine, Engines, Plane, Stream};

const ADD_ONE: &str = "add one with `kvplane engines add` or in the configuration";

fn names(engines: &Engines) -> String {
    let names: Vec<&str> = engines.iter().map(|engine| engine.spec.id.as_str()).collect();
    names.join(", ")
}

/// The engine of that name; without a name the only one.
pub(crate) fn engine(plane: &Plane, name: Option<&str>) -> Result<Arc<Engine>, PublicError> {
    let engines = plane.engines();
    match (name, &engines[..]) {
        (Some(name), all) => {
            all.iter().find(|engine| engine.spec.id.as_str() == name).cloned().ok_or_else(|| {
                let unknown = PublicError::new(ErrorCode::NotFound, format!("no engine {name:?}"));
                match all {
                    [] => unknown.with_next(ADD_ONE),
                    _ => unknown.with_next(format!("name one of these: {}", names(&engines))),
                }
            })
        }
        (None, [only]) => Ok(only.clone()),
        (None, []) => Err(PublicError::new(ErrorCode::NotFound, "there are no engines").with_next(ADD_ONE)),
        (None, _) => Err(PublicError::new(ErrorCode::InvalidArgument, "there are several engines")
            .with_next(format!("name one of these: {}", names(&engines)))),
    }
}

/// The stream of that rank; without a rank the only one.
pub(crate) fn stream(engine: &Engine, rank: Option<u32>) -> Result<&Arc<Stream>, PublicError> {
    let id = &engine.spec.id;
    match (rank, &engine.streams[..]) {
        (Some(rank), _) => engine.stream(rank).ok_or_else(|| {
            PublicError::new(ErrorCode::NotFound, format!("engine {id} has no rank {rank}"))
                .with_next(format!("name one that it has: {}", ranks(engine)))
        }),
        (None, [only]) => Ok(only),
        (None, _) => {
            Err(PublicError::new(ErrorCode::InvalidArgument, format!("engine {id} has several ranks"))
                .with_next(format!("name one of them: {}", ranks(engine))))
        }
    }
}

/// The numbers of an engine's ranks: `0 to 3` where they have no holes.
fn ranks(engine: &Engine) -> String {
    let ranks: Vec<u32> = engine.streams.iter().map(|stream| stream.id().rank).collect();
    match ranks[..] {
        [first, .., last] if (last - first) as usize == ranks.len() - 1 => format!("{first} to {last}"),
        _ => ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
    }
}
