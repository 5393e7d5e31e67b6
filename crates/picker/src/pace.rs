//! Fewer and larger reads of a connection on which nothing but answers pass.
//!
//! Every read wakes a task and costs three system calls, and most often brings one event of some dozen bytes.
//! While no request of the connection waits for its pick, and reads come in quick succession, the next read
//! waits a moment, and brings all that came meanwhile. A moment is what a runtime's clock can tell: a
//! millisecond, two at most. A pause between events passes at once.

use std::any::Any;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tonic::transport::server::Connected;

/// How long the next read waits.
const MOMENT: Duration = Duration::from_millis(1);
/// Reads that are no further apart come in quick succession.
const QUICK: Duration = Duration::from_micros(500);
/// Reads in a row before the next one waits: an answer of a few events never does.
const MANY: u32 = 32;

/// Requests of one connection that wait for their pick.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waiting(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(Waiting);

impl Waiting {
    pub(crate) fn begin(&self) -> Turn {
        self.0.fetch_add(1, Ordering::Relaxed);
        Turn(self.clone())
    }

    fn is_anyone(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Decides whether the next read waits.
#[derive(Debug)]
struct Pacer {
    within: Duration,
    last: Option<Instant>,
    quick: u32,
}

impl Pacer {
    /// Nothing was read. Reads `within` each other come in quick succession.
    fn new(within: Duration) -> Self {
        Self { within, last: None, quick: 0 }
    }

    /// Something was read at `now`. `all`: there was room for more. Says whether the next read waits.
    fn has_read(&mut self, now: Instant, all: bool, is_waited_for: bool) -> bool {
        let quick = self.last.is_some_and(|last| now.saturating_duration_since(last) <= self.within);
        self.last = Some(now);
        self.quick = if quick && !is_waited_for { self.quick.saturating_add(1) } else { 0 };
        self.quick >= MANY && all
    }

    /// The read that waited is due. What comes within it counts as quick.
    fn is_due(&mut self, now: Instant) {
        self.last = Some(now);
    }
}

/// A connection whose reads are paced.
#[derive(Debug)]
pub struct Paced<IO> {
    io: IO,
    waiting: Waiting,
    pacer: Pacer,
    moment: Duration,
    sleep: Option<Pin<Box<Sleep>>>,
    is_asleep: bool,
}

impl<IO> Paced<IO> {
    /// Paces a connection.
    pub fn new(io: IO) -> Self {
        Self::with(io, QUICK, MOMENT)
    }

    fn with(io: IO, quick: Duration, moment: Duration) -> Self {
        let pacer = Pacer::new(quick);
        Self { io, waiting: Waiting::default(), pacer, moment, sleep: None, is_asleep: false }
    }
}

/// What a request knows of its connection.
#[derive(Clone)]
pub struct PacedInfo {
    pub(crate) waiting: Waiting,
    /// What the connection that is paced says of itself.
    below: Arc<dyn Any + Send + Sync>,
}

impl PacedInfo {
    /// What the connection that is paced says of itself.
    pub fn below<I: Any>(&self) -> Option<&I> {
        self.below.downcast_ref()
    }
}

impl<IO: Connected> Connected for Paced<IO> {
    type ConnectInfo = PacedInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        PacedInfo { waiting: self.waiting.clone(), below: Arc::new(self.io.connect_info()) }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Paced<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.is_asleep {
            if let Some(sleep) = &mut this.sleep {
                ready!(sleep.as_mut().poll(cx));
            }
            this.is_asleep = false;
            this.pacer.is_due(kvplane_runtime::now());
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            let all = buffer.remaining() > 0;
            if this.pacer.has_read(kvplane_runtime::now(), all, this.waiting.is_anyone()) {
                let until = tokio::time::Instant::now() + this.moment;
                match &mut this.sleep {
                    Some(sleep) => sleep.as_mut().reset(until),
                    None => this.sleep = Some(Box::pin(tokio::time::sleep_until(until))),
                }
                this.is_asleep = true;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Paced<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use futures::future::poll_fn;

    const LONG: Duration = Duration::from_hours(1);
    const MANY_READS: usize = MANY as usize;

    /// Gives a chunk whenever it is read.
    struct Chunks(usize);

    impl AsyncRead for Chunks {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            buffer.put_slice(&vec![7; self.0]);
            Poll::Ready(Ok(()))
        }
    }

    impl Connected for Chunks {
        type ConnectInfo = &'static str;

        fn connect_info(&self) -> Self::ConnectInfo {
            "who is there"
        }
    }

    async fn read(paced: &mut Paced<Chunks>) {
        let mut room = [0; 64];
        poll_fn(|cx| Pin::new(&mut *paced).poll_read(cx, &mut ReadBuf::new(&mut room))).await.unwrap();
    }

    /// Whether that many reads came at once.
    fn at_once(paced: &mut Paced<Chunks>, reads: usize) -> bool {
        (0..reads).all(|_| read(paced).now_or_never().is_some())
    }

    #[tokio::test]
    async fn the_next_read_waits_where_many_came_quickly() {
        let mut paced = Paced::with(Chunks(10), LONG, LONG);
        assert!(at_once(&mut paced, MANY_READS + 1));
        assert!(!at_once(&mut paced, 1));
        // And comes to its end, again and again.
        let mut paced = Paced::with(Chunks(10), LONG, Duration::from_millis(1));
        for _ in 0..MANY_READS + 10 {
            read(&mut paced).await;
        }
        assert_eq!(paced.pacer.quick, MANY + 9);
    }

    #[tokio::test]
    async fn nothing_waits_beside_a_request_that_waits_for_its_pick() {
        let mut paced = Paced::with(Chunks(10), LONG, LONG);
        let info = paced.connect_info();
        assert_eq!(info.below::<&str>(), Some(&"who is there"));
        let turn = info.waiting.begin();
        assert!(at_once(&mut paced, 10 * MANY_READS));
        drop(turn);
        assert!(at_once(&mut paced, MANY_READS));
        assert!(!at_once(&mut paced, 1));
    }

    #[tokio::test]
    async fn a_read_that_left_something_is_followed_at_once() {
        let mut paced = Paced::with(Chunks(64), LONG, LONG);
        assert!(at_once(&mut paced, 10 * MANY_READS));
    }

    #[test]
    fn reads_that_are_apart_never_wait_and_a_pause_begins_anew() {
        let mut pacer = Pacer::new(QUICK);
        let mut now = kvplane_runtime::now();
        for _ in 0..1_000 {
            now += QUICK + Duration::from_nanos(1);
            assert!(!pacer.has_read(now, true, false));
        }
        for _ in 0..MANY - 1 {
            assert!(!pacer.has_read(now, true, false));
        }
        assert!(pacer.has_read(now, true, false));
        // What waited is there at once, and the next read waits, too; nothing there, and reads are read as they come.
        now += MOMENT * 2;
        pacer.is_due(now);
        assert!(pacer.has_read(now, true, false));
        now += MOMENT * 2;
        pacer.is_due(now);
        now += QUICK * 2;
        assert!(!pacer.has_read(now, true, false));
    }
}
