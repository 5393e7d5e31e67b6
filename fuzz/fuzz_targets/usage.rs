#![no_main]

use kvplane_inference::checks;
use kvplane_picker::checks as picker;
use libfuzzer_sys::fuzz_target;

// The first bytes say how the rest is cut; what is read of pieces is what is read of the whole.
fuzz_target!(|bytes: &[u8]| {
    let Some((&head, rest)) = bytes.split_first() else { return };
    let cuts: Vec<usize> = rest.iter().take(16).map(|byte| usize::from(*byte % 32)).collect();
    checks::usage_of_pieces(head & 1 == 1, rest, &cuts);
    if let Ok(text) = std::str::from_utf8(rest) {
        picker::yaml(text);
    }
});
