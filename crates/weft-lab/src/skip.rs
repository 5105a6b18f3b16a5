//! Notes skipped tests in a file that `make test` summarizes.

use std::fs::OpenOptions;
use std::io::Write as _;

use crate::paths::scratch;

/// Notes for the summary of `make test` that the test `name` was skipped, and why.
///
/// # Panics
///
/// If the note cannot be written, because a skipped test must not go unnoticed.
pub fn note_skip(name: &str, why: &str) {
    println!("SKIP: {name}: {why}");
    let file = scratch("").map(|directory| directory.join("skipped"));
    let written = file.and_then(|file| {
        let mut file = OpenOptions::new().create(true).append(true).open(file)?;
        Ok(writeln!(file, "{name}: {why}")?)
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
