//! The bodies of the fuzz targets, on their corpus and on random changes of it.

#![allow(clippy::unwrap_used)] // In the tests' helpers too.

#[path = "../../../fuzz/src/wire.rs"]
#[allow(unreachable_pub)] // A module of a library there.
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
    inputs::run("wire_marker", COUNT, |input, _| wire::marker(input));
}

#[test]
fn rd() {
    inputs::run("wire_rd", COUNT, |input, _| wire::rd(input));
}
