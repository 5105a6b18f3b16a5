//! Runs the body of a fuzz target on its corpus and on random mutations of the corpus.
//!
//! This needs no nightly compiler. It has no coverage feedback, but it starts from the corpus,
//! which libFuzzer found by coverage. An ordinary run uses the same inputs each time. With
//! `WEFT_FUZZ_SECONDS=n`, each target runs for `n` more seconds, with inputs that differ from run
//! to run.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::limits::{CHANGES_MAX, NOISE_LEN_MAX};
use crate::variables::number_of;

/// The directory of the targets' corpora.
const CORPORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");
/// The seed of an ordinary run.
const SEED: u64 = 0x5eed;

/// Runs `body` on each input of the target's corpus, then on `count` mutated inputs, then on
/// further ones for the time that `WEFT_FUZZ_SECONDS` gives. `body` also gets the number of a
/// mutated input; it is `None` for an input of the corpus.
///
/// # Panics
/// If the corpus is missing or empty, or if `body` panics; then the input is saved, and its file is
/// printed.
pub fn run(target: &str, count: u64, body: impl Fn(&[u8], Option<u64>)) {
    run_for(number_of("WEFT_FUZZ_SECONDS"), target, count, body);
}

fn run_for(seconds: Option<u64>, target: &str, count: u64, body: impl Fn(&[u8], Option<u64>)) {
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "{target} has no corpus");
    let guarded = |bytes: Vec<u8>, number| {
        let input = Input { target, bytes };
        body(&input.bytes, number);
    };
    for bytes in &corpus {
        guarded(bytes.clone(), None);
    }
    let mut rng = Rng::with_seed(SEED);
    for number in 0..count {
        guarded(mutated(&corpus, &mut rng), Some(number));
    }
    let Some(seconds) = seconds else { return };
    let (start, mut number) = (Instant::now(), count);
    rng = Rng::new();
    while start.elapsed() < Duration::from_secs(seconds) {
        guarded(mutated(&corpus, &mut rng), Some(number));
        number += 1;
    }
    println!("{target}: {} inputs in {seconds} s", number - count);
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(CORPORA).join(target);
    let read = |path: &PathBuf| fs::read(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder:?}: {e}"));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort_unstable();
    files.iter().map(read).collect()
}

/// Returns a mutated input of the corpus, which may be joined with another one, have bytes mutated
/// and be truncated; or random bytes.
fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    if rng.u8(..16) == 0 {
        let len = rng.usize(..NOISE_LEN_MAX);
        return (0..len).map(|_| rng.u8(..)).collect();
    }
    let mut input = corpus[rng.usize(..corpus.len())].clone();
    if rng.bool() {
        let other = &corpus[rng.usize(..corpus.len())];
        input.extend_from_slice(&other[rng.usize(..=1.min(other.len()))..]);
    }
    for _ in 0..rng.usize(..CHANGES_MAX) {
        if !input.is_empty() {
            let at = rng.usize(..input.len());
            input[at] = if rng.bool() { rng.u8(..) } else { input[at] ^ (1 << rng.u8(..8)) };
        }
    }
    if rng.u8(..8) == 0 {
        input.truncate(rng.usize(..=input.len()));
    }
    input
}

/// The input that is being run. If the body panics, it is saved to a file.
struct Input<'target> {
    target: &'target str,
    bytes: Vec<u8>,
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let name = format!("weft-fuzz-{}-{}", self.target, std::process::id());
            let path = std::env::temp_dir().join(name);
            match fs::write(&path, &self.bytes) {
                Ok(()) => eprintln!("the input is saved in {}", path.display()),
                Err(error) => eprintln!("the input is {:02x?} ({error})", self.bytes),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::run_for;

    #[test]
    fn corpus_is_run_before_the_mutated_inputs() {
        let inputs = RefCell::new(Vec::new());
        run_for(None, "wire_rd", 20, |bytes, number| {
            inputs.borrow_mut().push((bytes.to_vec(), number))
        });
        let inputs = inputs.into_inner();
        let numbers: Vec<u64> = inputs.iter().filter_map(|(_, number)| *number).collect();
        assert!(numbers.iter().copied().take(20).eq(0..20));
        assert!(inputs[0].1.is_none());
        let again = RefCell::new(Vec::new());
        run_for(None, "wire_rd", 20, |bytes, number| {
            again.borrow_mut().push((bytes.to_vec(), number))
        });
        assert_eq!(inputs[..24], again.into_inner()[..24]);
    }

    #[test]
    #[should_panic(expected = "No such file")]
    fn target_without_a_corpus_fails() {
        run_for(None, "gone", 1, |_, _| {});
    }
}
