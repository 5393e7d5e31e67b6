//! What a client sends along with every call to say who it is.

use std::fmt;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

/// A bearer token, or none. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

/// The token has characters that cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnfitToken;

impl Bearer {
    /// Sends this token.
    pub fn new(token: &str) -> Result<Self, UnfitToken> {
        let fits = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        let header = if fits { format!("Bearer {token}").parse().ok() } else { None };
        let mut header: MetadataValue<Ascii> = header.ok_or(UnfitToken)?;
        header.set_sensitive(true);
        Ok(Self(Some(header)))
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(header) = &self.0 {
            request.metadata_mut().insert("authorization", header.clone());
        }
        Ok(request)
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Bearer(hidden)" } else { "Bearer(none)" })
    }
}

impl fmt::Display for UnfitToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token must be visible ASCII characters, without spaces")
    }
}

impl std::error::Error for UnfitToken {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_and_not_printed() {
        let mut bearer = Bearer::new("hush-hush").unwrap();
        let request = bearer.call(Request::new(())).unwrap();
        assert_eq!(request.metadata().get("authorization").unwrap(), "Bearer hush-hush");
        assert!(!format!("{bearer:?} {request:?}").contains("hush"));
        for unfit in ["", "a b", "a\n", "ä"] {
            assert_eq!(Bearer::new(unfit).unwrap_err(), UnfitToken, "{unfit:?}");
        }
    }
}
