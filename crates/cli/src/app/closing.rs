//! The end of a stop that takes too long.

use std::sync::Arc;
use std::time::Duration;

use kvplane_ingest::Plane;
use tracing::warn;

/// What closing sockets may take beyond the drain timeout.
pub(crate) const MARGIN: Duration = Duration::from_millis(500);

/// Exits when a stop is not done after a time. On a thread of its own: a stream that is busy with a batch
/// holds up the thread of its socket, and whatever else waits for that stream, the runtime's threads
/// included.
pub(super) fn exit_after(plane: &Arc<Plane>, time: Duration, exit: impl FnOnce() + Send + 'static) {
    let plane = plane.clone();
    let wait = move || {
        std::thread::sleep(time);
        let busy: Vec<_> =
            plane.streams().filter(|stream| stream.is_busy()).map(|stream| stream.id().to_string()).collect();
        warn!(
            busy_streams = busy.join(", "),
            "stop timeout reached; exiting without waiting for what is left"
        );
        exit();
    };
    if let Err(error) = std::thread::Builder::new().name("kvp-exit".into()).spawn(wait) {
        warn!(%error, "no thread to end a stop that takes too long");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use clap::Parser as _;
    use kvplane_ingest::{Origin, PlaneOptions};
    use kvplane_server::{Options, Service};

    use super::*;
    use crate::args::{Args, Command};

    /// Only a hang reaches it.
    const DEADLINE: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn a_stop_does_not_wait_for_a_busy_stream() {
        let plane = Plane::start(Vec::new(), &PlaneOptions::default()).unwrap();
        let fleet = Service::new(plane.clone(), Options::default()).fleet();
        let args =
            Args::try_parse_from(["kvplane", "serve", "--engine", "vllm=tcp://127.0.0.1:9,id=e,model=m"]);
        let Command::Serve(args) = args.unwrap().command else { unreachable!() };
        let plans = crate::config::load(&args, std::iter::empty()).unwrap().plans().unwrap();
        fleet.add(plans, Origin::Config).await.unwrap();
        let stream = plane.streams().next().unwrap();
        let ((begin, begun), (end, ended)) = (sync_channel(1), sync_channel::<()>(1));
        let busy = std::thread::spawn(move || {
            stream.feed(|_, _| {
                begin.send(()).unwrap();
                let _ = ended.recv();
            });
        });
        begun.recv().unwrap();
        let (exit, exited) = sync_channel(1);
        exit_after(&plane, Duration::from_millis(1), move || exit.send(()).unwrap());
        exited.recv_timeout(DEADLINE).unwrap();
        end.send(()).unwrap();
        busy.join().unwrap();
        plane.shutdown();
    }
}
