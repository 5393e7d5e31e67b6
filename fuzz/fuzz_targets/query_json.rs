#![no_main]

use kvplane_server::checks;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| checks::query_json(bytes));
