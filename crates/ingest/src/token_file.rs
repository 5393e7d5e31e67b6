//! Secrets that are kept in files.

use std::io;
use std::path::{Path, PathBuf};

use kvplane_transport::read_small_file;

/// More than any token.
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

/// The token in a regular file, without the line's end.
pub fn read_token(path: &Path) -> Result<String, TokenFileError> {
    let unreadable = |error| TokenFileError::Unreadable { path: path.to_owned(), error };
    let bytes = read_small_file(path, BYTES_MAX).map_err(unreadable)?;
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
