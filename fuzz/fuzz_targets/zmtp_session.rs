#![no_main]

use kvplane_socket::checks;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| checks::zmtp_session(bytes));
