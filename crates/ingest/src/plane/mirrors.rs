//! What a plane knows of other planes: who it is itself, and which engines come from elsewhere.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use kvplane_core::PlaneId;
use kvplane_stream::Limits;

use super::{Engine, Members, Plane, find};
use crate::check::{AddError, UnknownMember};
use crate::source::Source;
use crate::source::kvplane_source::Link;

/// An identity that no other plane has. Hashers are seeded at random by the system: that is all that is
/// needed.
pub(super) fn random_id() -> PlaneId {
    PlaneId::from_bits(random_bits())
}

pub(crate) fn random_bits() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(std::process::id()));
    half() << 64 | half()
}

/// Whatever comes from elsewhere needs the link that it comes over: it may have been removed meanwhile.
pub(super) fn check_links(engines: &[Arc<Engine>]) -> Result<(), AddError> {
    let missing = engines.iter().filter_map(|engine| engine.spec.source.mirrored()).find(|spec| {
        let link = find(engines, spec.link.as_str());
        !link.is_some_and(|link| matches!(link.spec.source, Source::Linked(_)))
    });
    missing.map_or(Ok(()), |spec| Err(UnknownMember::Engine(spec.link.to_string()).into()))
}

impl Plane {
    /// Who this plane is. Another run of it is another plane.
    pub fn id(&self) -> &PlaneId {
        &self.id
    }

    /// The bounds of a stream's state.
    pub(crate) fn limits(&self) -> Limits {
        self.options.state
    }

    /// The engine comes through these planes, the last of which is followed here.
    pub(crate) fn set_via(&self, id: &str, path: &[PlaneId]) {
        let Some(engine) = self.engine(id) else { return };
        let via = self.via_to_here(path);
        if engine.streams.iter().all(|stream| stream.via() == via) {
            return;
        }
        for stream in &engine.streams {
            stream.set_via(via.clone());
        }
        // Links that follow every engine may have to leave it out now.
        self.engines.send_modify(|_| ());
    }

    /// The way of a stream that came through these planes, this one included.
    pub(super) fn via_to_here(&self, path: &[PlaneId]) -> Arc<[PlaneId]> {
        path.iter().chain([&self.id]).cloned().collect()
    }

    /// Follows every other plane that is not followed yet.
    pub(super) fn start_links(&self, members: &mut Members) {
        for engine in self.engines().iter() {
            if let (Source::Linked(spec), Some(state)) = (&engine.spec.source, &engine.link)
                && !members.sources.has_link(&engine.spec.id)
            {
                let id = engine.spec.id.clone();
                let (me, runtime) = (self.me.clone(), self.runtime.clone());
                let link = Link::start(id.clone(), spec.clone(), me, state.clone(), runtime);
                members.sources.link(id, link);
            }
        }
    }
}
