//! Everything that the ranks of an engine hold, for somebody who follows all of them: ranks come and go,
//! streams lose their continuity, and the engine may be removed.
//!
//! ```text
//! follow_ranks ──> follow (a task per rank) ── snapshot ──> RankReader::load
//!    engines             │                  └─ entries ───> RankReader::follow
//!    that there are      └─ another life, out of reach ───> RankReader::forget
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use kvplane_core::Continuity;
use kvplane_stream::{Entry, Snapshot, Transition};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::plane::{Engine, Engines};
use crate::stream::{News, Stream, StreamStatus};

/// Entries read from a rank at a time.
const READ: usize = 256;
/// Blocks that are taken on a worker's thread. More go to the blocking pool: some milliseconds of work.
const FEW_BLOCKS: usize = 4_096;

/// Reads one rank. It is never called by two at a time, and from the blocking pool where there is much to do.
pub trait RankReader: Send + 'static {
    /// Whether a stream that looks like this is read. While it is not, the rank holds nothing.
    fn wants(&self, status: &StreamStatus) -> bool;

    /// The rank holds this, and nothing else.
    fn load(&mut self, snapshot: &Snapshot);

    /// What happened next. False to be given a snapshot again, or to be asked again what is wanted.
    fn follow(&mut self, entry: &Entry) -> bool;

    /// The rank holds nothing, or nothing that is known.
    fn forget(&mut self);
}

/// Keeps a reader for every rank of an engine, for as long as there `is_it`. A rank that goes is forgotten;
/// when the engine does, its readers are just let go of.
pub async fn follow_ranks<R: RankReader>(
    mut engines: watch::Receiver<Engines>,
    is_it: impl Fn(&Engine) -> bool,
    begin: impl Fn(&Arc<Stream>) -> R,
) {
    let mut ranks: HashMap<u32, Following<R>> = HashMap::new();
    loop {
        let all = engines.borrow_and_update().clone();
        let Some(now) = all.iter().find(|engine| is_it(engine)) else { break };
        for mut gone in ranks.extract_if(|_, following| !following.is_of(now)).map(|(_, gone)| gone) {
            // Only when it has ended, nothing of the rank can come behind this.
            if let Some(reader) = gone.end().await {
                let _ = aside(reader, RankReader::forget).await;
            }
        }
        for stream in &now.streams {
            ranks.entry(stream.id().rank).or_insert_with(|| Following::start(stream, begin(stream)));
        }
        if engines.changed().await.is_err() {
            break;
        }
    }
    for following in ranks.values_mut() {
        following.end().await;
    }
}

/// One rank that is followed.
struct Following<R> {
    stream: Arc<Stream>,
    leave: CancellationToken,
    task: AbortOnDropHandle<Option<R>>,
}

impl<R: RankReader> Following<R> {
    fn start(stream: &Arc<Stream>, reader: R) -> Self {
        let leave = CancellationToken::new();
        let task = kvplane_runtime::spawn("follow a rank", follow(stream.clone(), reader, leave.clone()));
        Self { stream: stream.clone(), leave, task: AbortOnDropHandle::new(task) }
    }

    fn is_of(&self, engine: &Engine) -> bool {
        let now = engine.stream(self.stream.id().rank);
        now.is_some_and(|now| Arc::ptr_eq(now, &self.stream))
    }

    /// Waits until nothing is read any more.
    async fn end(&mut self) -> Option<R> {
        self.leave.cancel();
        (&mut self.task).await.ok().flatten()
    }
}

/// Reads a stream until it is left. Nothing is left half done: work on the blocking pool is waited for.
async fn follow<R: RankReader>(stream: Arc<Stream>, mut reader: R, leave: CancellationToken) -> Option<R> {
    loop {
        // From here on what the rank holds is what its next snapshot says; until then it holds nothing.
        if !reader.wants(&stream.status()) {
            reader = aside(reader, RankReader::forget).await?;
            if leave.run_until_cancelled(wanted(&stream, &mut reader)).await.is_none() {
                return Some(reader);
            }
        }
        let Some(snapshot) = leave.run_until_cancelled(stream.snapshot()).await else { return Some(reader) };
        let (mut cursor, mut continuity) = (snapshot.cursor, snapshot.continuity);
        reader = aside(reader, move |reader| reader.load(&snapshot)).await?;
        loop {
            let news = async {
                tokio::select! {
                    biased;
                    // A protocol without a trust field must not go on serving a stream that fell silent.
                    () = stream.stale() => None,
                    news = stream.news_after(cursor, continuity, READ) => Some(news),
                }
            };
            let Some(news) = leave.run_until_cancelled(news).await else { return Some(reader) };
            let Some(news) = news else { break };
            let entries = match news {
                Ok(News::Entries(entries)) => entries,
                Ok(News::Continuity(Continuity::Down)) => break,
                Ok(News::Continuity(now)) => {
                    continuity = now;
                    continue;
                }
                Err(_) => {
                    if stream.cursor().epoch != cursor.epoch {
                        // Another life: nothing of what was read is true any more.
                        reader = aside(reader, RankReader::forget).await?;
                    }
                    break;
                }
            };
            cursor.sequence = entries.last().map_or(cursor.sequence, |last| last.sequence);
            continuity = entries.iter().rev().find_map(|entry| entry.continuity).unwrap_or(continuity);
            let goes_on;
            (reader, goes_on) = take(reader, entries).await?;
            if !goes_on {
                break;
            }
        }
    }
}

/// Waits until a stream is wanted. Whatever may make it so is an entry, another life, or another continuity.
async fn wanted<R: RankReader>(stream: &Stream, reader: &mut R) {
    loop {
        let (cursor, continuity) = (stream.cursor(), stream.continuity());
        if reader.wants(&stream.status()) {
            return;
        }
        let _ = stream.news_after(cursor, continuity, 1).await;
    }
}

/// Gives entries to a reader, up to the first after which it does not go on.
async fn take<R: RankReader>(mut reader: R, entries: Vec<Arc<Entry>>) -> Option<(R, bool)> {
    if is_much(&entries) {
        let work = move || {
            let goes_on = entries.iter().all(|entry| reader.follow(entry));
            (reader, goes_on)
        };
        return spawn_blocking(work).await.ok();
    }
    let goes_on = entries.iter().all(|entry| reader.follow(entry));
    Some((reader, goes_on))
}

/// Whether so much happens that a worker must not do it: a clear may take all that there is.
fn is_much(entries: &[Arc<Entry>]) -> bool {
    let blocks = |transition: &Transition| match transition {
        Transition::Stored { blocks, .. } => blocks.len(),
        Transition::Removed { hashes, .. } => hashes.len(),
        Transition::Cleared => FEW_BLOCKS + 1,
    };
    entries.iter().flat_map(|entry| &entry.transitions).map(blocks).sum::<usize>() > FEW_BLOCKS
}

/// Does something with a reader on the blocking pool. `None` when the process ends, or the reader has a
/// defect.
async fn aside<R: RankReader>(mut reader: R, work: impl FnOnce(&mut R) + Send + 'static) -> Option<R> {
    let work = move || {
        work(&mut reader);
        reader
    };
    spawn_blocking(work).await.ok()
}
