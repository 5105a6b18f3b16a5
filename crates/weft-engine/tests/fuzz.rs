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

use std::fs;
use std::path::Path;

use weft_engine::qp::QpType;

#[test]
fn link() {
    let types = [QpType::Uc, QpType::XrcRecv];
    corpus_and_random_changes_of_it("engine_link", |input, random| {
        engine::link(input);
        // What is unreliable waits for receives, a tenth of a second each time.
        let seldom = random.is_some_and(|round| round % 10 != 0);
        for &qp_type in types.iter().filter(|&&qp_type| qp_type != QpType::Uc || !seldom) {
            engine::link_of(qp_type, input);
        }
    });
}

#[test]
fn shared_memory() {
    corpus_and_random_changes_of_it("engine_shared", |input, _| shared::shared(input));
}

#[test]
fn reliable_datagrams() {
    corpus_and_random_changes_of_it("engine_rd", |input, _| rd::rd(input));
}

#[test]
fn exchange() {
    corpus_and_random_changes_of_it("engine_mpa", |input, _| mpa::mpa(input));
}

/// The target is also told which random input it is, if it is one.
fn corpus_and_random_changes_of_it(name: &str, target: impl Fn(&[u8], Option<u32>)) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut files: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    let corpus: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(!corpus.is_empty());
    corpus.iter().for_each(|input| target(input, None));
    let mut rng = fastrand::Rng::with_seed(0x5eed);
    for round in 0..500 {
        let mut input = corpus[rng.usize(..corpus.len())].clone();
        input.extend_from_slice(&corpus[rng.usize(..corpus.len())]);
        for _ in 0..rng.usize(..4) {
            let at = rng.usize(..input.len());
            input[at] = if rng.bool() { rng.u8(..) } else { input[at] ^ (1 << rng.u8(..8)) };
        }
        target(&input, Some(round));
    }
}
