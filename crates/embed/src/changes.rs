//! What happens to the streams of a plane that is followed, for subscribers.
//!
//! Nothing is queued for a slow reader beyond a few changes: they wait in the streams' own windows. What a
//! window no longer has, is reported as missed; the copy has it all.

use std::sync::Arc;
use std::time::Duration;

use kvplane_core::{Continuity, Cursor, Epoch, LinkTrouble, Trust};
use kvplane_ingest::{Engines, LinkStatus, News, Stream};
use kvplane_stream::{Entry, Loss};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::{Open, name_there};

/// Changes that are made ready for a reader.
const AHEAD: usize = 256;

/// Something that happened, reported after the copy has applied it.
#[derive(Debug, Clone)]
pub enum Change {
    /// The plane is followed.
    Connected,
    /// It is not any more; until it is again, nothing is credited.
    Disconnected {
        /// What keeps it from being followed, in one word.
        trouble: LinkTrouble,
    },
    /// Something happened to a stream.
    Stream {
        /// The engine's name at the plane.
        engine: Arc<str>,
        /// Its rank.
        rank: u32,
        /// Where the stream stands now.
        continuity: Continuity,
        /// What its word is worth now.
        trust: Trust,
        /// What happened.
        happened: Happened,
    },
}

/// What happened to a stream.
#[derive(Debug, Clone)]
pub enum Happened {
    /// A whole state took the place of what was held. Every stream begins with this, or with a reset.
    Loaded(Cursor),
    /// What was held is void; a whole state is on its way.
    Reset,
    /// A batch was applied.
    Batch(Arc<Entry>),
    /// It stands elsewhere.
    Continuity,
    /// The reader was too slow: what happened before this position is not reported any more.
    Lagged(Cursor),
    /// The plane no longer has it.
    Gone,
}

/// Changes as they happen, for one reader.
#[derive(Debug)]
pub struct Changes {
    open: Arc<Open>,
    next: mpsc::Receiver<Change>,
    stop: Stop,
}

/// Ends changes, also while their reader waits.
#[derive(Debug, Clone)]
pub struct Stop(CancellationToken);

impl Stop {
    /// There will be no more.
    pub fn now(&self) {
        self.0.cancel();
    }
}

impl Changes {
    /// Of the link, and of the streams if they are wanted.
    pub(crate) fn start(open: &Arc<Open>, streams: bool) -> Self {
        let (tell, next) = mpsc::channel(AHEAD);
        let (engines, link, stop) = (open.plane.watch(), open.link.watch(), open.stop.child_token());
        let engines = streams.then_some(engines);
        let telling = stop.clone().run_until_cancelled_owned(follow(engines, link, tell));
        kvplane_runtime::spawn_on(&open.handle, "tell changes", telling);
        Self { open: open.clone(), next, stop: Stop(stop) }
    }

    /// What ends them.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Waits for the next changes, at most `max`. `None`: there will be no more. None within the time: an
    /// empty list.
    pub fn wait(&mut self, max: usize, timeout: Duration) -> Option<Vec<Change>> {
        let mut changes = Vec::new();
        let next = self.next.recv_many(&mut changes, max.max(1));
        let received = self.open.handle.block_on(async { tokio::time::timeout(timeout, next).await });
        if received == Ok(0) { None } else { Some(changes) }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.stop.now();
    }
}

/// Tells of the link and of every stream that there is.
async fn follow(
    mut engines: Option<watch::Receiver<Engines>>,
    mut link: watch::Receiver<LinkStatus>,
    tell: mpsc::Sender<Change>,
) {
    // Their tasks end with this.
    let mut followers = JoinSet::new();
    let mut followed: Vec<Arc<Stream>> = Vec::new();
    let mut last = (false, None);
    loop {
        let now = {
            let status = link.borrow_and_update();
            (status.connected, status.trouble)
        };
        let change = match now {
            _ if now == last => None,
            (true, _) => Some(Change::Connected),
            (false, trouble) => {
                Some(Change::Disconnected { trouble: trouble.unwrap_or(LinkTrouble::Unreached) })
            }
        };
        last = now;
        if let Some(change) = change
            && tell.send(change).await.is_err()
        {
            return;
        }
        if let Some(engines) = &mut engines {
            let there = engines.borrow_and_update().clone();
            let there: Vec<Arc<Stream>> = there.iter().flat_map(|engine| engine.streams.clone()).collect();
            for stream in &there {
                if !followed.iter().any(|known| Arc::ptr_eq(known, stream)) {
                    followers.spawn(follow_stream(stream.clone(), tell.clone()));
                }
            }
            followed = there;
        }
        let others = async {
            match &mut engines {
                Some(engines) => engines.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = others => if changed.is_err() { return },
            changed = link.changed() => if changed.is_err() { return },
            // Of streams that are gone.
            Some(_) = followers.join_next() => {}
        }
    }
}

/// Tells of one stream until it is gone, or nobody wants to know.
async fn follow_stream(stream: Arc<Stream>, tell: mpsc::Sender<Change>) {
    let engine: Arc<str> = name_there(stream.id().engine.as_str()).into();
    let rank = stream.id().rank;
    // Gives what the reader now believes of where the stream stands.
    let last = async |happened: Happened| {
        let (trust, continuity) = stream.worth();
        let (engine, trust) = (engine.clone(), trust.level());
        let change = Change::Stream { engine, rank, continuity, trust, happened };
        tell.send(change).await.ok().map(|()| continuity)
    };
    let mut at = stream.cursor();
    let mut believed = last(whole(at)).await;
    while let Some(continuity) = believed {
        let news = tokio::select! {
            biased;
            () = stream.removed().cancelled() => {
                last(Happened::Gone).await;
                return;
            }
            news = stream.news_after(at, continuity, AHEAD) => news,
        };
        match news {
            Ok(News::Entries(entries)) => {
                for entry in entries {
                    at = Cursor { epoch: entry.epoch, sequence: entry.sequence };
                    believed = last(Happened::Batch(entry)).await;
                }
            }
            Ok(News::Continuity(_)) => believed = last(Happened::Continuity).await,
            Err(loss) => {
                at = stream.cursor();
                believed = last(if loss == Loss::Expired { Happened::Lagged(at) } else { whole(at) }).await;
            }
        }
    }
}

/// A state that was not followed up to this position.
fn whole(at: Cursor) -> Happened {
    if at.epoch == Epoch::UNKNOWN { Happened::Reset } else { Happened::Loaded(at) }
}
