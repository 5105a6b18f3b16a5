//! Runs the fuzz targets for the protocol on their corpora and on random mutations.

#[path = "../../../fuzz/src/transfer_session.rs"]
#[allow(unreachable_pub)] // A module of a library there.
mod transfer_session;

use weft_testing::inputs;

#[test]
fn bytes_of_a_peer() {
    inputs::run("transfer_wire", 5_000, |input, _| transfer_session::wire(input));
}

#[test]
fn hostile_peer_breaks_no_session() {
    inputs::run("transfer_session", 5_000, |input, _| transfer_session::session(input));
}
