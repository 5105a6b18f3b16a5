//! Runs the fuzz targets of what servers send one another on their corpora and on random mutations
//! of them.

use weft_testing::inputs;
use weft_tuples_replica::fuzzing;

#[test]
fn call() {
    inputs::run("tuples_replica_call", 20_000, |input, _| {
        fuzzing::call(input);
    });
}

#[test]
fn group() {
    inputs::run("tuples_replica_group", 5_000, |input, _| {
        fuzzing::group(input);
    });
}

#[test]
fn proposals() {
    inputs::run("tuples_replica_proposals", 20_000, |input, _| fuzzing::proposals(input));
}

#[test]
fn snapshot() {
    inputs::run("tuples_replica_snapshot", 20_000, |input, _| {
        fuzzing::snapshot(input);
    });
}
