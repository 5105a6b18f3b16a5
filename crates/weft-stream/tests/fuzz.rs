//! Runs the fuzz targets for streams on their corpora and on random input.

#[path = "../../../fuzz/src/remote.rs"]
#[allow(unreachable_pub)] // In the fuzz crate the module belongs to a library.
mod remote;
#[path = "../../../fuzz/src/stream.rs"]
#[allow(unreachable_pub)] // In the fuzz crate the module belongs to a library.
mod stream;

use weft_testing::inputs;

#[test]
fn words_that_a_peer_writes() {
    inputs::run("stream_words", 60, |input, _| stream::stream(input));
}

#[test]
fn words_that_a_peer_on_another_host_writes() {
    inputs::run("stream_remote", 100, |input, _| remote::remote(input));
}
