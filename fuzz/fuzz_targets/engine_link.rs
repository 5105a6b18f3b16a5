#![no_main]

use weft_engine::qp::QpType;
use weft_fuzz::engine;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    engine::link(data);
    engine::link_of(QpType::XrcRecv, data);
});
