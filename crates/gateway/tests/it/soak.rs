//! Many requests while engines fail: none is lost that could be served, none gets another's answer, and every
//! booking ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kvplane_gateway::{HealthOptions, Options};
use tokio::net::TcpStream;

use crate::engine::Conduct;
use crate::rig::{DEADLINE, Rig};

const REQUESTS: usize = 100_000;
const CLIENTS: usize = 32;

/// Numbers that are the same in each run, and no pattern.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[derive(Debug, Default)]
struct Counts {
    whole: AtomicU64,
    broken: AtomicU64,
    gone: AtomicU64,
    lost: AtomicU64,
    mixed: AtomicU64,
}

fn one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

async fn connect(rig: &Rig) -> http1::SendRequest<Full<Bytes>> {
    let socket = TcpStream::connect(rig.address).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    sender
}

async fn client(rig: Arc<Rig>, number: usize, next: Arc<AtomicUsize>, counts: Arc<Counts>) {
    let mut random = Random(0x9e37_79b9 + number as u64);
    let mut sender = connect(&rig).await;
    while next.fetch_add(1, Ordering::Relaxed) < REQUESTS {
        let marker = format!("<{number}-{}>", random.below(u64::MAX));
        let streams = random.below(2) == 0;
        let body = format!(
            r#"{{"model":"m","stream":{streams},"marker":"{marker}","messages":[{{"role":"user","content":"hi"}}]}}"#
        );
        if sender.ready().await.is_err() {
            sender = connect(&rig).await;
        }
        let sent =
            tokio::time::timeout(DEADLINE, sender.send_request(rig.request("/v1/chat/completions", &body)));
        let Ok(Ok(response)) = sent.await else {
            one(&counts.lost);
            sender = connect(&rig).await;
            continue;
        };
        let status = response.status().as_u16();
        let mut body = response.into_body();
        if streams && random.below(50) == 0 {
            // It goes behind the first event.
            drop(body.frame().await);
            drop(body);
            one(&counts.gone);
            sender = connect(&rig).await;
            continue;
        }
        let mut text = Vec::new();
        let mut cut = false;
        while let Some(frame) = tokio::time::timeout(DEADLINE, body.frame()).await.unwrap() {
            let Ok(frame) = frame else {
                cut = true;
                break;
            };
            text.extend_from_slice(frame.data_ref().unwrap());
        }
        let text = String::from_utf8(text).unwrap();
        let ours = text.matches(&marker).count();
        if text.matches('<').count() != ours {
            one(&counts.mixed);
        } else if streams && cut && text.contains("engine_lost") {
            one(&counts.broken);
            sender = connect(&rig).await;
        } else if status == 200
            && ours == if streams { 3 } else { 1 }
            && !cut
            && (!streams || text.ends_with("[DONE]\n\n"))
        {
            one(&counts.whole);
        } else {
            eprintln!("{status} cut={cut}: {text}");
            one(&counts.lost);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: make soak-gateway"]
async fn no_request_is_lost_that_could_be_served() {
    let health = HealthOptions {
        open: Duration::from_millis(20),
        open_max: Duration::from_millis(100),
        ..HealthOptions::default()
    };
    let options = Options { health, attempts: 4, retry_budget: 3.0, ..Options::default() };
    let rig = Arc::new(Rig::with(4, options, &[]).await);
    rig.plane.turns.store(true, Ordering::Relaxed);
    let (next, counts) = (Arc::new(AtomicUsize::new(0)), Arc::new(Counts::default()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(client(rig.clone(), number, next.clone(), counts.clone())))
        .collect();
    // The last engine is always well: there is always somebody who could serve.
    let (mut random, mut faults) = (Random(7), 0);
    while next.load(Ordering::Relaxed) < REQUESTS {
        let engine = &rig.engines[random.below(3) as usize];
        let conduct = match random.below(6) {
            0 => Conduct::Status(503),
            1 => Conduct::Status(429),
            2 => Conduct::DiesAfter(random.below(4) as usize),
            3 => Conduct::DiesAfter(0),
            _ => Conduct::Well,
        };
        faults += usize::from(!matches!(conduct, Conduct::Well));
        engine.set(conduct);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for client in clients {
        client.await.unwrap();
    }
    let plane = rig.plane.clone();
    for _ in 0..600 {
        if plane.picks.load(Ordering::Relaxed) == plane.ends.load(Ordering::Relaxed) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (picks, ends) = (plane.picks.load(Ordering::Relaxed), plane.ends.load(Ordering::Relaxed));
    println!(
        "{counts:?}, {faults} faults, {picks} bookings, {ends} ended, retries {:?}",
        rig.gateway.stats().labelled()[3]
    );
    assert_eq!((counts.lost.load(Ordering::Relaxed), counts.mixed.load(Ordering::Relaxed)), (0, 0));
    assert_eq!(picks, ends, "every booking ended, once");
    assert_eq!(rig.gateway.stats().in_flight(), 0);
}
