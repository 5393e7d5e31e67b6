//! Another kvplane as a source: each of its engines is an engine here, for as long as it is one there.
//!
//! ```text
//!   Link (thread kvp-link) ── session ──> Subscribe ──┬─> Member (a stream) ──> Feeder ──> Recorder
//!                                 └─────> Status ─────┴─> engines come and go (roster)
//! ```
//!
//! A link has a thread and a runtime of its own: messages are decoded and applied there, and a snapshot
//! of a million blocks holds up nobody else.
//!
//! **Loops.** Every plane has an identity, and every stream says through which planes it came. A stream that
//! came through this plane is not followed, and neither is this plane itself.

mod convert;
mod member;
mod roster;
mod session;
mod spec;
mod status;

use std::sync::{Arc, Weak};
use std::thread;

use kvplane_core::EngineId;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::error;

use crate::plane::Plane;

pub use convert::owned_keys;
use session::Session;
pub use spec::{LinkSpec, Mirrored};
pub use status::{LinkState, LinkStatus};

/// A running link. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Link {
    _stop: DropGuard,
}

impl Link {
    /// Begins to follow the plane at `spec.url`.
    pub(crate) fn start(
        id: EngineId,
        spec: LinkSpec,
        plane: Weak<Plane>,
        state: Arc<LinkState>,
        runtime: Handle,
    ) -> Self {
        let stop = CancellationToken::new();
        let ends = stop.clone();
        let name = id.clone();
        let run = move || match (Builder::new_current_thread().enable_all().build(), spec.endpoint()) {
            (Ok(own), Ok(endpoint)) => own.block_on(async {
                let session = Session::new(id, spec, &endpoint, plane, state, runtime);
                Box::pin(ends.run_until_cancelled_owned(session.run())).await;
            }),
            (Err(error), _) => error!(link = %id, %error, "cannot start the link"),
            (_, Err(error)) => error!(link = %id, %error, "the address cannot be used"),
        };
        if let Err(error) = thread::Builder::new().name("kvp-link".to_owned()).spawn(run) {
            error!(link = %name, %error, "cannot start the link");
        }
        Self { _stop: stop.drop_guard() }
    }
}
