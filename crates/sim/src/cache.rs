//! A rank's prefix cache, whichever engine it is: a pool of blocks, or a tree of pages.

use std::collections::BTreeMap;

use kvplane_core::EngineKind;
use kvplane_wire::OwnedEvent;

use crate::config::SimConfig;
use crate::keys::Keys;
use crate::pool::{self, Pool, PoolError, Report};
use crate::radix::{self, Radix};

/// What is cached: each hash's 64 bits with its number of copies.
pub type Copies = BTreeMap<u64, usize>;

/// What a cache group holds on each tier. Engines without groups have one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupState {
    /// On the device.
    pub device: Copies,
    /// On the host.
    pub host: Copies,
    /// In storage, which tells nothing of what it loses.
    pub storage: Copies,
}

/// When events may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// A prompt was computed.
    Prefill,
    /// Some token was generated.
    Decode,
    /// A request ended, or nothing runs.
    Idle,
}

/// The cache of one life of a rank.
#[derive(Debug)]
pub(crate) enum Cache {
    /// vLLM and TensorRT-LLM.
    Pool(Box<Pool>),
    /// `SGLang` and `TokenSpeed`.
    Radix(Box<Radix>),
}

/// The blocks of one running request. Give it back with [`Cache::finish`].
#[derive(Debug)]
pub(crate) enum Request {
    Pool(pool::Table),
    Radix(radix::Request),
}

impl Cache {
    /// The cache of a new life.
    pub(crate) fn new(config: &SimConfig) -> Self {
        match config.profile.engine() {
            EngineKind::Sglang | EngineKind::Tokenspeed => Self::Radix(Box::new(Radix::new(config.radix()))),
            _ => Self::Pool(Box::new(Pool::new(config.pool()))),
        }
    }

    /// Starts a request: reuses what is cached of `prompt`, computes the rest.
    pub(crate) fn begin(&mut self, prompt: &[u32], keys: Keys, report: Report) -> Result<Request, PoolError> {
        Ok(match self {
            Self::Pool(pool) => Request::Pool(pool.begin(prompt, keys, report)?),
            Self::Radix(radix) => Request::Radix(radix.begin(&keys.padded(prompt), keys.without_images())?),
        })
    }

    /// Computes one more token of a running request.
    pub(crate) fn append(&mut self, request: &mut Request, token: u32) -> Result<(), PoolError> {
        match (self, request) {
            (Self::Pool(pool), Request::Pool(table)) => pool.append(table, token),
            (Self::Radix(radix), Request::Radix(request)) => radix.append(request, token),
            // A request of another life's cache has no blocks here.
            _ => Err(PoolError::Full),
        }
    }

    /// Ends a request; what it computed stays cached until its room is needed.
    pub(crate) fn finish(&mut self, request: &Request) {
        match (self, request) {
            (Self::Pool(pool), Request::Pool(table)) => pool.finish(table),
            (Self::Radix(radix), Request::Radix(request)) => radix.finish(request),
            _ => {}
        }
    }

    /// Takes their blocks from all running requests, as vLLM can. Nobody may give them back afterwards.
    pub(crate) fn preempt(&mut self) {
        if let Self::Pool(pool) = self {
            pool.preempt();
        }
    }

    /// Forgets everything on the device; refused while a request holds blocks. Colder tiers of vLLM only if
    /// they are to be `emptied` too, those of `SGLang` always.
    pub(crate) fn reset(&mut self, emptied: bool) -> Result<(), PoolError> {
        match self {
            Self::Pool(pool) => pool.reset(emptied),
            Self::Radix(radix) => radix.reset(),
        }
    }

    /// The events since the last call, in order, if they leave at this moment.
    pub(crate) fn take_events(&mut self, moment: Moment) -> Vec<OwnedEvent> {
        match self {
            // Only a step publishes: a reset of an idle vLLM is published with the next one.
            Self::Pool(_) if moment == Moment::Idle => Vec::new(),
            Self::Pool(pool) => pool.take_events(),
            Self::Radix(radix) => radix.take_events(moment),
        }
    }

    /// What each group holds; the groups' numbers are their places.
    pub(crate) fn groups(&self) -> Vec<GroupState> {
        match self {
            Self::Pool(pool) => pool.resident(),
            Self::Radix(radix) => {
                let (device, host) = (radix.resident(), radix.resident_on_host());
                vec![GroupState { device, host, ..GroupState::default() }]
            }
        }
    }

    /// How many tokens of `prompt` would be found now.
    pub(crate) fn would_hit(&self, prompt: &[u32], keys: &Keys) -> usize {
        match self {
            Self::Pool(pool) => pool.would_hit(prompt, keys),
            Self::Radix(radix) => radix.would_hit(&keys.padded(prompt), &keys.clone().without_images()),
        }
    }
}

impl Request {
    /// Prompt tokens that were found in the cache.
    pub(crate) fn cached_tokens(&self) -> usize {
        match self {
            Self::Pool(table) => table.cached_tokens(),
            Self::Radix(request) => request.cached_tokens(),
        }
    }

    /// Everything computed so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        match self {
            Self::Pool(table) => table.tokens(),
            Self::Radix(request) => request.tokens(),
        }
    }
}
