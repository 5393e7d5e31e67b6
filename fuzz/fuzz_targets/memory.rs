//! Bytes that are said to be steps and memories of a journal: whatever they are, they are refused or can be
//! written again.

#![no_main]

use kvplane_stream::{Memory, Record};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(record) = Record::read(bytes) {
        let mut written = Vec::new();
        record.write(&mut written);
        assert_eq!(Record::read(&written).as_ref(), Ok(&record));
        if let Ok(memory) = Memory::begin(&record) {
            assert!(Memory::load(&memory.save()).is_ok());
        }
    }
    if let Ok(memory) = Memory::load(bytes) {
        memory.save();
    }
});
