//! A file of endpoints, followed while it changes.

use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::endpoints::{self, EndpointsError};
use crate::pool::Pool;
use crate::service::Picker;
use crate::yaml::MAX_TEXT;

/// How often the file is looked at. Its content is compared, so that a file that is swapped behind a link is noticed, too.
const EVERY: Duration = Duration::from_millis(500);

/// Reads a file of endpoints.
async fn read(path: PathBuf) -> Result<String, String> {
    let read = tokio::task::spawn_blocking(move || {
        let size = std::fs::metadata(&path).map_err(|error| error.to_string())?.len();
        if size > MAX_TEXT as u64 {
            return Err(format!("has more than {MAX_TEXT} bytes"));
        }
        std::fs::read_to_string(&path).map_err(|error| error.to_string())
    });
    read.await.unwrap_or_else(|_| Err("could not be read".to_owned()))
}

/// Keeps the picker's pool at what a file says. A file that is missing or wrong changes nothing, and is told once. Returns after the
/// first read with the task that goes on; the first read has to succeed.
pub async fn follow_file(
    picker: Picker,
    fixed: Vec<crate::Endpoint>,
    path: PathBuf,
    stop: CancellationToken,
) -> Result<(), EndpointsError> {
    let mut last = read(path.clone()).await.map_err(EndpointsError::Shape)?;
    let with = move |pool: &Pool| Pool::new(fixed.iter().chain(pool.endpoints()).cloned().collect());
    picker.set_pool(with(&endpoints::read(&last)?));
    let following = async move {
        let mut failed: Option<String> = None;
        loop {
            tokio::time::sleep(EVERY).await;
            let now = read(path.clone()).await;
            if now.as_ref() == Ok(&last) && failed.is_none() {
                continue;
            }
            let pool = now.and_then(|text| match endpoints::read(&text) {
                Ok(pool) => Ok((text, pool)),
                Err(error) => Err(error.to_string()),
            });
            match pool {
                Ok((text, pool)) => {
                    if text != last {
                        info!(file = %path.display(), endpoints = pool.endpoints().len(), "endpoints changed");
                        picker.set_pool(with(&pool));
                        last = text;
                    }
                    failed = None;
                }
                Err(error) => {
                    if failed.as_ref() != Some(&error) {
                        error!(file = %path.display(), error, "endpoints not read: the pool stays as it is");
                    }
                    failed = Some(error);
                }
            }
        }
    };
    kvplane_runtime::spawn("follow endpoints", async move {
        stop.run_until_cancelled_owned(following).await;
    });
    Ok(())
}
