//! The hit-loss ledger: what was predicted, what was delivered, and where each token between them went.
//!
//! ```text
//! L prompt   C ever seen   F best in the fleet   E best eligible   S predicted for the chosen   D delivered
//! └ workload ┘└ capacity, not_resumable ┘└ eligibility ┘└ load ┘└ by replaying the engine's stream ┘
//! ```
//!
//! No IO and no clock. A receipt has hashes of blocks while it is open, and never text or tokens.

mod account;
mod cause;
mod history;
mod ledger;
mod receipt;
mod replay;

pub use account::{Account, Drift};
pub use cause::{Cause, Losses};
pub use history::History;
pub use ledger::{Ledger, LedgerTotals, SettleError, Unledgered};
pub use receipt::{CandidateNote, Decided, Delivered, Receipt, ReceiptId};
pub use replay::{Happening, Replay};
