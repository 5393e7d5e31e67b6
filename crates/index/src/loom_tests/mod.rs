//! Every interleaving of a reader and a writer, within bounds: loom runs each model again and again, and each
//! time another thread goes first or an older value is read, as far as the orderings allow it.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p kvplane-index --release --lib loom
//! ```
//!
//! The models use the real types. loom follows atomics and locks; it does not follow contents, which are
//! plain memory. Where it matters who looked at plain memory and when, a model has a cell of loom's beside
//! it, which is touched at the same moments.

#![allow(clippy::unwrap_used, reason = "tests")]

mod edges;
mod extents;
mod index;
mod seats;

use crate::arena::Arena;
use crate::crowd::Crowd;
use crate::extent::{Extent, Identity};

/// Runs a model under every schedule with this many preemptions.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// An extent in a room for this many blocks, below the root.
fn extent(
    arena: &mut Arena,
    id: u32,
    contents: &[u64],
    room_for: usize,
    crowd: *mut Crowd,
) -> &'static Extent {
    let origin = u64::from(id) * crate::extent::SPOTS;
    let identity = Identity { id, origin, parent: crate::extent::ROOT, prefix: 0 };
    let room = arena.take(Extent::bytes(room_for));
    // SAFETY: just made; the models keep the arena until every thread has ended.
    unsafe { &*Extent::create(room, identity, contents, crowd).as_ptr() }
}
