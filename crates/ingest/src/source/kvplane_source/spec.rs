//! Another plane, and an engine of one, as sources.

use std::path::PathBuf;
use std::time::Duration;

use kvplane_core::{EngineId, PlaneId};
use kvplane_proto::Bearer;
use kvplane_stream::{JournalOptions, Now, Recorder};

use crate::check::AddError;
use crate::feeder::Feeder;
use crate::source::{Opening, RankSpec, SharedRanks, SourceKind};
use crate::spec::PlaneOptions;
use crate::token_file::{TokenFileError, read_token};

/// Another plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkSpec {
    /// Its gRPC server: `http://host:port` or `https://host:port`.
    pub url: String,
    /// Certificates (PEM) to trust instead of the public ones, for `https`.
    pub ca: Option<Vec<u8>>,
    /// Where the bearer token is that it wants.
    pub token_file: Option<PathBuf>,
    /// The token itself, where it is in no file.
    pub bearer: Bearer,
    /// The only engine of it that is wanted; absent: all.
    pub engine: Option<String>,
    /// The longest time without proof that an engine behind it is there, from that engine to here.
    pub max_silence: Option<Duration>,
}

impl LinkSpec {
    /// Whether an engine of the other plane is wanted.
    pub(crate) fn wants(&self, engine: &str) -> bool {
        self.engine.as_ref().is_none_or(|wanted| wanted == engine)
    }

    /// Where it is, if that is an address.
    pub fn endpoint(&self) -> Result<tonic::transport::Endpoint, tonic::transport::Error> {
        kvplane_transport::grpc::server(&self.url, self.ca.as_deref())
    }

    /// Whether the certificates to trust, if there are to be any, have one among them.
    pub fn trusts_somebody(&self) -> bool {
        self.ca.as_deref().is_none_or(kvplane_transport::grpc::has_certificate)
    }

    /// The bearer token that it wants, as it was given or as the file has it now.
    pub fn token(&self) -> Result<Bearer, TokenFileError> {
        let Some(path) = &self.token_file else { return Ok(self.bearer.clone()) };
        Bearer::new(&read_token(path)?).map_err(|_| TokenFileError::Unfit(path.clone()))
    }
}

impl SourceKind for LinkSpec {
    fn ranks(&self) -> Vec<RankSpec> {
        Vec::new()
    }

    fn server(&self) -> Option<&str> {
        Some(&self.url)
    }

    fn recorder(&self, options: &PlaneOptions, keep: JournalOptions, rank: u32, now: Now) -> Recorder {
        Recorder::of_mirror(options.down_after, keep, rank, now)
    }

    fn open(&self, _opening: Opening<'_>) -> Result<(), AddError> {
        Ok(())
    }
}

/// An engine of another plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirrored {
    /// The link that it comes over.
    pub link: EngineId,
    /// Where the other plane is.
    pub url: String,
    /// Its name there.
    pub engine: String,
    /// The planes that it came through when it was added, the other plane last.
    pub via: Vec<PlaneId>,
    /// Its ranks there.
    pub ranks: SharedRanks,
}

impl SourceKind for Mirrored {
    fn ranks(&self) -> Vec<RankSpec> {
        self.ranks.at(&self.url)
    }

    fn shared_ranks(&mut self) -> Option<&mut SharedRanks> {
        Some(&mut self.ranks)
    }

    fn recorder(&self, options: &PlaneOptions, keep: JournalOptions, rank: u32, now: Now) -> Recorder {
        Recorder::of_mirror(options.down_after, keep, rank, now)
    }

    fn open(&self, opening: Opening<'_>) -> Result<(), AddError> {
        let Opening { plane, sources, stream, .. } = opening;
        sources.mirror(Feeder::new(stream.clone(), plane.runtime().clone()));
        Ok(())
    }
}
