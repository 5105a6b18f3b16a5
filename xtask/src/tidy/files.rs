//! Checks rules for the lines of source files. Each finding names the file, the line and the rule.

use std::fs;
use std::path::{Path, PathBuf};

use crate::limits::{FILE_LINES_MAX, LINE_LEN_MAX};

/// Crates whose code runs inside other programs. They must not print.
const SILENT: &[&str] = &[
    "weft-wire",
    "weft-sys",
    "weft-engine",
    "weft-verbs",
    "weft-preload",
    "weft-stream",
    "weft-sockets",
    "weft-extended",
    "weft-target",
    "weft-fabric",
    "weft-rdma",
    "weft-transfer",
    "weft-pipeline",
    "weft-tuples",
    "weft-tuples-c",
    "weft-tuples-replica",
];
/// Crates that may opt in to unsafe code, file by file: the crates with system calls, with C ABIs,
/// or with memory that peers write to, and the lab, which makes network devices. Tests may opt in,
/// too.
const UNSAFE: &[&str] = &[
    "weft-sys",
    "weft-verbs",
    "weft-launch",
    "weft-preload",
    "weft-fabric",
    "weft-rdma",
    "weft-sockets",
    "weft-extended",
    "weft-tuples-c",
    "weft-bench",
    "weft-lab",
];

pub(super) fn check(files: &[PathBuf], findings: &mut Vec<String>) -> Result<(), String> {
    for file in files {
        check_file(file, &read(file)?, findings);
    }
    Ok(())
}

/// # Errors
/// If the file cannot be read; the message names it.
pub(super) fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))
}

fn check_file(file: &Path, text: &str, findings: &mut Vec<String>) {
    let within = |names: &[&str]| {
        let path = file.to_string_lossy();
        names.iter().any(|name| path.contains(&format!("crates/{name}/src")))
    };
    // The engine's simulation is a test in the directory of the code that it tests.
    let is_product = file.components().any(|part| part.as_os_str() == "src")
        && !file.components().any(|part| part.as_os_str() == "sim");
    // Bindings are generated, and this file contains the patterns that it looks for.
    if file.ends_with("bindings.rs") || file.ends_with("tidy/files.rs") {
        return;
    }
    if text.lines().count() > FILE_LINES_MAX {
        findings.push(format!("{}: more than {FILE_LINES_MAX} lines", file.display()));
    }
    for (index, line) in text.lines().enumerate() {
        let mut report = |rule: &str| {
            findings.push(format!("{}:{}: {rule}", file.display(), index + 1));
        };
        if line.chars().count() > LINE_LEN_MAX {
            report("line of more than 100 characters");
        }
        if ["todo!(", "unimplemented!(", "dbg!("].iter().any(|banned| line.contains(banned)) {
            report("unfinished code");
        }
        if ["TODO", "FIXME", "XXX"].iter().any(|mark| line.contains(mark)) {
            report("leftover mark: do it, or write why not");
        }
        let elsewhere =
            ["SAFETY: as above", "SAFETY: as before", "SAFETY: as for ", "SAFETY: as in "];
        if elsewhere.iter().any(|opening| line.contains(opening)) {
            report("a SAFETY comment that leaves the proof to another");
        }
        if is_product && within(SILENT) && (line.contains("println!(") || line.contains("eprint!("))
        {
            report("a library prints nothing");
        }
        if is_product && line.contains("allow(unsafe_code)") && !within(UNSAFE) {
            report("unsafe code outside of its crates");
        }
    }
    let opts_in = text.contains("#![allow(unsafe_code)]");
    if is_product && opts_in && !text.contains("//! # Safety") {
        findings.push(format!("{}: unsafe file without a `//! # Safety` header", file.display()));
    }
}

/// Returns the Rust files in a directory and below it.
///
/// # Errors
/// If a directory cannot be read; the message names it.
pub(super) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    files_with(folder, &["rs"])
}

/// Returns the files in a directory and below it that have one of these extensions.
///
/// # Errors
/// If a directory cannot be read; the message names it.
pub(super) fn files_with(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
            if path.is_dir() {
                // Cargo puts this file into the directories in which it builds.
                if !path.join("CACHEDIR.TAG").exists() {
                    folders.push(path);
                }
            } else if extensions.iter().any(|end| path.extension().is_some_and(|it| it == *end)) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check_file(Path::new("crates/weft-sys/src/a.rs"), text, &mut findings);
        findings
    }

    #[test]
    fn directories_of_sources_are_not_taken_for_those_of_builds() {
        let crates = crate::dist::workspace().join("crates");
        let files = rust_files(&crates).expect("a readable tree");
        assert!(files.contains(&crates.join("weft-cli/src/target/mod.rs")));
        let folder = std::env::temp_dir().join(format!("weft-build-{}", std::process::id()));
        let build = folder.join("target");
        fs::create_dir_all(&build).expect("a temporary directory");
        for file in ["a.rs", "target/CACHEDIR.TAG", "target/b.rs", "c.toml"] {
            fs::write(folder.join(file), "").expect("a temporary file");
        }
        assert_eq!(rust_files(&folder), Ok(vec![folder.join("a.rs")]));
        fs::remove_dir_all(&folder).expect("a temporary directory");
    }

    #[test]
    fn safety_comment_has_a_proof_of_its_own() {
        let rule = "crates/weft-sys/src/a.rs:1: a SAFETY comment that leaves the proof to another";
        for opening in ["as above.", "as before.", "as for `peek`.", "as in `peek`."] {
            assert_eq!(findings(&format!("// SAFETY: {opening}\n")), [rule]);
        }
        assert!(findings("// SAFETY: the caller's promise.\n").is_empty());
    }
}
