//! Tests that cannot run for want of a right say so where `make test` counts them.

use std::fs::OpenOptions;
use std::io::Write as _;

use crate::paths::scratch;

/// Notes that the test `name` did not run, and why, for the summary of `make test`.
///
/// # Panics
///
/// If the note cannot be written: a skip must never go unseen.
pub fn note_skip(name: &str, why: &str) {
    println!("SKIP: {name}: {why}");
    let file = scratch("").map(|directory| directory.join("skipped"));
    let written = file.and_then(|file| {
        let mut file = OpenOptions::new().create(true).append(true).open(file)?;
        Ok(writeln!(file, "{name}: {why}")?)
    });
    written.expect("a skipped test must be noted");
}

/// Returns `Ok(())` from the test that uses it, after a note, if namespaces cannot be made.
#[macro_export]
macro_rules! skip_without_namespaces {
    () => {
        if let Some(why) = $crate::namespaces_denied() {
            $crate::note_skip(concat!(module_path!(), ", line ", line!()), why);
            return Ok(());
        }
    };
}
