//! The fleet as people look at it: a picture every half second, made once for everybody who looks.
//!
//! ```text
//!  streams ──> picture (who looks? nobody: none is made) ──> each watcher: the cells that changed since it last looked
//! ```
//!
//! A cell carries the number of the picture in which it last changed, so that a watcher that skipped some
//! misses nothing.

mod cell;
mod history;
mod picture;

use std::sync::{Arc, Weak};
use std::time::Duration;

use kvplane_ingest::Plane;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::task::AbortOnDropHandle;

pub(crate) use cell::{Cell, Link};
pub(crate) use history::{History, Past};
pub(crate) use picture::Picture;

/// How often a picture is made.
const EVERY: Duration = Duration::from_millis(500);

/// Makes pictures while somebody looks.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    looking: Mutex<Weak<Looking>>,
}

/// What watchers share. The last one who goes ends it.
#[derive(Debug)]
pub(crate) struct Looking {
    pictures: watch::Receiver<Arc<Picture>>,
    _painter: AbortOnDropHandle<()>,
}

impl Watch {
    /// Begins to look.
    pub(crate) fn look(&self, plane: &Arc<Plane>) -> Arc<Looking> {
        let mut looking = self.looking.lock();
        if let Some(looking) = looking.upgrade() {
            return looking;
        }
        let (show, pictures) = watch::channel(Arc::new(Picture::first(plane)));
        let painter = kvplane_runtime::spawn("dashboard picture", paint(plane.clone(), show));
        let begun = Arc::new(Looking { pictures, _painter: AbortOnDropHandle::new(painter) });
        *looking = Arc::downgrade(&begun);
        begun
    }

    /// How many look. Pictures are made while somebody does.
    pub(crate) fn watchers(&self) -> u64 {
        self.looking.lock().strong_count() as u64
    }
}

impl Looking {
    /// The pictures, from the one that there is now on.
    pub(crate) fn pictures(&self) -> watch::Receiver<Arc<Picture>> {
        let mut pictures = self.pictures.clone();
        pictures.mark_changed();
        pictures
    }
}

async fn paint(plane: Arc<Plane>, show: watch::Sender<Arc<Picture>>) {
    let mut beat = interval_at(Instant::now() + EVERY, EVERY);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        let last = show.borrow().clone();
        let plane = plane.clone();
        // Streams may be busy: not on a thread that serves others. A picture that failed is left out.
        if let Ok(next) = tokio::task::spawn_blocking(move || last.next(&plane)).await {
            show.send_replace(Arc::new(next));
        }
    }
}
