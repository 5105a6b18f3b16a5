//! Runs the fuzz targets for keys and counters on their corpora and on random mutations.

#[path = "../../../fuzz/src/transfer_keys.rs"]
#[allow(unreachable_pub)] // A module of a library there.
mod transfer_keys;

use weft_testing::inputs;

#[test]
fn keys() {
    inputs::run("transfer_keys", 2_000, |input, _| transfer_keys::keys(input));
}

#[test]
fn replay() {
    inputs::run("transfer_replay", 2_000, |input, _| transfer_keys::replay(input));
}
