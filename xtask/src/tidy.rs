//! House rules that no compiler checks. Each finding names the file, the line and the rule.

use std::fs;
use std::path::{Path, PathBuf};

/// Crates whose code runs inside somebody else's process: they print nothing.
const SILENT: &[&str] = &[
    "weft-wire",
    "weft-sys",
    "weft-engine",
    "weft-verbs",
    "weft-preload",
    "weft-stream",
    "weft-sockets",
    "weft-extended",
];
/// Crates that may opt in to unsafe code, file by file: the system's edge, the C faces, and who
/// owns the memory that peers write to. Tests may, too.
const UNSAFE: &[&str] =
    &["weft-sys", "weft-verbs", "weft-preload", "weft-sockets", "weft-extended", "weft-bench"];
/// What a crate may depend on within the workspace: each floor only on those below it.
const LAYERS: &[(&str, &[&str])] = &[
    ("weft-wire", &[]),
    ("weft-sys", &[]),
    ("weft-engine", &["weft-wire", "weft-sys"]),
    ("weft-verbs", &["weft-engine", "weft-sys"]),
    ("weft-preload", &[]),
    ("weft-stream", &["weft-sys"]),
    ("weft-extended", &[]),
    ("weft-sockets", &["weft-engine", "weft-extended", "weft-stream", "weft-sys"]),
    ("weft-bench", &["weft-engine", "weft-stream", "weft-sys"]),
    ("weft-cli", &["weft-bench", "weft-engine", "weft-stream", "weft-sys"]),
    ("weft-lab", &["weft-stream"]),
];
const LINE_LEN_MAX: usize = 100;
const FILE_LINES_MAX: usize = 1_000;

/// # Errors
/// The findings, one a line.
pub(crate) fn run(_args: &[String]) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask has no parent")?;
    let mut findings = Vec::new();
    for (name, allowed) in LAYERS {
        check_layer(&root.join("crates").join(name), name, allowed, &mut findings);
    }
    for file in
        rust_files(&root.join("crates"))?.into_iter().chain(rust_files(&root.join("xtask"))?)
    {
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        check_file(&file, &text, &mut findings);
    }
    if findings.is_empty() { Ok(()) } else { Err(findings.join("\n")) }
}

fn check_layer(krate: &Path, name: &str, allowed: &[&str], findings: &mut Vec<String>) {
    let manifest = krate.join("Cargo.toml");
    let Ok(text) = fs::read_to_string(&manifest) else {
        findings.push(format!("{}: crate is missing", manifest.display()));
        return;
    };
    // What tests use is no layer of the product.
    let product = text.split("[dev-dependencies]").next().unwrap_or_default();
    let used = LAYERS.iter().map(|(other, _)| *other).filter(|other| {
        let key = format!("\n{other}");
        *other != name && product.contains(&key)
    });
    for other in used.filter(|other| !allowed.contains(other)) {
        findings.push(format!("{}: {name} must not depend on {other}", manifest.display()));
    }
}

fn check_file(file: &Path, text: &str, findings: &mut Vec<String>) {
    let within = |names: &[&str]| {
        let path = file.to_string_lossy();
        names.iter().any(|name| path.contains(&format!("crates/{name}/src")))
    };
    // The engine's simulation is a test that stands beside what it looks into.
    let is_product = file.components().any(|part| part.as_os_str() == "src")
        && !file.components().any(|part| part.as_os_str() == "sim");
    // Bindings are a tool's output, and this file names what it looks for.
    if file.ends_with("bindings.rs") || file.ends_with("tidy.rs") {
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

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
