#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weft_fuzz::target_connection::connection_bytes(data));
