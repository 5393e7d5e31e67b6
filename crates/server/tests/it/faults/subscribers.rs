//! Subscribers that are late, slow or gone, and the plane's own end.

use kvplane_ingest::PlaneOptions;
use kvplane_proto::kvplane::v1::{self as proto, ResetReason};
use tonic::Code;

use crate::rig::{Engine, Rig, held};

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_inside_the_window_gets_exactly_what_follows() {
    let mut engine = Engine::plain();
    engine.work(5);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    let mut first = rig.subscribe(None).await;
    first.catch_up(&rig).await;
    let (cursor, batches) = (first.cursor, first.batches);
    engine.work(5);
    rig.exact(0, &engine).await;
    first.catch_up(&rig).await;
    let mut second = rig.subscribe(Some(cursor)).await;
    second.catch_up(&rig).await;
    assert!(second.resets.is_empty(), "no snapshot is sent");
    assert_eq!(second.batches, first.batches - batches);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_and_future_cursors_get_a_snapshot() {
    let mut engine = Engine::plain();
    engine.work(3);
    let rig = Rig::with_options(&[&engine], PlaneOptions { max_batches: 5, ..PlaneOptions::default() }).await;
    rig.exact(0, &engine).await;
    let mut first = rig.subscribe(None).await;
    first.catch_up(&rig).await;
    let old = first.cursor;
    engine.work(8);
    rig.exact(0, &engine).await;
    let future = proto::Cursor { sequence: rig.stream(0).cursor().sequence + 100, ..old };
    for (cursor, reason) in [(old, ResetReason::Expired), (future, ResetReason::Future)] {
        let mut subscriber = rig.subscribe(Some(cursor)).await;
        subscriber.catch_up(&rig).await;
        assert_eq!(subscriber.resets, [reason]);
        assert_eq!(subscriber.blocks, held(&rig.stream(0)).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_subscriber_is_refilled_from_the_window() {
    let mut engine = Engine::plain();
    let rig = Rig::over(&[&engine]).await;
    rig.live(0).await;
    let (mut slow, mut keen) = (rig.subscribe(None).await, rig.subscribe(None).await);
    slow.next().await.unwrap();
    // More than the connection's buffers hold, and less than the window does.
    for _ in 0..100 {
        engine.work(4);
        keen.catch_up(&rig).await;
    }
    rig.exact(0, &engine).await;
    for subscriber in [&mut slow, &mut keen] {
        subscriber.catch_up(&rig).await;
        assert_eq!(subscriber.resets, [ResetReason::Start]);
        assert_eq!(subscriber.blocks, held(&rig.stream(0)).await);
    }
    assert_eq!(slow.batches, keen.batches);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_that_stops_reading_is_ended_with_a_loss_and_others_feel_nothing() {
    let mut engine = Engine::plain();
    let rig =
        Rig::with_options(&[&engine], PlaneOptions { max_batches: 200, ..PlaneOptions::default() }).await;
    rig.live(0).await;
    let mut lazy = rig.subscribe(None).await;
    let mut keen = rig.subscribe(None).await;
    lazy.next().await.unwrap();
    keen.catch_up(&rig).await;
    // Far more than the connection's buffers and the window hold together.
    for _ in 0..300 {
        engine.work(4);
        rig.exact(0, &engine).await;
        keen.catch_up(&rig).await;
    }
    rig.exact(0, &engine).await;
    keen.catch_up(&rig).await;
    assert_eq!(keen.resets, [ResetReason::Start]);
    assert_eq!(keen.blocks, held(&rig.stream(0)).await);
    let loss = loop {
        if let Err(status) = lazy.next().await {
            break status;
        }
    };
    assert_eq!(loss.code(), Code::DataLoss, "{loss}");
    // It comes back with its cursor and gets everything.
    let mut back = rig.subscribe(Some(lazy.cursor)).await;
    back.catch_up(&rig).await;
    assert_eq!(back.resets, [ResetReason::Expired]);
    assert_eq!(back.blocks, keen.blocks);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_subscriptions_with_a_status() {
    let mut engine = Engine::plain();
    engine.work(2);
    let rig = Rig::over(&[&engine]).await;
    rig.exact(0, &engine).await;
    let mut subscriber = rig.subscribe(None).await;
    subscriber.catch_up(&rig).await;
    rig.stop().await;
    let end = loop {
        if let Err(status) = subscriber.next().await {
            break status;
        }
    };
    assert_eq!(end.code(), Code::Unavailable, "{end}");
}
