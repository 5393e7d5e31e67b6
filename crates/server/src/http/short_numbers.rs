//! A list of short numbers, read fast: token ids, as clients write them.
//!
//! ```text
//! 791,3938,11,264]          all that there is between two numbers is a comma,
//! 791, 3938, 11, 264]       or a comma and a space
//! ```
//!
//! A question is mostly token ids, and reading them digit by digit costs more than all else that is done with
//! it: how long the next number is cannot be predicted, and every wrong guess costs as much as several
//! numbers. Here nothing is guessed: the ends of all numbers in a window are found at once, and the digits of
//! a number are added up at once.

/// Bytes whose ends of numbers are found together; a bit each.
const WINDOW: usize = u64::BITS as usize;
/// The digits that are added up at once: a byte each, in one word.
const WORD: usize = 8;
/// A number that fills a word may go on after it.
const MOST_DIGITS: usize = WORD - 1;

/// Hands the numbers that `bytes` begins with to `take`, at most `max`. Gives how many there were, and how
/// many bytes they and what separates them take. Stops before whatever is not simple, before a number that
/// `take` refuses, and before the last of a list: it says nothing about what follows.
pub(super) fn read(bytes: &[u8], max: usize, mut take: impl FnMut(u64) -> bool) -> (usize, usize) {
    let mut count = 0;
    let mut begin = 0;
    for (at, window) in bytes.as_chunks::<WINDOW>().0.iter().enumerate() {
        let mut ends = not_digits(window);
        while ends != 0 {
            let end = at * WINDOW + ends.trailing_zeros() as usize;
            ends &= ends - 1;
            if end == begin && bytes[end] == b' ' && end > 0 && bytes[end - 1] == b',' {
                begin = end + 1;
                continue;
            }
            let length = end - begin;
            let Some(word) = bytes[begin..].first_chunk::<WORD>() else { return (count, begin) };
            // JSON has no leading zeros.
            let simple = matches!(length, 1..=MOST_DIGITS) && (word[0] != b'0' || length == 1);
            if !simple || bytes[end] != b',' || count == max || !take(value(*word, length)) {
                return (count, begin);
            }
            count += 1;
            begin = end + 1;
        }
    }
    (count, begin)
}

/// A bit for every byte that is not a digit, the first byte's lowest.
fn not_digits(window: &[u8; WINDOW]) -> u64 {
    /// Moves the lowest bits of all bytes into the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut bits = 0;
    for (at, word) in window.as_chunks::<WORD>().0.iter().enumerate() {
        let values = u64::from_le_bytes(*word) ^ every_byte(b'0');
        // The highest bit of a byte gets set from 10 on; no byte overflows into the next.
        let above_nine = ((values & every_byte(0x7f)) + every_byte(0x80 - 10)) | values;
        let flags = (above_nine >> 7) & every_byte(1);
        bits |= (flags.wrapping_mul(GATHER) >> 56) << (at * WORD);
    }
    bits
}

/// The number that the first `length` bytes write, from 1 to [`MOST_DIGITS`] of them, all digits.
fn value(word: [u8; WORD], length: usize) -> u64 {
    let digits = u64::from_le_bytes(word) ^ every_byte(b'0');
    // What follows falls out, and as many zeros come before.
    let digits = digits << (8 * (WORD - length));
    // Neighbours are joined: digits to pairs, pairs to fours, fours to the number.
    let pairs = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    (fours * 10_000 + (fours >> 32)) & 0xffff_ffff
}

const fn every_byte(byte: u8) -> u64 {
    u64::from_le_bytes([byte; WORD])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than a window of something that is not looked at.
    const REST: &str = "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]";

    fn numbers(text: &str, max: usize) -> (Vec<u64>, String) {
        let bytes = format!("{text}{REST}");
        let mut numbers = Vec::new();
        let (count, read) = read(bytes.as_bytes(), max, |number| {
            numbers.push(number);
            true
        });
        assert_eq!(count, numbers.len());
        (numbers, text.get(read..).unwrap_or_default().to_owned())
    }

    #[test]
    fn every_length_at_every_place() {
        for separator in [",", ", "] {
            for shift in 0..WINDOW {
                let expected: Vec<u64> = (0..shift as u64)
                    .map(|_| 7)
                    .chain(
                        (0..100).map(|at| 10_u64.pow(at % 7) * (1 + u64::from(at) % 9) + u64::from(at % 2)),
                    )
                    .collect();
                let written: Vec<String> = expected.iter().map(u64::to_string).collect();
                let (read, rest) = numbers(&written.join(separator), usize::MAX);
                assert_eq!(read, expected[..expected.len() - 1]);
                assert_eq!(rest, *written.last().unwrap());
            }
        }
        assert_eq!(numbers("0,9,10,99,9999999,1234567,1", 9).0, [0, 9, 10, 99, 9_999_999, 1_234_567]);
    }

    #[test]
    fn whatever_is_not_simple_is_left_alone() {
        for left in [
            "12345678,1",
            "01,1",
            "00,1",
            "-1,1",
            "1.5,1",
            "1e3,1",
            "\"1\",1",
            "1 ,1",
            " 1,1",
            ",1",
            "\n1,1",
            "x",
            "",
            "1;1",
            "1\u{e9},1",
            "\u{ff11},1",
            "1:1",
            "1/1",
            "1",
            "12345678901234567890,1",
        ] {
            for before in ["", "5,", "5, ", "1234567,"] {
                // After a comma one space is what is expected.
                if left.starts_with(' ') && before.ends_with(',') {
                    continue;
                }
                let (read, rest) = numbers(&format!("{before}{left}"), 9);
                assert_eq!(read.len(), usize::from(!before.is_empty()), "{before}{left}");
                assert_eq!(rest, left, "{before}{left}");
            }
        }
    }

    #[test]
    fn no_more_than_asked_for() {
        assert_eq!(numbers("1,2,3,4", 2), (vec![1, 2], "3,4".to_owned()));
        assert_eq!(numbers("1,2,3,4", 0), (vec![], "1,2,3,4".to_owned()));
        let refused = format!("11,22,33,44{REST}");
        assert_eq!(read(refused.as_bytes(), 9, |number| number != 33), (2, 6));
    }

    #[test]
    fn less_than_a_window_is_left_alone() {
        assert_eq!(read(b"1,2,3]", 9, |_| true), (0, 0));
        assert_eq!(read(b"", 9, |_| true), (0, 0));
    }
}
