//! A progress line on a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

/// What takes less needs no word.
const PATIENCE: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_millis(250);

/// Runs something that may take long. After a second, standard error says what is waited for, if it is a
/// terminal.
pub(crate) async fn while_waiting<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    let begun = kvplane_runtime::now();
    let mut shown = false;
    loop {
        tokio::select! {
            done = &mut work => {
                if shown {
                    eprint!("\r\x1b[K");
                }
                return done;
            }
            () = tokio::time::sleep(EVERY) => {}
        }
        if begun.elapsed() >= PATIENCE {
            shown = true;
            eprint!("\r\x1b[K{what} … {} s", begun.elapsed().as_secs());
            let _ = std::io::stderr().flush();
        }
    }
}
