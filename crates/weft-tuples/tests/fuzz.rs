//! Runs the fuzz targets of the log on their corpora and on random mutations of them.

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
