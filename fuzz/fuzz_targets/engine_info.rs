#![no_main]

use kvplane_wire::checks;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| checks::engine_info(bytes));
