//! A fleet of very small engines: each has an HTTP server that can be asked to flush, and publishes what it
//! holds.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use kvplane_socket::{Endpoint, PubOptions, PubSocket, PublishContext};
use kvplane_wire::encode::{Profile, encode_batch};
use kvplane_wire::{OwnedEvent, OwnedHash, OwnedStored};
use parking_lot::Mutex;
use socket2::{SockRef, Socket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Blocks that an engine holds before it is flushed.
pub(crate) const BLOCKS: u32 = 64;
/// As many as one thread serves well.
const SOCKETS_PER_CONTEXT: usize = 250;

/// What an engine does when it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Flushes, publishes the clear, and says so.
    Lives,
    /// Accepts the connection, reads the request, and says nothing for ever.
    Hangs,
    /// Has no listener.
    Refuses,
}

pub(crate) struct Fleet {
    pub(crate) roles: Vec<Role>,
    /// Where each is asked, and where it publishes.
    pub(crate) addresses: Vec<(SocketAddr, String)>,
    pub(crate) requests: Arc<Requests>,
    orders: SyncSender<Order>,
    /// Bound, and not listening: nobody else gets the port.
    _silent: Vec<TcpSocket>,
}

/// What the publishing thread is to do.
enum Order {
    /// All engines store their blocks, once all are heard.
    Store,
    Clear(usize),
    /// All engines clear their caches this many times, unasked.
    ClearAll(usize),
}

impl Fleet {
    pub(crate) async fn start(roles: Vec<Role>) -> Self {
        let (orders, inbox) = sync_channel(4 * roles.len());
        let (sockets, events) = publishers(roles.len());
        std::thread::spawn(move || publish(sockets, &inbox));
        let requests = Arc::new(Requests::default());
        let (mut addresses, mut silent) = (Vec::new(), Vec::new());
        for ((number, role), events) in roles.iter().enumerate().zip(events) {
            let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let address = if *role == Role::Refuses {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind(any).unwrap();
                let address = socket.local_addr().unwrap();
                silent.push(socket);
                address
            } else {
                let listener = TcpListener::bind(any).await.unwrap();
                let address = listener.local_addr().unwrap();
                tokio::spawn(serve(listener, number, *role, requests.clone(), orders.clone()));
                address
            };
            addresses.push((address, events));
        }
        Self { roles, addresses, requests, orders, _silent: silent }
    }

    /// Every engine stores its blocks.
    pub(crate) fn store(&self) {
        self.orders.send(Order::Store).unwrap();
    }

    /// Every engine clears its cache by itself, again and again.
    pub(crate) fn clear(&self, times: usize) {
        self.orders.send(Order::ClearAll(times)).unwrap();
    }
}

fn publishers(count: usize) -> (Vec<PubSocket>, Vec<String>) {
    let contexts: Vec<_> = (0..count.div_ceil(SOCKETS_PER_CONTEXT)).map(|_| PublishContext::new()).collect();
    let sockets: Vec<_> = (0..count)
        .map(|number| {
            let options = PubOptions::new(Endpoint::Bind("tcp://127.0.0.1:0".to_owned()));
            PubSocket::open(&contexts[number / SOCKETS_PER_CONTEXT], &options).unwrap()
        })
        .collect();
    let addresses = sockets.iter().map(|socket| socket.last_endpoint().to_owned()).collect();
    (sockets, addresses)
}

/// One thread publishes for all.
fn publish(mut sockets: Vec<PubSocket>, inbox: &Receiver<Order>) {
    let mut sequences = vec![0_u64; sockets.len()];
    let mut send = |sockets: &mut [PubSocket], number: usize, event: OwnedEvent| {
        let batch = encode_batch(Profile::Vllm0_32, sequences[number] as f64, Some(0), &[event]);
        sockets[number].send(b"", sequences[number], &batch).unwrap();
        sequences[number] += 1;
    };
    while let Ok(order) = inbox.recv() {
        match order {
            Order::Store => {
                for number in 0..sockets.len() {
                    assert!(sockets[number].wait_for_subscriptions(1, Duration::from_mins(2)));
                    send(&mut sockets, number, stored(number));
                }
            }
            Order::Clear(number) => send(&mut sockets, number, OwnedEvent::Cleared),
            Order::ClearAll(times) => {
                for number in (0..sockets.len()).flat_map(|number| std::iter::repeat_n(number, times)) {
                    send(&mut sockets, number, OwnedEvent::Cleared);
                }
            }
        }
    }
}

/// One prompt, of its own for each engine.
fn stored(number: usize) -> OwnedEvent {
    let hash = |block: u32| (number as u64) << 32 | u64::from(block);
    OwnedEvent::Stored(OwnedStored {
        block_hashes: (1..=BLOCKS).map(|block| OwnedHash::Unsigned(hash(block))).collect(),
        token_ids: (0..BLOCKS * 16).map(|token| token + number as u32).collect(),
        block_size: 16,
        medium: Some("GPU".to_owned()),
        group: Some(0),
        spec_kind: Some("full_attention".to_owned()),
        ..OwnedStored::default()
    })
}

async fn serve(
    listener: TcpListener,
    number: usize,
    role: Role,
    requests: Arc<Requests>,
    orders: SyncSender<Order>,
) {
    while let Ok((mut socket, _)) = listener.accept().await {
        let (requests, orders) = (requests.clone(), orders.clone());
        tokio::spawn(async move {
            let Some(line) = read_request(&mut socket).await else { return };
            let is_flush = line.starts_with("POST /reset_prefix_cache");
            let flight = is_flush.then(|| requests.came(&socket));
            if role == Role::Hangs {
                while matches!(socket.read(&mut [0; 64]).await, Ok(1..)) {}
            } else if is_flush {
                orders.send(Order::Clear(number)).unwrap();
            }
            // Before the answer is there: with it the other side may go on.
            flight.inspect(|&flight| requests.went(flight));
            let (status, body) =
                if is_flush { ("200 OK", "{\"success\": true}") } else { ("404 Not Found", "") };
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = socket.write_all(answer.as_bytes()).await;
        });
    }
}

/// The first line of a request without a body.
async fn read_request(socket: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        if socket.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
    String::from_utf8(read).ok()?.lines().next().map(str::to_owned)
}

/// Requests for a flush that have no answer yet.
#[derive(Default)]
pub(crate) struct Requests {
    open: Mutex<HashMap<usize, Socket>>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// All that ever came.
    pub(crate) came: usize,
    /// The most that were open at the same time.
    pub(crate) most_open: usize,
}

impl Requests {
    pub(crate) fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    fn came(&self, socket: &TcpStream) -> usize {
        let (mut open, mut counts) = (self.open.lock(), self.counts.lock());
        counts.came += 1;
        open.insert(counts.came, SockRef::from(socket).try_clone().unwrap());
        if open.len() > counts.most_open {
            // One that the other side has given up is not open, whether its task has noticed or not.
            open.retain(|_, socket| !is_closed(socket));
            counts.most_open = counts.most_open.max(open.len());
        }
        counts.came
    }

    fn went(&self, flight: usize) {
        self.open.lock().remove(&flight);
    }
}

fn is_closed(socket: &Socket) -> bool {
    match socket.peek(&mut [MaybeUninit::uninit()]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}
