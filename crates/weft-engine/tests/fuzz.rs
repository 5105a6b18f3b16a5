//! The bodies of the engine's fuzz targets, on their corpus and on random input.

#![allow(clippy::unwrap_used, unsafe_code)] // In the tests' helpers too.

#[path = "../../../fuzz/src/engine.rs"]
#[allow(unreachable_pub)] // A module of a library there.
mod engine;
#[path = "../../../fuzz/src/mpa.rs"]
#[allow(unreachable_pub)] // A module of a library there.
mod mpa;
#[path = "../../../fuzz/src/rd.rs"]
#[allow(unreachable_pub)] // A module of a library there.
mod rd;
#[path = "../../../fuzz/src/shared.rs"]
#[allow(unreachable_pub)] // A module of a library there.
mod shared;

use weft_engine::qp::QpType;
use weft_testing::inputs;

const COUNT: u64 = 500;

#[test]
fn link() {
    let types = [QpType::Uc, QpType::XrcRecv];
    inputs::run("engine_link", COUNT, |input, number| {
        engine::link(input);
        // What is unreliable waits for receives, a tenth of a second each time.
        let seldom = number.is_some_and(|number| number % 10 != 0);
        for &qp_type in types.iter().filter(|&&qp_type| qp_type != QpType::Uc || !seldom) {
            engine::link_of(qp_type, input);
        }
    });
}

#[test]
fn shared_memory() {
    inputs::run("engine_shared", COUNT, |input, _| shared::shared(input));
}

#[test]
fn reliable_datagrams() {
    inputs::run("engine_rd", COUNT, |input, _| rd::rd(input));
}

#[test]
fn exchange() {
    inputs::run("engine_mpa", COUNT, |input, _| mpa::mpa(input));
}
