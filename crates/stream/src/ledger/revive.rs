//! A ledger that was loaded goes on where it was saved.

use std::sync::Arc;

use kvplane_core::{Cursor, Epoch};

use super::{Ledger, Window};
use crate::options::JournalOptions;
use crate::persist::Damaged;

impl Ledger {
    /// Makes a loaded ledger one that can be used, with an empty window behind `cursor`.
    pub(crate) fn revive(
        &mut self,
        options: Arc<JournalOptions>,
        cursor: Cursor,
        last_event_id: u64,
    ) -> Result<(), Damaged> {
        if cursor.epoch != self.epoch || !self.sides.is_sound() {
            return Err(Damaged("its parts are of different moments"));
        }
        self.state.revive(options.state)?;
        self.window = Arc::new(Window::new(options.max_batches, options.max_bytes, self.epoch));
        self.window.restart_at(cursor, last_event_id);
        self.window.begin_behind(self.state.digest());
        self.window.set_continuity(self.continuity);
        self.options = options;
        Ok(())
    }

    /// Numbers begin anew above all that were given out, and the state stays as it is: subscribers may have been sent
    /// entries that are not remembered.
    pub(crate) fn renumber(&mut self, unix_ms: u64) {
        self.epoch = Epoch::mint(unix_ms, Some(self.epoch), self.window.highest());
        self.window.restart(self.epoch);
        self.window.begin_behind(self.state.digest());
    }
}
