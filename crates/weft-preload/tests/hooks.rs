//! Runs a C program under `LD_PRELOAD` that calls each hooked function for emulated paths and for
//! others.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the library, which cargo does not build for a test that cannot link to it.
fn library() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp");
    let mut cargo = Command::new(env!("CARGO"));
    // What it depends on is there: this test depends on it, too.
    cargo.args(["build", "--quiet", "--offline", "--package", "weft-preload", "--target-dir"]);
    cargo.arg(target);
    assert!(cargo.status().expect("cargo runs this test").success());
    target.join("debug/libweft_preload.so")
}

#[test]
fn every_hook_answers_and_falls_through() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hooks");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hooks.c");
    let mut cc = Command::new("cc");
    let built = cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program).arg(source);
    assert!(built.status().expect("cc (apt-get install build-essential)").success());
    let output = Command::new(&program)
        .env("LD_PRELOAD", library())
        .env_remove("WEFT_PRESENT")
        .output()
        .expect("the program was just built");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hooks ok\n", "{errors}");
}
