//! The bodies of the fuzz targets for streams, on their corpora and on random input.

#[path = "../../../fuzz/src/remote.rs"]
#[allow(unreachable_pub)] // A module of a library there.
mod remote;
#[path = "../../../fuzz/src/stream.rs"]
#[allow(unreachable_pub)] // Likewise.
mod stream;

use std::fs;
use std::path::Path;

/// Runs the body on a target's corpus, and on `count` inputs made of it.
fn run(target: &str, count: usize, body: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(directory).expect("a corpus");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort_unstable();
    let corpus: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).expect("bytes")).collect();
    assert!(!corpus.is_empty());
    corpus.iter().for_each(|input| body(input));
    let mut rng = fastrand::Rng::with_seed(0x5eed);
    for _ in 0..count {
        let mut input = corpus[rng.usize(..corpus.len())].clone();
        input.extend_from_slice(&corpus[rng.usize(..corpus.len())][1..]);
        for _ in 0..rng.usize(..16) {
            let at = rng.usize(..input.len());
            input[at] = if rng.bool() { rng.u8(..) } else { input[at] ^ (1 << rng.u8(..8)) };
        }
        body(&input);
    }
}

#[test]
fn words_that_a_peer_writes() {
    run("stream_words", 60, stream::stream);
}

#[test]
fn words_that_a_peer_on_another_host_writes() {
    run("stream_remote", 100, remote::remote);
}
