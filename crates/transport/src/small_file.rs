//! Small files that a configuration names: certificates, keys and tokens.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Reads a regular file of at most `max` bytes.
///
/// Anything else is rejected: a device may have no end (`/dev/zero`), and a FIFO waits for its writer. May
/// block on a slow file system, so call it off the runtime's workers.
pub fn read_small_file(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    // Without this flag, opening a FIFO waits for a writer. On regular files it has no effect.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let message = format!("larger than {max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_small_regular_files_are_read() {
        let folder = std::env::temp_dir().join(format!("kvplane-small-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let small = folder.join("small");
        fs::write(&small, "12345678").unwrap();
        assert_eq!(read_small_file(&small, 8).unwrap(), b"12345678");
        assert_eq!(read_small_file(&small, 7).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        // Mounted secrets are links.
        let link = folder.join("link");
        std::os::unix::fs::symlink(&small, &link).unwrap();
        assert_eq!(read_small_file(&link, 8).unwrap(), b"12345678");

        let fifo = folder.join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        for path in [Path::new("/dev/zero"), fifo.as_path(), folder.as_path()] {
            let error = read_small_file(path, 8).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        let missing = read_small_file(&folder.join("missing"), 8).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(&folder).unwrap();
    }
}
