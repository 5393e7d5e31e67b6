//! One stream: where it stands and what it holds. Sans-IO; time is passed in.
//!
//! [`Continuity`] puts batches in order and says when a life of the publisher is over; [`Journal`] applies them and can
//! replay or picture the result. [`Recorder`] ties the two together behind the inputs that a socket gives.

mod change;
mod clock;
mod continuity;
mod drain;
mod flush;
mod handed;
mod journal;
mod loss;
mod merge;
mod mirror;
mod recorder;
mod recovery;
mod relay;
mod seeded;
mod silence;
mod state;
mod transitions;

pub use change::{
    Change, Entry, Layout, Protocol, RemovedBlock, StoreCause, StoredBlock, StoredChange, Transition,
    VisibleBlock,
};
pub use clock::Now;
pub use continuity::{Action, Continuity, Counters, EpochCause, OnGap, Options, Origin, Sequenced};
pub use drain::{Drain, DrainFailure, DrainOptions, DrainedPart};
pub use flush::{FlushError, FlushId, FlushOutcome, FlushReach, FlushSign};
pub use handed::{HandedOptions, NotTaken};
pub use journal::{
    ClearScope, Duplicates, Group, Journal, JournalCounters, JournalOptions, Loss, PassedOver, Range,
    RequestMark, Semantics, Snapshot, SnapshotBuilder, Window,
};
pub use merge::RankMerge;
pub use mirror::{MirrorSnapshot, MirroredState, Misfit, ToldBlocks, ToldChunk, ToldEnd, ToldEntry};
pub use recorder::{Ask, Happening, Recorder};
pub use recovery::{Numbering, Recovery, Worker, withheld};
pub use relay::{Ended, Link, Next, Relay, RelayOptions};
pub use state::{
    Attributes, BlockImage, Chain, CutAborted, ExtraKeys, HoldingImage, Image, Limits, Parent, Place,
    PlaceId, State,
};
