//! Values that callers give, checked once for every protocol.

use std::time::Duration;

use kvplane_core::PublicError;

/// More than any operation takes; a typo is likelier.
const SECONDS_MAX: f64 = 3600.0;

/// A time that may be nothing.
pub(crate) fn seconds(field: &'static str, value: f64) -> Result<Duration, PublicError> {
    if !value.is_finite() || !(0.0..=SECONDS_MAX).contains(&value) {
        return Err(PublicError::field(
            field,
            format!("{value} is not a number of seconds from 0 to {SECONDS_MAX}"),
        ));
    }
    // Checked above; a fraction below a nanosecond is none.
    Duration::try_from_secs_f64(value).map_err(|error| PublicError::field(field, error))
}

/// A time that is something.
pub(crate) fn positive_seconds(field: &'static str, value: f64) -> Result<Duration, PublicError> {
    match seconds(field, value)? {
        Duration::ZERO => Err(PublicError::field(field, "must be above 0")),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_finite_and_not_negative() {
        for value in [0.0, -0.0, 0.5, 3600.0] {
            assert_eq!(seconds("timeout_s", value).unwrap(), Duration::from_secs_f64(value.abs()));
        }
        for value in [-1.0, -1e-9, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 3600.5, 1e300] {
            let error = seconds("timeout_s", value).unwrap_err();
            assert_eq!(error.field, Some("timeout_s"), "{value}");
        }
        assert!(positive_seconds("deadline_s", 0.0).is_err() && positive_seconds("deadline_s", 0.1).is_ok());
    }
}
