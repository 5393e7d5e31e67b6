//! Certificates and keys from files.

use std::path::Path;

use kvplane_transport::read_small_file;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// More than any list of certificates.
const BYTES_MAX: u64 = 4 << 20;

/// Certificates to trust.
pub fn roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

/// The certificates of a file, at least one, in their order.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| error.to_string())?;
    if found.is_empty() { Err("no certificate in it".to_owned()) } else { Ok(found) }
}

/// The private key of a file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| error.to_string())
}

/// The bytes of a file with certificates or a key.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    read_small_file(path, BYTES_MAX).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_not_read_without_end() {
        for path in ["/dev/zero", "/dev/null", "/"] {
            let error = certificates(Path::new(path)).unwrap_err();
            assert!(error.contains("not a regular file"), "{path}: {error}");
        }
    }
}
