//! Checks that the libraries which run inside programs make their system calls by
//! `weft_sys::calls`. The kernel reports a call that is made elsewhere once the program has a
//! socket (Syscall User Dispatch), and a report costs more than the call.

use std::fs;
use std::path::Path;

use super::files;
use super::tokens::{Token, tokens};

/// The crates of these libraries that do not use rustix.
const WITHOUT: &[&str] = &[
    "weft-abi",
    "weft-wire",
    "weft-engine",
    "weft-verbs",
    "weft-preload",
    "weft-stream",
    "weft-sockets",
];
/// The directories that may use its types.
const TYPES_ONLY: &[&str] = &["crates/weft-sys/src/calls", "crates/weft-extended/src"];
/// The functions and modules of rustix that make no system call: the C library's auxiliary vector
/// and the kernel's vdso answer, or nobody is asked. Some have constants.
const HARMLESS: &[&str] = &[
    "clock_gettime",
    "ipproto",
    "linux_execfn",
    "major",
    "minor",
    "netlink",
    "retry_on_intr",
    "stderr",
];
/// Types whose functions make system calls.
const CALLING: &[&str] = &["Dir", "RawDir", "Reader"];

/// Reports each dependency on rustix, each use of it outside of the wrappers, and each function of
/// it that the wrappers use.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    for krate in WITHOUT {
        let manifest = root.join("crates").join(krate).join("Cargo.toml");
        let text =
            fs::read_to_string(&manifest).map_err(|e| format!("{}: {e}", manifest.display()))?;
        if depends_on_rustix(&text) {
            let place = manifest.display();
            findings.push(format!("{place}: make system calls by weft_sys::calls, not by rustix"));
        }
    }
    for krate in ["weft-sys", "weft-extended"] {
        for file in files::rust_files(&root.join("crates").join(krate).join("src"))? {
            let within = file.strip_prefix(root).unwrap_or(&file);
            if within.file_name().is_some_and(|name| name == "tests.rs") {
                continue;
            }
            let may_use_types = TYPES_ONLY.iter().any(|directory| within.starts_with(directory));
            for (name, line) in used(&files::read(&file)?) {
                if !may_use_types || is_call(&name) {
                    let place = within.display();
                    findings.push(format!("{place}:{line}: rustix's {name} in a library"));
                }
            }
        }
    }
    Ok(())
}

/// Returns whether a manifest has rustix among the dependencies of the product.
fn depends_on_rustix(manifest: &str) -> bool {
    let mut is_product = false;
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            is_product = line.contains("dependencies") && !line.contains("dev-dependencies");
            return is_product && line.contains("rustix");
        }
        is_product && line.split(['.', '=', ' ']).next() == Some("rustix")
    })
}

/// Returns whether a name of rustix's may stand for a system call.
fn is_call(name: &str) -> bool {
    let is_type = name.starts_with(|first: char| first.is_ascii_uppercase());
    if is_type { CALLING.contains(&name) } else { !HARMLESS.contains(&name) }
}

/// Returns the last names of all paths into rustix outside of tests, each with its line.
fn used(text: &str) -> Vec<(String, usize)> {
    let product = match text.find("mod tests {") {
        Some(at) => &text[..at],
        None => text,
    };
    let tokens = tokens(product);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at += 1;
        if tokens[at - 1].text != "rustix" || tokens.get(at).is_none_or(|next| next.text != "::") {
            continue;
        }
        let mut depth = 0;
        while let Some(token) = tokens.get(at) {
            match token.text {
                "{" => depth += 1,
                "}" => depth -= 1,
                "::" | "," => {}
                "*" => found.push((token.text.to_owned(), token.line)),
                _ if !token.is_word() => break,
                _ if !is_followed_by_path(&tokens, at) => {
                    found.push((token.text.to_owned(), token.line));
                }
                _ => {}
            }
            at += 1;
            // A path outside of braces ends with its last name.
            if depth == 0 && tokens[at - 1].is_word() && !is_followed_by_path(&tokens, at - 1) {
                break;
            }
        }
    }
    found
}

/// Returns whether a name of a path is not its last one. A type's own names do not count.
fn is_followed_by_path(tokens: &[Token<'_>], at: usize) -> bool {
    let is_type = tokens[at].text.starts_with(|first: char| first.is_ascii_uppercase());
    !is_type && tokens.get(at + 1).is_some_and(|next| next.text == "::")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_distinguished_from_types() {
        let text = "use rustix::io::Errno;\npub use rustix::net::{\n    SocketType, bind,\n    \
                    sockopt::{self, Timeout},\n};\nfn f() { rustix::rand::getrandom(x, Pid::y()); \
                    let e = rustix::io::Errno::INTR; g(e) }\nuse rustix::mm::*;\n\
                    mod tests { use rustix::fs::open; }\n";
        let names: Vec<_> = used(text);
        let calls: Vec<_> = names.iter().filter(|(name, _)| is_call(name)).collect();
        let known =
            [("bind".into(), 3), ("self".into(), 4), ("getrandom".into(), 6), ("*".into(), 7)];
        assert_eq!(calls, known.iter().collect::<Vec<_>>());
        assert!(names.contains(&("Errno".into(), 1)) && names.contains(&("Timeout".into(), 4)));
        assert!(is_call("RawDir") && !is_call("Pid") && !is_call("stderr"));
    }

    #[test]
    fn dependency_of_tests_is_none_of_the_product() {
        assert!(!depends_on_rustix("[dependencies]\nlibc = \"1\"\n[dev-dependencies]\nrustix = 1"));
        assert!(depends_on_rustix("[dependencies]\nrustix.workspace = true\n"));
        assert!(depends_on_rustix("[target.x86_64.dependencies.rustix]\nversion = \"1\"\n"));
    }
}
