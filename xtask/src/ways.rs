//! Writes WAYS.md from the table in `weft-sockets`. A test of that crate does it, as nothing can
//! link to that crate; unless it is asked to write, the same test compares.

use std::process::Command;

use crate::dist::{execute, workspace};

/// # Errors
/// What the test says.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(unknown) = args.first() {
        return Err(format!("takes no argument, but got {unknown}"));
    }
    let mut test = Command::new("cargo");
    test.args(["test", "--quiet", "--package", "weft-sockets", "document_is_up_to_date"]);
    execute(test.current_dir(workspace()).env("WEFT_WRITE_WAYS", "1"))
}
