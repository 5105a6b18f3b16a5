//! `cargo xtask ways`: writes WAYS.md from the table in `weft-sockets`. A test of that crate writes
//! the file, because no other program can link to the crate. Without the request to write, the same
//! test compares.

use std::process::Command;

use crate::dist::{execute, workspace};

/// # Errors
/// The error of the test.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(unknown) = args.first() {
        return Err(format!("takes no argument, but got {unknown}"));
    }
    let mut test = Command::new("cargo");
    test.args(["test", "--quiet", "--package", "weft-sockets", "document_is_up_to_date"]);
    execute(test.current_dir(workspace()).env("WEFT_WRITE_WAYS", "1"))
}
