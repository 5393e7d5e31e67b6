//! Hashes that engines send as bytes.

use triomphe::ThinArc;

use crate::persist::{Damaged, Persist, Source};

/// A whole digest, shared by all that name it, behind one word.
#[derive(Clone, PartialEq, Eq)]
pub struct Wide(ThinArc<(), u8>);

impl From<&[u8]> for Wide {
    fn from(digest: &[u8]) -> Self {
        Self(ThinArc::from_header_and_slice((), digest))
    }
}

impl std::ops::Deref for Wide {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.slice
    }
}

impl std::fmt::Debug for Wide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Persist for Wide {
    fn save(&self, out: &mut Vec<u8>) {
        u32::try_from(self.len()).unwrap_or(u32::MAX).save(out);
        out.extend_from_slice(self);
    }

    fn load(from: &mut Source<'_>) -> Result<Self, Damaged> {
        let length = from.length()?;
        from.take(length).map(Self::from)
    }
}
