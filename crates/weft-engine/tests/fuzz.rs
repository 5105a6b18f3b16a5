//! The bodies of the engine's fuzz targets, on their corpus and on random input.

#![allow(clippy::unwrap_used, unsafe_code)] // The allowance for tests does not cover helpers.

#[path = "../../../fuzz/src/engine.rs"]
#[allow(unreachable_pub)] // In the fuzz crate this is a module of a library.
mod engine;
#[path = "../../../fuzz/src/mpa.rs"]
#[allow(unreachable_pub)] // In the fuzz crate this is a module of a library.
mod mpa;
#[path = "../../../fuzz/src/rd.rs"]
#[allow(unreachable_pub)] // In the fuzz crate this is a module of a library.
mod rd;
#[path = "../../../fuzz/src/shared.rs"]
#[allow(unreachable_pub)] // In the fuzz crate this is a module of a library.
mod shared;

use weft_engine::qp::QpType;
use weft_testing::inputs;

const COUNT: u64 = 500;

#[test]
fn the_link_survives_fuzz_inputs() {
    let types = [QpType::Uc, QpType::XrcRecv];
    inputs::run("engine_link", COUNT, |input, seed| {
        engine::link(input);
        // An unreliable connection waits a tenth of a second for a receive, so run it on every
        // tenth random input only.
        let skips_uc = seed.is_some_and(|seed| seed % 10 != 0);
        for &qp_type in types.iter().filter(|&&qp_type| qp_type != QpType::Uc || !skips_uc) {
            engine::link_of(qp_type, input);
        }
    });
}

#[test]
fn shared_memory_survives_fuzz_inputs() {
    inputs::run("engine_shared", COUNT, |input, _| shared::shared(input));
}

#[test]
fn reliable_datagrams_survive_fuzz_inputs() {
    inputs::run("engine_rd", COUNT, |input, _| rd::rd(input));
}

#[test]
fn the_mpa_exchange_survives_fuzz_inputs() {
    inputs::run("engine_mpa", COUNT, |input, _| mpa::mpa(input));
}
