//! The bodies of the fuzz targets, on their corpus and on random input.

#![allow(clippy::unwrap_used)] // In the tests' helpers too.

#[path = "../../../fuzz/src/wire.rs"]
#[allow(unreachable_pub)] // A module of a library there.
mod wire;

use std::fs;
use std::path::Path;

type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 7] = [
    ("wire_frame", wire::frame),
    ("wire_datagram", wire::datagram),
    ("wire_fpdu", wire::fpdu),
    ("wire_headers", wire::headers),
    ("wire_negotiate", wire::negotiate),
    ("wire_marker", wire::marker),
    ("wire_rd", wire::rd),
];

#[test]
fn corpus() {
    for (name, target) in TARGETS {
        let inputs = corpus_of(name);
        assert!(!inputs.is_empty(), "{name} has no corpus");
        for input in inputs {
            target(&input);
        }
    }
}

/// Random bytes do not get far; corpus files with some bytes changed do.
#[test]
fn random() {
    let mut rng = fastrand::Rng::with_seed(0x5eed);
    for (name, target) in TARGETS {
        let corpus = corpus_of(name);
        for _ in 0..5000 {
            let len = rng.usize(..100);
            let noise: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
            target(&noise);

            let mut input = corpus[rng.usize(..corpus.len())].clone();
            for _ in 0..rng.usize(..4) {
                if !input.is_empty() {
                    let at = rng.usize(..input.len());
                    input[at] =
                        if rng.bool() { rng.u8(..) } else { input[at] ^ (1 << rng.u8(..8)) };
                }
            }
            if rng.u8(..4) == 0 {
                input.truncate(rng.usize(..=input.len()));
            }
            target(&input);
        }
    }
}

fn corpus_of(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut files: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    files.iter().map(|path| fs::read(path).unwrap()).collect()
}
