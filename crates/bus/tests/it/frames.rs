//! Frames as bytes, and what only time shows.

use std::time::Duration;

use bytes::Bytes;
use kvplane_bus::frame::MAX_FRAME;
use kvplane_bus::{Declare, Follower, Frame, Item, Kind, NoFrame, Position, Replica as _, Standing};
use proptest::prelude::*;

use crate::world::{Copy, DOWN_AFTER, NOW, stream};

fn frame(number: u64, items: Vec<Item>) -> Frame {
    Frame { plane: "a".to_owned(), run: 1, number, items, stream_created: 1, claims: 0 }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut follower = Follower::<Copy>::new(DOWN_AFTER);
        follower.message(NOW, (1, 1), bytes.into());
    }

    #[test]
    fn a_frame_with_other_bits_panics_nobody(at in 0..60_usize, bit in 0..8_u8) {
        let head = Kind::Head(Position { epoch: 1, sequence: 2, low: 3, high: 4 });
        let items = vec![declare(), Item { stream: 0, generation: 1, kind: Some(head) }];
        let mut bytes = frame(1, items).write().to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        Follower::<Copy>::new(DOWN_AFTER).message(NOW, (1, 1), bytes.into());
    }
}

fn declare() -> Item {
    let declare = Declare { engine: "e0".to_owned(), ..Declare::default() };
    Item { stream: 0, generation: 0, kind: Some(Kind::Declare(declare)) }
}

#[test]
fn what_is_written_is_what_is_read() {
    let whole = frame(3, vec![declare()]);
    assert_eq!(Frame::read(whole.write()), Ok(whole));
    assert_eq!(Frame::read(Bytes::from(vec![0; MAX_FRAME + 1])), Err(NoFrame::TooLarge));
    assert_eq!(Frame::read(Bytes::new()), Err(NoFrame::Malformed), "no frame has the number 0");
}

#[test]
fn an_owner_that_is_silent_has_no_live_stream_and_one_that_is_gone_is_down() {
    let mut follower = Follower::<Copy>::new(DOWN_AFTER);
    let at = Position { epoch: 1, sequence: 1 << 20, low: 7, high: 0 };
    let head = || Item { stream: 0, generation: 1, kind: Some(Kind::Head(at)) };
    follower.message(NOW, (1, 1), frame(1, vec![declare(), head()]).write());
    let asks = follower.take_asks();
    let [kvplane_bus::Ask::Fetch { id, .. }] = asks[..] else { panic!("{asks:?}") };
    let state = Copy { at: Some(at), life: 7, batches: 0 };
    follower.fetched(id, &stream(0), None, kvplane_bus::Fetched::State(state));
    // The head that had waited agrees.
    let standing = |follower: &Follower<Copy>, after: u64| {
        follower.standing(&stream(0), NOW + Duration::from_millis(after))
    };
    assert_eq!(standing(&follower, 1_900), Standing::Live);
    assert_eq!(standing(&follower, 2_100), Standing::Recovering);
    assert_eq!(standing(&follower, 10_100), Standing::Down);
    // A frame with nothing in it says that nothing was missed.
    follower.message(NOW + Duration::from_secs(9), (1, 2), frame(2, Vec::new()).write());
    assert_eq!(standing(&follower, 10_100), Standing::Live);
    // One that is missing does not.
    follower.message(NOW + Duration::from_secs(10), (1, 3), frame(4, Vec::new()).write());
    assert_eq!(standing(&follower, 10_100), Standing::Recovering);
    follower.message(NOW + Duration::from_secs(10), (1, 4), frame(5, vec![head()]).write());
    assert_eq!(standing(&follower, 10_100), Standing::Live);
    assert_eq!(follower.replica(&stream(0)).unwrap().position(), Some(at));
}

#[test]
fn a_head_that_differs_at_the_same_place_is_a_divergence() {
    let mut follower = Follower::<Copy>::new(DOWN_AFTER);
    let at = Position { epoch: 1, sequence: 1 << 20, low: 7, high: 0 };
    let head = |low| Item { stream: 0, generation: 1, kind: Some(Kind::Head(Position { low, ..at })) };
    follower.message(NOW, (1, 1), frame(1, vec![declare(), head(7)]).write());
    let id = match follower.take_asks()[..] {
        [kvplane_bus::Ask::Fetch { id, .. }] => id,
        ref asks => panic!("{asks:?}"),
    };
    let state = Copy { at: Some(at), life: 7, batches: 0 };
    follower.fetched(id, &stream(0), None, kvplane_bus::Fetched::State(state));
    follower.message(NOW, (1, 2), frame(2, vec![head(8)]).write());
    assert_eq!(follower.counters().divergences, 1);
    assert_eq!(follower.standing(&stream(0), NOW), Standing::Recovering);
    assert_eq!(follower.replica(&stream(0)).unwrap().position(), None, "void");
}
