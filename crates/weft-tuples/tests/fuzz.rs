//! Runs the fuzz targets on their corpora and on random mutations of them.

use weft_testing::inputs;
use weft_tuples::fuzzing;

#[test]
fn effects() {
    inputs::run("tuples_effects", 20_000, |input, _| {
        fuzzing::effects(input);
    });
}

#[test]
fn log() {
    inputs::run("tuples_log", 5_000, |input, _| fuzzing::log(input));
}

#[test]
fn native() {
    inputs::run("tuples_native", 10_000, |input, _| fuzzing::native(input));
}

#[test]
fn redis() {
    inputs::run("tuples_redis", 10_000, |input, _| fuzzing::redis(input));
}

#[test]
fn tls() {
    inputs::run("tuples_tls", 2_000, |input, _| fuzzing::tls(input));
}
