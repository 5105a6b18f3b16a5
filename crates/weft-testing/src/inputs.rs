//! Runs the body of a fuzz target on its corpus and on random mutations of the corpus.
//!
//! This needs no nightly compiler. It has no coverage feedback, but it starts from the corpus,
//! which libFuzzer found by coverage. Each mutated input follows from a seed of its own.
//!
//! Without variables a run takes the same inputs each time. With `WEFT_FUZZ_SECONDS=n`, each target
//! runs for `n` more seconds, with inputs from a random seed on, which is printed first. A failure
//! prints the seed of its input: `WEFT_FUZZ_SEED=n` runs that input alone. With both variables, a
//! target runs for that time from that seed on.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::limits::{CHANGES_MAX, NOISE_LEN_MAX};
use crate::variables::{announce, fresh_seed, number_of};

/// The directory of the targets' corpora.
const CORPORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");

/// Runs `body` on each input of the target's corpus, then on `count` mutated inputs, then on
/// further ones for the time that `WEFT_FUZZ_SECONDS` gives. `body` also gets the seed of a mutated
/// input; it is `None` for an input of the corpus.
///
/// # Panics
/// If the corpus is missing or empty, or if `body` panics; then the input is saved, and its seed
/// and its file are printed.
pub fn run(target: &str, count: u64, body: impl Fn(&[u8], Option<u64>)) {
    let target = Target { name: target, corpus: corpus(target), body };
    match (number_of("WEFT_FUZZ_SEED"), number_of("WEFT_FUZZ_SECONDS")) {
        (Some(seed), None) => target.run_mutated(seed),
        (Some(seed), Some(seconds)) => target.run_for(seconds, seed),
        (None, seconds) => {
            target.run_corpus();
            (0..count).for_each(|seed| target.run_mutated(seed));
            if let Some(seconds) = seconds {
                target.run_for(seconds, fresh_seed());
            }
        }
    }
}

struct Target<'name, B> {
    name: &'name str,
    corpus: Vec<Vec<u8>>,
    body: B,
}

impl<B: Fn(&[u8], Option<u64>)> Target<'_, B> {
    fn run_corpus(&self) {
        self.corpus.iter().for_each(|bytes| self.run_input(bytes.clone(), None));
    }

    fn run_mutated(&self, seed: u64) {
        self.run_input(mutated(&self.corpus, &mut Rng::with_seed(seed)), Some(seed));
    }

    fn run_for(&self, seconds: u64, first: u64) {
        announce(&format!("{}: WEFT_FUZZ_SEED={first} WEFT_FUZZ_SECONDS={seconds}", self.name));
        let start = Instant::now();
        let mut seed = first;
        while start.elapsed() < Duration::from_secs(seconds) {
            self.run_mutated(seed);
            seed += 1;
        }
        println!("{}: {} inputs in {seconds} s", self.name, seed - first);
    }

    fn run_input(&self, bytes: Vec<u8>, seed: Option<u64>) {
        let input = Input { target: self.name, bytes, seed };
        (self.body)(&input.bytes, seed);
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(CORPORA).join(target);
    let read = |path: &PathBuf| fs::read(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder:?}: {e}"));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort_unstable();
    assert!(!files.is_empty(), "{target} has no corpus");
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
    seed: Option<u64>,
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            if let Some(seed) = self.seed {
                eprintln!("{}: replay the input by WEFT_FUZZ_SEED={seed}", self.target);
            }
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

    use super::{Target, corpus, run};

    fn first_inputs() -> Vec<(Vec<u8>, Option<u64>)> {
        let inputs = RefCell::new(Vec::new());
        let body = |bytes: &[u8], seed| inputs.borrow_mut().push((bytes.to_vec(), seed));
        let target = Target { name: "wire_rd", corpus: corpus("wire_rd"), body };
        target.run_corpus();
        (0..20).for_each(|seed| target.run_mutated(seed));
        inputs.into_inner()
    }

    #[test]
    fn inputs_follow_from_their_seeds() {
        let inputs = first_inputs();
        assert!(inputs[0].1.is_none());
        assert!(inputs.iter().filter_map(|(_, seed)| *seed).eq(0..20));
        assert_eq!(inputs, first_inputs());
        let mutated = &inputs[inputs.len() - 20..];
        assert!(mutated.windows(2).any(|two| two[0].0 != two[1].0));
    }

    #[test]
    #[should_panic(expected = "No such file")]
    fn target_without_a_corpus_fails() {
        run("gone", 1, |_, _| {});
    }
}
