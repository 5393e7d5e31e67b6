//! One stream: where it stands and what it holds. Sans-IO; time is passed in.
//!
//! ```text
//!   inputs of a source ──> sequencer ──> batches ──> Interpreter ──> operations ──> Ledger ──> entries
//!                          (Sequencer, Drain, Relay, Handed)                         ^
//!   another plane ──> Mirror ──> entries as sent ─────────────────────────────────────┘
//! ```
//!
//! A sequencer puts batches in order and says when an epoch of the publisher is over. The [`Interpreter`]
//! knows what an engine's events mean. The [`Ledger`] holds the state, can replay recent entries and cut
//! snapshots. [`Recorder`] ties them together behind the inputs of one source.

mod change;
mod clock;
mod drain;
mod flush;
mod handed;
mod interpreter;
mod ledger;
mod loss;
mod memory;
mod merge;
mod mirror;
mod options;
mod peer_dump;
mod persist;
mod recorder;
mod recovery;
mod relay;
mod seeded;
mod sequencer;
mod silence;
mod state;
mod tokens;
mod transitions;

pub use change::{
    Change, Entry, Layout, Protocol, RemovedBlock, StoreCause, StoredBlock, StoredChange, StoredParts,
    Transition, VisibleBlock,
};
pub use clock::Now;
pub use drain::{Drain, DrainFailure, DrainOptions, DrainedPart};
pub use flush::{FlushError, FlushId, FlushOutcome, FlushReach, FlushSign};
pub use handed::{HandedOptions, NotTaken};
pub use interpreter::{Interpreter, RequestMark};
pub use ledger::{
    Group, JournalCounters, Ledger, Loss, PassedOver, Range, Snapshot, SnapshotBuilder, Window,
};
pub use memory::{Damaged, Mark, Memory, Record};
pub use merge::RankMerge;
pub use mirror::{MirrorBlocks, MirrorChunk, MirrorEnd, MirrorEntry, MirrorSnapshot, MirroredState, Misfit};
pub use options::{ClearScope, Duplicates, JournalOptions, Semantics};
pub use peer_dump::{DumpOutcome, DumpedRun, PeerDump, Position};
pub use recorder::{Ask, Happening, Recorder};
pub use recovery::{Numbering, Recovery, Worker, withheld};
pub use relay::{Ended, Link, Next, Relay, RelayOptions};
pub use sequencer::{Action, Counters, EpochCause, OnGap, Options, Origin, Sequenced, Sequencer};
pub use state::{
    Attributes, BlockImage, Chain, CutAborted, ExtraKeys, HoldingImage, Image, Limits, Parent, Place,
    PlaceId, State, Wide,
};
pub use tokens::Tokens;
