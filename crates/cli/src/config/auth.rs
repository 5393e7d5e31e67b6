//! `[auth]`: who may ask. Secrets are in files or in the environment, never in the tree: that is printed by
//! `--dump-config`, kept in repositories and pasted into questions.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use kvplane_access::{CertificateKey, Keys, Role, Subject, TokenKey};
use kvplane_ingest::read_token;
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use tracing::warn;

/// Others than the owner and the group may read.
const READABLE_BY_OTHERS: u32 = 0o004;

/// The variable that clients take their token from.
const CLIENT_TOKEN: &str = "KVPLANE_TOKEN";

/// Who may ask. Without any key it is not asked who calls, and only callers on this machine are served.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AuthConfig {
    /// Bearer tokens.
    #[serde(deserialize_with = "without_values", skip_serializing_if = "Vec::is_empty")]
    pub(crate) token: Vec<TokenConfig>,
    /// Client certificates. They need `listen.tls.client_ca`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) certificate: Vec<CertificateConfig>,
}

/// A bearer token: where it is, and what its owner may do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenConfig {
    /// What its owner is called in logs.
    pub(crate) name: String,
    /// What its owner may do.
    pub(crate) role: Role,
    /// The file that it is in; white space at its end does not count. This or `env`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<PathBuf>,
    /// The variable of the environment that it is in. This or `file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) env: Option<String>,
}

/// A client certificate: how it is recognised, and what its owner may do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CertificateConfig {
    /// What its owner is called in logs.
    pub(crate) name: String,
    /// What its owner may do.
    pub(crate) role: Role,
    /// One of its subject alternative names. This or `common_name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) san: Option<String>,
    /// The common name of its subject. This or `san`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) common_name: Option<String>,
}

impl AuthConfig {
    /// What callers with a key are called.
    pub(crate) fn names(&self) -> Vec<&str> {
        let tokens = self.token.iter().map(|token| token.name.as_str());
        tokens.chain(self.certificate.iter().map(|certificate| certificate.name.as_str())).collect()
    }

    /// Reads the tokens. `shown` is whether clients can show certificates at all.
    pub(super) fn keys(&self, shown: bool) -> anyhow::Result<Keys> {
        let tokens = self.token.iter().enumerate();
        let tokens = tokens
            .map(|(at, token)| token.read().with_context(|| format!("auth.token[{at}] ({:?})", token.name)));
        let tokens = tokens.collect::<anyhow::Result<_>>()?;
        if !self.certificate.is_empty() && !shown {
            bail!("auth.certificate: needs listen.tls.client_ca, or clients cannot show any");
        }
        let certificates = self.certificate.iter().enumerate();
        let certificates = certificates.map(|(at, certificate)| {
            certificate.key().with_context(|| format!("auth.certificate[{at}] ({:?})", certificate.name))
        });
        Ok(Keys::new(tokens, certificates.collect::<anyhow::Result<_>>()?)?)
    }
}

impl TokenConfig {
    fn read(&self) -> anyhow::Result<TokenKey> {
        check_name(&self.name)?;
        let token = match (&self.file, &self.env) {
            (Some(file), None) => {
                warn_if_exposed(file);
                read_token(file)?
            }
            (None, Some(name)) => variable(name).ok_or_else(|| {
                anyhow!("env: {name} is not set in this process's environment: set it, or name a file")
            })?,
            _ => bail!("needs either file or env, where the token is"),
        };
        Ok(TokenKey::new(&self.name, self.role, token.trim_end())?)
    }
}

impl CertificateConfig {
    fn key(&self) -> anyhow::Result<CertificateKey> {
        check_name(&self.name)?;
        let subject = match (self.san.clone(), self.common_name.clone()) {
            (Some(san), None) if !san.is_empty() => Subject::San(san),
            (None, Some(name)) if !name.is_empty() => Subject::CommonName(name),
            _ => bail!("needs either san or common_name, by which it is recognised"),
        };
        Ok(CertificateKey { name: self.name.as_str().into(), role: self.role, subject })
    }
}

fn check_name(name: &str) -> anyhow::Result<()> {
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        bail!("name: must be a word without spaces, such as router-1");
    }
    Ok(())
}

fn warn_if_exposed(file: &Path) {
    let mode = std::fs::metadata(file).map_or(0, |metadata| metadata.permissions().mode());
    if mode & READABLE_BY_OTHERS != 0 {
        warn!(file = %file.display(), "token file is readable by every user on this machine");
    }
}

/// The token that a client command sends when no file is named.
pub(crate) fn client_token() -> Option<String> {
    variable(CLIENT_TOKEN).filter(|token| !token.is_empty())
}

/// The HTTP address of the kvplane that a client command asks when none is named.
pub(crate) fn usual_server() -> String {
    let server = variable("KVPLANE_SERVER").filter(|server| !server.is_empty());
    server.unwrap_or_else(|| "http://127.0.0.1:8090".to_owned())
}

fn variable(name: &str) -> Option<String> {
    std::env::vars_os().find(|(key, _)| key == name).and_then(|(_, value)| value.into_string().ok())
}

/// Reads a value; errors do not repeat it. Somebody may have written the token itself where its
/// file belongs.
fn without_values<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<T, D::Error> {
    let value = toml::Value::deserialize(from)?;
    value.try_into().map_err(|error: toml::de::Error| {
        let message = error.message();
        let hidden = match (message.find('"'), message.rfind('"')) {
            (Some(first), Some(last)) => format!("{}…{}", &message[..=first], &message[last..]),
            _ => message.to_owned(),
        };
        D::Error::custom(hidden)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AuthConfig, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_token_in_the_wrong_place_is_not_repeated() {
        for text in [
            "token = \"hush\"",
            "token = [\"hush\"]",
            "token = 'a\"hush\"b'",
            "[[token]]\nname = \"a\"\nrole = \"read\"\ntoken = \"hush\"",
            "[[token]]\nname = \"a\"\nrole = \"read\"\nfile = { secret = \"hush\" }",
        ] {
            let error = read(text).unwrap_err();
            assert!(!error.contains("hush"), "{error}");
        }
        let error = read("[[token]]\nname = \"a\"\nrole = \"root\"").unwrap_err();
        assert!(error.contains("role") || error.contains("root"), "{error}");
    }

    #[test]
    fn a_key_says_where_it_is_and_nothing_twice() {
        let keys = |text: &str, shown| format!("{:#}", read(text).unwrap().keys(shown).unwrap_err());
        let token = "[[token]]\nname = \"a\"\nrole = \"read\"\n";
        assert!(keys(token, false).contains("either file or env"));
        assert!(keys(&format!("{token}file = \"/nowhere/x\""), false).contains("/nowhere/x"));
        assert!(keys(&format!("{token}env = \"KVPLANE_NOT_SET\""), false).contains("is not set"));
        let certificate = "[[certificate]]\nname = \"a\"\nrole = \"read\"\n";
        assert!(keys(certificate, true).contains("either san or common_name"));
        assert!(keys(&format!("{certificate}san = \"x\""), false).contains("client_ca"));
        assert!(read("").unwrap().keys(false).unwrap().is_empty());
    }
}
