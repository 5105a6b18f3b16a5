//! Runs the fuzz targets of trees on their corpus and on random mutations of it.

#![allow(clippy::unwrap_used)] // In the tests' helpers too.

#[path = "../../../fuzz/src/transfer_tree.rs"]
#[allow(unreachable_pub, dead_code)] // A module of a library there.
mod tree;

use weft_testing::inputs;

#[test]
fn records() {
    inputs::run("transfer_records", 20_000, |input, _| tree::records(input));
}

#[test]
fn journal() {
    inputs::run("transfer_journal", 5_000, |input, _| tree::journal(input));
}

#[test]
fn apply() {
    inputs::run("transfer_apply", 400, |input, _| {
        let folder = tempfile::tempdir().unwrap();
        tree::apply(input, folder.path());
    });
}
