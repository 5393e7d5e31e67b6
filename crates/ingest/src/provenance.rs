//! Who found an engine, and what was decided by which rule.

use parking_lot::RwLock;

/// Why an engine that was found is described as it is. It changes while the engine stays.
#[derive(Debug, Default)]
pub struct Provenance(RwLock<Finding>);

/// What is known of it now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finding {
    /// The source that found it.
    pub source: String,
    /// What it was found to be: `namespace/pod`, the leader first.
    pub places: Vec<String>,
    /// Key, value, and the rule that decided.
    pub decided: Vec<(&'static str, String, String)>,
    /// What is wrong, and how to fix it.
    pub remarks: Vec<String>,
    /// When its container started, Unix milliseconds: a hint where the engine says nothing itself.
    pub started_ms: Option<u64>,
}

impl Provenance {
    /// What is known now.
    pub fn get(&self) -> Finding {
        self.0.read().clone()
    }

    /// More is known.
    pub fn set(&self, finding: Finding) {
        *self.0.write() = finding;
    }

    /// When its container started.
    pub(crate) fn started_ms(&self) -> Option<u64> {
        self.0.read().started_ms
    }
}
