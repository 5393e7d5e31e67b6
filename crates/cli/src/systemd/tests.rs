//! A datagram socket in the place of systemd.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::os::linux::net::SocketAddrExt as _;
use std::path::PathBuf;
use std::sync::mpsc;

use super::*;

/// Far beyond anything that should take: only a hang reaches it.
const PATIENCE: Duration = Duration::from_mins(1);

/// A manager's socket under a name that no other test has.
fn listen(test: &str) -> (UnixDatagram, String) {
    let name = format!("kvplane-{}-{test}", std::process::id());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    (socket, format!("@{name}"))
}

fn heard(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 1024];
    let length = socket.recv(&mut bytes).unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

fn manager(socket: &str, watchdog: Option<&str>, watched: Option<&str>) -> io::Result<Manager> {
    Manager::new(&Left {
        socket: Some(socket.as_ref()),
        watchdog: watchdog.map(AsRef::as_ref),
        watched: watched.map(AsRef::as_ref),
    })
}

fn say_ready(manager: &Manager, status: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(manager.ready(status));
}

#[test]
fn that_it_is_ready_is_reported_again_while_the_socket_is_full() {
    let (socket, name) = listen("full");
    let manager = manager(&name, None, None).unwrap();
    while manager.send("FILLED=1").is_ok() {}
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| while heard(&socket) != "READY=1\nSTATUS=late" {});
        say_ready(&manager, "late");
        reader.join().unwrap();
    });
}

#[test]
fn a_life_is_reported_in_order() {
    let (socket, name) = listen("life");
    let manager = manager(&name, None, None).unwrap();
    say_ready(&manager, "two\nlines");
    assert_eq!(heard(&socket), "READY=1\nSTATUS=two lines");
    let instant = || {
        manager.reloading();
        let reported = heard(&socket);
        assert!(reported.starts_with("RELOADING=1\n"), "{reported}");
        let micros = reported.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).unwrap();
        micros.parse::<u64>().unwrap()
    };
    assert!(instant() <= instant());
    manager.stopping(Duration::from_secs(30));
    // The manager waits for the drain, and for what comes after it.
    assert!(heard(&socket).starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=45000000\n"));
}

#[test]
fn a_socket_may_be_a_path() {
    let path = PathBuf::from(format!("/tmp/kvplane-{}-notify", std::process::id()));
    let socket = UnixDatagram::bind(&path).unwrap();
    say_ready(&manager(path.to_str().unwrap(), None, None).unwrap(), "here");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(heard(&socket), "READY=1\nSTATUS=here");
}

#[test]
fn without_a_manager_nothing_is_sent() {
    let nobody = Manager::new(&Left { watchdog: Some("1000".as_ref()), ..Left::default() }).unwrap();
    assert!(nobody.socket.is_none() && nobody.patience.is_none());
    say_ready(&nobody, "unheard");
    // One that has gone keeps nobody from serving.
    let (socket, name) = listen("gone");
    let manager = manager(&name, None, None).unwrap();
    drop(socket);
    say_ready(&manager, "unheard");
}

#[test]
fn what_cannot_be_understood_is_named() {
    let error = manager("vsock:2:1234", None, None).unwrap_err();
    assert!(error.to_string().contains("NOTIFY_SOCKET"), "{error}");
    for (watchdog, watched, named) in
        [("soon", None, "WATCHDOG_USEC"), ("1000", Some("me".as_ref()), "WATCHDOG_PID")]
    {
        let left = Left { watchdog: Some(watchdog.as_ref()), watched, ..Left::default() };
        let error = patience(&left).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn a_watchdog_that_cannot_be_understood_does_not_keep_ready_from_being_reported() {
    let (socket, name) = listen("nonsense");
    for (watchdog, watched) in [("soon", None), ("1000", Some("me"))] {
        let manager = manager(&name, Some(watchdog), watched).unwrap();
        assert_eq!(manager.patience, None);
        say_ready(&manager, "here");
        assert_eq!(heard(&socket), "READY=1\nSTATUS=here");
    }
}

#[test]
fn only_the_watched_process_shows_life() {
    let own = std::process::id().to_string();
    let patience = |watchdog, watched| manager("@name", watchdog, watched).unwrap().patience;
    assert_eq!(patience(Some("30000000"), None), Some(Duration::from_secs(30)));
    assert_eq!(patience(Some("30000000"), Some(&own)), Some(Duration::from_secs(30)));
    assert_eq!(patience(Some("30000000"), Some("1")), None);
    assert_eq!(patience(Some("0"), None), None);
    assert_eq!(patience(None, None), None);
}

#[test]
fn life_is_shown_while_workers_run_and_not_while_all_are_stuck() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (socket, name) = listen("stuck");
    let manager = manager(&name, Some("2000"), None).unwrap();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let (let_go, held) = mpsc::sync_channel::<()>(1);
    let (tell_stuck, stuck) = mpsc::sync_channel(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    never = manager.show_life(|| Duration::ZERO) => match never {},
                }
            });
        });
        assert_eq!([heard(&socket), heard(&socket)], ["WATCHDOG=1", "WATCHDOG=1"]);

        // The one worker hangs until it is let go.
        runtime.spawn(async move {
            tell_stuck.send(()).unwrap();
            let _ = held.recv();
        });
        stuck.recv().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let still_shown = (0..1000).take_while(|_| socket.recv(&mut [0; 64]).is_ok()).count();
        // More than can have waited in the socket.
        assert!(still_shown < 1000);

        drop(let_go);
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(heard(&socket), "WATCHDOG=1");
        drop(end);
    });
}

#[test]
fn no_life_is_shown_while_a_socket_thread_is_stuck() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (socket, name) = listen("round");
    let manager = manager(&name, Some("2000"), None).unwrap();
    // Going round the fourth time alone.
    let asked = std::cell::Cell::new(0);
    let longest_round = || {
        asked.set(asked.get() + 1);
        if asked.get() == 4 { STUCK_AFTER / 2 } else { STUCK_AFTER * 2 }
    };
    runtime.block_on(async {
        let reported = async {
            while asked.get() < 4 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = reported => {}
            never = manager.show_life(longest_round) => match never {},
        }
    });
    assert_eq!(heard(&socket), "WATCHDOG=1");
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut [0; 64]).is_err(), "the others show none");
}
