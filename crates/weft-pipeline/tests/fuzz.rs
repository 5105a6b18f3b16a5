//! Runs the fuzz targets of pipelines on their corpus and on random mutations of it.

use weft_pipeline::fuzzing;
use weft_testing::inputs;

#[test]
fn hello() {
    inputs::run("pipeline_hello", 5_000, |input, _| fuzzing::hello(input));
}

#[test]
fn messages() {
    inputs::run("pipeline_messages", 5_000, |input, _| fuzzing::messages(input));
}

#[test]
fn frames() {
    inputs::run("pipeline_frames", 20_000, |input, _| fuzzing::frames(input));
}

#[test]
fn acks() {
    inputs::run("pipeline_acks", 20_000, |input, _| fuzzing::acks(input));
}
