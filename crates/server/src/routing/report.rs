//! What came of a decision, as the router reports it.

use kvplane_core::{ErrorCode, PublicError};
use kvplane_ingest::Plane;
use kvplane_proto::kvplane::v1::BookingChange;
use kvplane_receipts::{Account, Cause, Decided, Delivered, Drift, Receipt, ReceiptId, Replay, SettleError};
use kvplane_route::BookingId;
use tracing::error;

use super::replay::replay;
use super::{LastDrift, Routing, no_such_receipt};
use crate::parity;
use crate::questions::Asker;

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Its first token came.
    FirstToken,
    /// It is over.
    Finish,
    /// It was given up.
    Abort,
}

/// What is reported of one request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    pub(crate) state: Option<State>,
    pub(crate) delivered: Option<Delivered>,
    /// Where that is known before what was delivered is told.
    pub(crate) first_token_ms: Option<f64>,
}

impl Routing {
    /// Takes a report. Waits for nobody, but may read thousands of entries: not for a thread that serves
    /// others.
    pub(crate) fn report(&self, asker: &Asker, name: &str, report: Report) -> Result<Receipt, PublicError> {
        let plane = &*asker.plane;
        let id = self.receipt_id(name)?;
        let mut receipt =
            self.receipts.lock().ledger.get(id).cloned().ok_or_else(|| no_such_receipt(name))?;
        if let (Some(state), Some(booking)) = (report.state, receipt.decided.booking.map(BookingId)) {
            let now = self.now();
            let mut books = self.books.lock();
            let delivered = report.delivered.as_ref();
            let took = report.first_token_ms.or_else(|| delivered.and_then(|one| one.first_token_ms));
            let took = took.is_some_and(|took| books.router.first_token_took(booking, took / 1e3));
            let first = state == State::FirstToken && books.router.first_token(booking, now).is_some();
            if took || first {
                books.changed(plane, booking, BookingChange::FirstToken, None, now);
            }
            if state != State::FirstToken {
                books.changed(plane, booking, BookingChange::Over, None, now);
                books.router.finish(booking);
            }
        }
        if let Some(delivered) = report.delivered {
            let needed = receipt.settled.is_none() && receipt.decided.predicted != delivered.cached;
            let replay = if needed { replay(plane, &receipt.decided) } else { Replay::Expired };
            receipt = self.settle(id, name, delivered, &replay)?;
            parity::take_count(asker, &receipt);
        } else if report.state == Some(State::Abort) {
            self.receipts.lock().ledger.abort(id);
            receipt.aborted = true;
        }
        Ok(receipt)
    }

    /// Whether what the engine announced up to now says where every token is. What it announced last may be on its way.
    pub(crate) fn is_explained(&self, plane: &Plane, name: &str, delivered: &Delivered) -> bool {
        let Ok(id) = self.receipt_id(name) else { return true };
        let receipt = self.receipts.lock().ledger.get(id).cloned();
        let Some(Receipt { decided, settled: None, .. }) = receipt else { return true };
        let account = Account::settle(&decided, delivered, &replay(plane, &decided));
        account.drift.is_none() && account.losses.of(Cause::Unknown) == 0
    }

    fn settle(
        &self,
        id: ReceiptId,
        name: &str,
        delivered: Delivered,
        replay: &Replay,
    ) -> Result<Receipt, PublicError> {
        let cached = delivered.cached;
        let mut receipts = self.receipts.lock();
        let account = receipts.ledger.settle(id, delivered, replay).map_err(|error| match error {
            SettleError::NoSuchReceipt => no_such_receipt(name),
            SettleError::Settled => {
                PublicError::new(ErrorCode::Conflict, format!("receipt {name} is settled already"))
                    .with_next("report what was delivered once")
            }
            SettleError::MoreThanPrompt => {
                PublicError::field("cached_tokens", format!("{cached} is more than the prompt has"))
            }
        })?;
        let receipt = receipts.ledger.get(id).cloned().ok_or_else(|| no_such_receipt(name))?;
        drop(receipts);
        if let Account { drift: Some(drift), .. } = account {
            say_drift(name, &receipt.decided, cached, drift);
            *self.last_drift.lock() = receipt.decided.candidates.first().map(|chosen| LastDrift {
                receipt: name.to_owned(),
                engine: chosen.engine.to_string(),
                rank: chosen.rank,
                kind: drift.as_str(),
                at_ms: kvplane_runtime::unix_ms(),
            });
        }
        Ok(receipt)
    }

    /// A receipt, while it is kept.
    pub(crate) fn receipt(&self, name: &str) -> Result<Receipt, PublicError> {
        let id = self.receipt_id(name)?;
        self.receipts.lock().ledger.get(id).cloned().ok_or_else(|| no_such_receipt(name))
    }

    /// Receipts that lost the most, with their names.
    pub(crate) fn worst(&self, count: usize) -> Vec<(String, Receipt)> {
        let receipts = self.receipts.lock();
        receipts
            .ledger
            .worst(count)
            .into_iter()
            .map(|receipt| (self.name(receipt.id), receipt.clone()))
            .collect()
    }
}

/// All that is needed to look into it: no text, no tokens.
fn say_drift(name: &str, decided: &Decided, cached: u64, drift: Drift) {
    let Some(chosen) = decided.candidates.first() else { return };
    error!(
        receipt = name,
        engine = &*chosen.engine,
        rank = chosen.rank,
        epoch = decided.epoch,
        sequence = decided.sequence,
        block_size = decided.block_size,
        prompt_tokens = decided.prompt,
        predicted = decided.predicted,
        delivered = cached,
        first_block = drift.block(),
        drift = drift.as_str(),
        "an exact prediction and what was delivered disagree, and the engine's events do not say why: a defect of kvplane or of the engine",
    );
}
