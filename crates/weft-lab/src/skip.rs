//! Notes skipped tests in a file that `make test` summarizes.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use crate::paths::scratch;

/// What has been noted. A test that runs a program in several ways is skipped as often, and is one.
static NOTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Notes for the summary of `make test` that the test `name` was skipped, and why.
///
/// # Panics
///
/// If the note cannot be written, because a skipped test must not go unnoticed.
pub fn note_skip(name: &str, why: &str) {
    let note = format!("{name}: {why}");
    if !NOTED.lock().unwrap_or_else(PoisonError::into_inner).insert(note.clone()) {
        return;
    }
    println!("SKIP: {note}");
    let file = scratch("").map(|directory| directory.join("skipped"));
    let written = file.and_then(|file| {
        let mut file = OpenOptions::new().create(true).append(true).open(file)?;
        Ok(writeln!(file, "{note}")?)
    });
    written.expect("a skipped test must be noted");
}

/// Skips the calling test, with a note, if namespaces cannot be made.
#[macro_export]
macro_rules! skip_without_namespaces {
    () => {
        if let Some(why) = $crate::namespaces_denied() {
            $crate::note_skip(concat!(module_path!(), ", line ", line!()), why);
            return Ok(());
        }
    };
}
