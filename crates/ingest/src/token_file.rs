//! Secrets that are kept in files.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// More than any token: a wrong path must not be read without end.
const BYTES_MAX: u64 = 64 << 10;

/// Why a file gives no token. Never says what is in it.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It cannot be read.
    #[error("token file {path}: {error}; correct the path, or let kvplane's user read it")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// There is nothing in it.
    #[error("token file {0}: is empty; write the token into it, on one line")]
    Empty(PathBuf),
    /// What is in it is no token.
    #[error("token file {0}: must have one line of visible ASCII characters; write the token alone into it")]
    Unfit(PathBuf),
}

/// The token in a file, without the line's end.
pub fn read_token(path: &Path) -> Result<String, TokenFileError> {
    let unreadable = |error| TokenFileError::Unreadable { path: path.to_owned(), error };
    let mut bytes = Vec::new();
    fs::File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes)).map_err(unreadable)?;
    let token = String::from_utf8(bytes).map_err(|_| TokenFileError::Unfit(path.to_owned()))?;
    let token = token.trim_end();
    if token.is_empty() {
        return Err(TokenFileError::Empty(path.to_owned()));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(TokenFileError::Unfit(path.to_owned()));
    }
    Ok(token.to_owned())
}
