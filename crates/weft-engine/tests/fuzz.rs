//! The body of the engine's fuzz target, on its corpus and on random input.

#![allow(clippy::unwrap_used, unsafe_code)] // In the tests' helpers too.

#[path = "../../../fuzz/src/engine.rs"]
#[allow(unreachable_pub)] // A module of a library there.
mod engine;

use std::fs;
use std::path::Path;

use weft_engine::qp::QpType;

#[test]
fn corpus_and_random_changes_of_it() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/engine_link");
    let mut files: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    let corpus: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(!corpus.is_empty());
    let types = [QpType::Uc, QpType::XrcRecv];
    for input in &corpus {
        engine::link(input);
        types.iter().for_each(|&qp_type| engine::link_of(qp_type, input));
    }
    let mut rng = fastrand::Rng::with_seed(0x5eed);
    for round in 0..500 {
        let mut input = corpus[rng.usize(..corpus.len())].clone();
        input.extend_from_slice(&corpus[rng.usize(..corpus.len())]);
        for _ in 0..rng.usize(..4) {
            let at = rng.usize(..input.len());
            input[at] = if rng.bool() { rng.u8(..) } else { input[at] ^ (1 << rng.u8(..8)) };
        }
        engine::link(&input);
        // What is unreliable waits for receives, a tenth of a second each time.
        if round % 10 == 0 {
            engine::link_of(QpType::Uc, &input);
        }
        engine::link_of(QpType::XrcRecv, &input);
    }
}
