//! Statistics from a page of metrics.

use std::time::Duration;

use kvplane_core::EngineKind;
use kvplane_report::{StatsNews, StatsOptions, StatsSource, follow_stats};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::script::DEADLINE;

/// A page that changes.
async fn serve(listener: TcpListener, page: watch::Receiver<&'static str>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let body = *page.borrow();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        let mut request = [0; 1_024];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all((head + body).as_bytes()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_cannot_be_read_is_said_to_be_old_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let good = "vllm:num_requests_running 64\nvllm:num_requests_waiting 64\n";
    let (page, now) = watch::channel(good);
    tokio::spawn(serve(listener, now));
    let source = StatsSource { engine: "e".to_owned(), kind: EngineKind::Vllm, url };
    let options = StatsOptions { interval: Duration::from_millis(10), ..StatsOptions::default() };
    let (tell, mut reported) = mpsc::channel(64);
    tokio::spawn(follow_stats(source, options, move |news| {
        let _ = tell.try_send(news);
    }));
    let mut next = async || tokio::time::timeout(DEADLINE, reported.recv()).await.unwrap().unwrap();
    assert!(matches!(next().await, StatsNews::Are(stats) if (stats.pressure - 0.5).abs() < 1e-6));
    // Half of the load is no load.
    page.send_replace("vllm:num_requests_running 64\n");
    while next().await != StatsNews::Stale {}
    page.send_replace(good);
    assert!(matches!(next().await, StatsNews::Are(_)), "it is said to be old once");
}
