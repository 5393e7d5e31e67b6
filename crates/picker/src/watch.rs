//! A file of endpoints, followed while it changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::endpoints::{self, EndpointsError};
use crate::rules::Rules;
use crate::yaml::MAX_TEXT;
use kvplane_inference::{Endpoint, Pool};

/// How often the file is looked at. Its content is compared, so that a file that is swapped behind a link is
/// noticed, too.
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

/// Rules with what a file says, besides some endpoints that stay. A file that is missing or wrong changes
/// nothing, and is logged once. Returns after the first read, which has to succeed.
pub async fn follow_file(
    fixed: Vec<Endpoint>,
    path: PathBuf,
    stop: CancellationToken,
) -> Result<watch::Receiver<Arc<Rules>>, EndpointsError> {
    let mut last = read(path.clone()).await.map_err(EndpointsError::Shape)?;
    let with = move |pool: &Pool| Rules::of(fixed.iter().chain(pool.endpoints()).cloned().collect());
    let (rules, followed) = watch::channel(with(&endpoints::read(&last)?));
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
                        rules.send_replace(with(&pool));
                        last = text;
                    }
                    failed = None;
                }
                Err(error) => {
                    if failed.as_ref() != Some(&error) {
                        error!(file = %path.display(), error, "cannot read the endpoints; keeping the pool");
                    }
                    failed = Some(error);
                }
            }
        }
    };
    kvplane_runtime::spawn("follow endpoints", async move {
        stop.run_until_cancelled_owned(following).await;
    });
    Ok(followed)
}
