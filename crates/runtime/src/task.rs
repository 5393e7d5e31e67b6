//! Tasks.

#![allow(clippy::disallowed_methods, reason = "this is where tasks are spawned")]

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures::FutureExt as _;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::error;

/// Spawns a task on the current runtime. If it panics, the log names it, whether or not somebody waits for
/// it.
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    spawn_on(&Handle::current(), name, future)
}

/// [`spawn`] on a given runtime.
pub fn spawn_on<F>(runtime: &Handle, name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    runtime.spawn(async move {
        match AssertUnwindSafe(future).catch_unwind().await {
            Ok(output) => output,
            Err(panic) => {
                // The message was printed by the panic hook. It may hold what a peer sent, so it is not
                // repeated here.
                error!(task = name, "a task panicked");
                resume_unwind(panic)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Log {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn a_panic_is_logged_with_the_task_name_and_reaches_who_waits() {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tracing::subscriber::with_default(subscriber, || {
            let ended = runtime.block_on(async { spawn("doomed", async { panic!("on purpose") }).await });
            assert!(ended.unwrap_err().is_panic());
        });
        let said = String::from_utf8(log.0.lock().clone()).unwrap();
        assert!(said.contains("task=\"doomed\""), "{said}");
        assert!(!said.contains("on purpose"), "{said}");
    }

    #[tokio::test]
    async fn a_task_returns_what_it_has() {
        assert_eq!(spawn("adder", async { 1 + 1 }).await.unwrap(), 2);
    }
}
