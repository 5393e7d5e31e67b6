//! SMG's services, for stock gateways: `SubscribeKvEvents`, and operations (`operations.rs`).
//!
//! The gateway's consumer decides what this server must do. It knows no epochs and no trust, it takes a store
//! whose parent it does not know for the beginning of a prompt, and it reads meaning into where a status
//! appears:
//!
//! | state | answer |
//! |---|---|
//! | start 0 | headers at once, a snapshot in chunks, then the tail |
//! | a cursor in the window | headers, then exactly what follows |
//! | a cursor that is not | `OUT_OF_RANGE` from the handler: it clears and starts over |
//! | a new epoch, a loss, a stream that is no longer credited, a store that cannot be translated | `DATA_LOSS` after the headers: it clears and starts over |
//! | not credited now (down, recovering) | headers, an empty snapshot, then whatever comes |
//! | a main group that cannot be translated | `FAILED_PRECONDITION` at 0, `OUT_OF_RANGE` elsewhere |
//!
//! Numbers are kvplane's own (epoch << 20 + n), so that a cursor of another life is never inside the window.

mod encode;
mod follow;
mod fronted;
mod loads;
mod merger;
mod operations;
mod service;

pub(crate) use fronted::own_calls;
pub(crate) use service::SmgService;
