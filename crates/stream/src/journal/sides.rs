//! Groups beside the main one: what each needs to go on from a boundary, and which main blocks it holds.

use std::sync::Arc;

use kvplane_core::{Marks, Resumption};

use super::Journal;

/// What is known of the other groups.
#[derive(Debug, Default)]
pub(super) struct Sides {
    resumption: Arc<Resumption>,
    changed: bool,
    /// Blocks whose holdings changed since the last entry.
    touched: Vec<u64>,
}

impl Sides {
    /// What is needed, where that changed since the last entry.
    pub(super) fn take_news(&mut self) -> Option<Arc<Resumption>> {
        std::mem::take(&mut self.changed).then(|| self.resumption.clone())
    }
}

impl Journal {
    /// What the stream needs besides its main blocks.
    pub fn resumption(&self) -> &Arc<Resumption> {
        &self.sides.resumption
    }

    /// The marks of all main blocks that have any.
    pub fn all_marks(&self) -> Vec<(u64, Marks)> {
        Vec::new()
    }

    /// The marks of what was touched since the last entry.
    pub(super) fn take_marks(&mut self) -> Vec<(u64, Marks)> {
        self.sides.touched.clear();
        Vec::new()
    }
}
