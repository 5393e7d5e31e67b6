//! Tokens and certificates, and the roles that they stand for.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

use super::role::{Role, Roles};

/// Longer ones do not fit beside other headers.
const TOKEN_BYTES_MAX: usize = 4096;

/// A bearer token. Only its digest is kept: what is compared has one length, and nothing can print the token.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey {
    name: Arc<str>,
    role: Role,
    digest: [u8; 32],
}

/// A client certificate, by what its issuer says of its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateKey {
    /// What its caller is called in logs.
    pub name: Arc<str>,
    /// What its caller may do.
    pub role: Role,
    /// Which certificates it is.
    pub subject: Subject,
}

/// How a certificate is recognised. Names are compared as they are: no wildcards, and letters' case counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// One of its subject alternative names: a DNS name, a URI, an address or an e-mail address.
    San(String),
    /// The only common name of its subject.
    CommonName(String),
}

/// What a client's certificate says of its owner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) alternative_names: Vec<String>,
    pub(crate) common_name: Option<String>,
}

/// Everything that callers can prove who they are with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    tokens: Vec<TokenKey>,
    certificates: Vec<CertificateKey>,
}

/// Why a set of keys cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// The token cannot be sent in a header.
    #[error("token {name:?}: must be 1 to 4096 visible ASCII characters, without spaces")]
    Unfit {
        /// What it is called.
        name: String,
    },
    /// One secret would have two owners.
    #[error("tokens {first:?} and {second:?} are the same")]
    SameToken {
        /// The one.
        first: String,
        /// The other.
        second: String,
    },
    /// One certificate would have two owners.
    #[error("certificates {first:?} and {second:?} are recognised by the same name")]
    SameCertificate {
        /// The one.
        first: String,
        /// The other.
        second: String,
    },
    /// Keys were there when the listeners were opened, and are gone.
    #[error("auth: no token and no certificate is left; access cannot be opened while running")]
    Gone,
}

/// Who calls, and how that is known.
#[derive(Debug, Clone)]
pub struct Caller {
    /// What the caller is called: the key's name, or where the caller is.
    pub name: Arc<str>,
    /// What the caller may do.
    pub roles: Roles,
    /// How that is known.
    pub proof: Proof,
    /// The other end of the connection.
    pub peer: Option<SocketAddr>,
}

impl Caller {
    /// Somebody whom nobody asked.
    pub fn anyone(peer: Option<SocketAddr>) -> Self {
        Self { name: "anyone".into(), roles: Roles::ANYONE, proof: Proof::Nothing, peer }
    }
}

/// How it is known who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// By a bearer token.
    Token,
    /// By a client certificate.
    Certificate,
    /// By the network that the caller is in.
    Network,
    /// No keys are configured, and the caller is on this machine.
    Loopback,
    /// No keys are configured, and the listener was opened to everybody.
    Nothing,
}

impl Proof {
    /// In one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Certificate => "certificate",
            Self::Network => "network",
            Self::Loopback => "loopback",
            Self::Nothing => "nothing",
        }
    }
}

// === impl TokenKey ===

impl TokenKey {
    /// A token, with what its owner is called and may do.
    pub fn new(name: &str, role: Role, token: &str) -> Result<Self, KeysError> {
        let fits =
            (1..=TOKEN_BYTES_MAX).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_graphic());
        if !fits {
            return Err(KeysError::Unfit { name: name.to_owned() });
        }
        Ok(Self { name: name.into(), role, digest: digest(token.as_bytes()) })
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKey").field("name", &self.name).field("role", &self.role).finish_non_exhaustive()
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

// === impl Keys ===

impl Keys {
    /// Checks that no two keys are equal.
    pub fn new(tokens: Vec<TokenKey>, certificates: Vec<CertificateKey>) -> Result<Self, KeysError> {
        let pair = |first: &str, second: &str| (first.to_owned(), second.to_owned());
        for (at, second) in tokens.iter().enumerate() {
            if let Some(first) = tokens[..at].iter().find(|first| first.digest == second.digest) {
                let (first, second) = pair(&first.name, &second.name);
                return Err(KeysError::SameToken { first, second });
            }
        }
        for (at, second) in certificates.iter().enumerate() {
            if let Some(first) = certificates[..at].iter().find(|first| first.subject == second.subject) {
                let (first, second) = pair(&first.name, &second.name);
                return Err(KeysError::SameCertificate { first, second });
            }
        }
        Ok(Self { tokens, certificates })
    }

    /// Whether there is none: then it is not asked who calls.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.certificates.is_empty()
    }

    /// Whose token it is. Takes as long for one that nobody has as for one that somebody has.
    pub(super) fn by_token(&self, token: &[u8]) -> Option<(Arc<str>, Role)> {
        let given = digest(token);
        let mut found = u32::MAX;
        for (at, key) in self.tokens.iter().enumerate() {
            let same: Choice = key.digest.ct_eq(&given);
            found.conditional_assign(&(at as u32), same);
        }
        self.tokens.get(found as usize).map(|key| (key.name.clone(), key.role))
    }

    /// Whose certificate it is.
    pub(super) fn by_certificate(&self, identity: &Identity) -> Option<(Arc<str>, Role)> {
        let known = self.certificates.iter().find(|key| match &key.subject {
            Subject::San(name) => identity.alternative_names.contains(name),
            Subject::CommonName(name) => identity.common_name.as_ref() == Some(name),
        });
        known.map(|key| (key.name.clone(), key.role))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str, token: &str) -> TokenKey {
        TokenKey::new(name, Role::Read, token).unwrap()
    }

    #[test]
    fn a_token_is_its_owners_alone() {
        let keys = Keys::new(vec![token("a", "one"), token("b", "two")], Vec::new()).unwrap();
        let owner = |given: &str| keys.by_token(given.as_bytes()).map(|(name, _)| name.to_string());
        assert_eq!(owner("one").as_deref(), Some("a"));
        assert_eq!(owner("two").as_deref(), Some("b"));
        for wrong in ["", "on", "one ", "ONE", "three"] {
            assert_eq!(owner(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn keys_that_cannot_be_distinguished_or_sent_are_refused() {
        for unfit in ["", "a b", "a\n", "ä", &"x".repeat(TOKEN_BYTES_MAX + 1)] {
            let error = TokenKey::new("a", Role::Read, unfit).unwrap_err();
            assert_eq!(error, KeysError::Unfit { name: "a".to_owned() });
        }
        let error = Keys::new(vec![token("a", "one"), token("b", "one")], Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "tokens \"a\" and \"b\" are the same");
        let certificate = |name: &str| CertificateKey {
            name: name.into(),
            role: Role::Admin,
            subject: Subject::San("x".to_owned()),
        };
        assert!(Keys::new(Vec::new(), vec![certificate("a"), certificate("b")]).is_err());
    }

    #[test]
    fn names_of_certificates_are_compared_as_they_are() {
        let key = |subject| CertificateKey { name: "a".into(), role: Role::Read, subject };
        let by_san = Keys::new(Vec::new(), vec![key(Subject::San("router.example".to_owned()))]).unwrap();
        let by_name = Keys::new(Vec::new(), vec![key(Subject::CommonName("router".to_owned()))]).unwrap();
        let identity = |names: &[&str], common: Option<&str>| Identity {
            alternative_names: names.iter().map(|&name| name.to_owned()).collect(),
            common_name: common.map(str::to_owned),
        };
        assert!(by_san.by_certificate(&identity(&["other", "router.example"], None)).is_some());
        assert!(by_san.by_certificate(&identity(&["*.example"], Some("router.example"))).is_none());
        assert!(by_name.by_certificate(&identity(&["router"], None)).is_none());
        assert!(by_name.by_certificate(&identity(&[], Some("router"))).is_some());
    }

    #[test]
    fn nothing_prints_a_token() {
        let keys = Keys::new(vec![token("a", "hush-hush")], Vec::new()).unwrap();
        let printed = format!("{keys:?}");
        assert!(!printed.contains("hush") && printed.contains("\"a\""), "{printed}");
    }
}
