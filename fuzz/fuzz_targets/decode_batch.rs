#![no_main]

use kvplane_wire::checks;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    checks::decode_batch(bytes);
    checks::skip_value(bytes);
});
