//! Messages come in any pieces, and what is held is given back.

use super::*;

fn framed(message: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend(message);
    framed
}

#[test]
fn messages_are_read_in_any_pieces() {
    let messages: [&[u8]; 4] = [b"one", b"", b"a longer one", b"x"];
    let bytes: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
    for size in 1..=bytes.len() {
        let (mut reading, mut read) = (Reading::default(), Vec::new());
        for mut piece in bytes.chunks(size) {
            while !piece.is_empty() {
                let (taken, message) = reading.take(piece, 100).unwrap();
                assert!(taken > 0 && taken <= piece.len());
                piece = &piece[taken..];
                read.extend(message);
            }
        }
        assert_eq!(read, messages, "pieces of {size}");
    }
}

#[test]
fn compressed_and_large_messages_are_not_read() {
    let take = |bytes: &[u8]| Reading::default().take(bytes, 8);
    assert_eq!(take(&[1, 0, 0, 0, 1, 0]), Err(Rejected::Unreadable));
    assert_eq!(take(&[0, 0, 0, 0, 9]), Err(Rejected::TooLarge));
    assert_eq!(take(&[0, 255, 255, 255, 255]), Err(Rejected::TooLarge));
    assert_eq!(take(&[0, 0, 0, 0, 8]), Ok((5, None)));
}

#[test]
fn the_budget_is_a_bound() {
    let budget = Budget::default();
    assert!(budget.take(HELD_MAX - 1));
    assert!(budget.take(1) && !budget.take(1) && !budget.take(usize::MAX));
    budget.give_back(1);
    assert!(budget.take(1));
}

#[test]
fn every_reason_has_a_counter_of_its_own() {
    for (at, reason) in Rejected::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, at);
        assert!(Rejected::ALL[..at].iter().all(|other| other.as_str() != reason.as_str()));
    }
}
