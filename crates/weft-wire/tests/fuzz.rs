//! Runs the fuzz targets on their corpora and on random changes of them.

#![allow(clippy::unwrap_used)] // Also in the helpers of the tests.

#[path = "../../../fuzz/src/wire.rs"]
#[allow(unreachable_pub)] // In the fuzz crate the module belongs to a library.
mod wire;

use weft_testing::inputs;

const COUNT: u64 = 5_000;

#[test]
fn frame() {
    inputs::run("wire_frame", COUNT, |input, _| wire::frame(input));
}

#[test]
fn datagram() {
    inputs::run("wire_datagram", COUNT, |input, _| wire::datagram(input));
}

#[test]
fn fpdu() {
    inputs::run("wire_fpdu", COUNT, |input, _| wire::fpdu(input));
}

#[test]
fn headers() {
    inputs::run("wire_headers", COUNT, |input, _| wire::headers(input));
}

#[test]
fn negotiate() {
    inputs::run("wire_negotiate", COUNT, |input, _| wire::negotiate(input));
}

#[test]
fn marker() {
    inputs::run("wire_marker", 2_000, |input, _| wire::marker(input));
}

#[test]
fn rd() {
    inputs::run("wire_rd", COUNT, |input, _| wire::rd(input));
}

#[test]
fn rd_frame() {
    inputs::run("wire_rd_frame", COUNT, |input, _| wire::rd_frame(input));
}
