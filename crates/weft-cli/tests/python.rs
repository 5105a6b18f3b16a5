//! Runs the tests of the Python module, which runs `weft`.

use std::path::Path;
use std::process::Command;

#[test]
fn module_does_what_it_says() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let output = Command::new("python3")
        .args(["-B", "-W", "error", "-m", "unittest", "discover", "-s"])
        .arg(python.join("tests"))
        .env("PYTHONPATH", &python)
        .env("WEFT", env!("CARGO_BIN_EXE_weft"))
        .output()
        .expect("python3 is installed");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("Ran 25 tests"), "{text}");
}
