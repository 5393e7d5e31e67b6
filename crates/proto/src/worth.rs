//! What a message says of a stream's worth. Every client reads it here, so that none credits what another
//! does not.

use kvplane_core::{Continuity, Trust};

use crate::kvplane::v1;

/// Where a stream stands; `None` where the message does not say. A value that this build does not know is not
/// credited: it is read as [`Continuity::Recovering`].
pub fn continuity(number: i32) -> Option<Continuity> {
    match v1::Continuity::try_from(number) {
        Ok(v1::Continuity::Unspecified) => None,
        Ok(v1::Continuity::Connecting) => Some(Continuity::Connecting),
        Ok(v1::Continuity::Live) => Some(Continuity::Live),
        Ok(v1::Continuity::Down) => Some(Continuity::Down),
        Ok(v1::Continuity::Recovering) | Err(_) => Some(Continuity::Recovering),
    }
}

/// The level of a stream. A value that this build does not know, and none at all, is read as
/// [`Trust::Unsound`].
pub fn trust_level(trust: &v1::Trust) -> Trust {
    match trust.level() {
        v1::TrustLevel::Exact => Trust::Exact,
        v1::TrustLevel::Lower => Trust::Lower,
        v1::TrustLevel::Unverified => Trust::Unverified,
        v1::TrustLevel::Unsound | v1::TrustLevel::Unspecified => Trust::Unsound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_credited() {
        assert_eq!(continuity(0), None);
        assert_eq!(continuity(v1::Continuity::Live.into()), Some(Continuity::Live));
        assert_eq!(continuity(v1::Continuity::Down.into()), Some(Continuity::Down));
        for unknown in [-1, 77] {
            assert_eq!(continuity(unknown), Some(Continuity::Recovering));
            assert_eq!(trust_level(&v1::Trust { level: unknown, ..Default::default() }), Trust::Unsound);
        }
        assert_eq!(trust_level(&v1::Trust::default()), Trust::Unsound);
    }
}
