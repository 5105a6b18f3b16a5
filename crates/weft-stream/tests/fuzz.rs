//! The body of the fuzz target for streams, on its corpus and on random input.

#[path = "../../../fuzz/src/stream.rs"]
#[allow(unreachable_pub)] // A module of a library there.
mod stream;

use std::fs;
use std::path::Path;

#[test]
fn words_that_a_peer_writes() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/stream_words");
    let entries = fs::read_dir(directory).expect("a corpus");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort_unstable();
    let corpus: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).expect("bytes")).collect();
    assert!(!corpus.is_empty());
    corpus.iter().for_each(|input| stream::stream(input));
    let mut rng = fastrand::Rng::with_seed(0x5eed);
    for _ in 0..60 {
        let mut input = corpus[rng.usize(..corpus.len())].clone();
        input.extend_from_slice(&corpus[rng.usize(..corpus.len())][1..]);
        for _ in 0..rng.usize(..16) {
            let at = rng.usize(..input.len());
            input[at] = if rng.bool() { rng.u8(..) } else { input[at] ^ (1 << rng.u8(..8)) };
        }
        stream::stream(&input);
    }
}
