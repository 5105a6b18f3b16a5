//! Checks that the tests that SPECIFICATION.md names exist.

use std::fs;
use std::path::{Path, PathBuf};

/// The crate of tests that are named without a crate.
const DEFAULT: &str = "weft-lab";
/// Possible paths of the specification.
const PLACES: [&str; 2] = ["SPECIFICATION.md", "docs/specification.md"];

/// Checks each name in the column "enforced by" of the tables.
///
/// # Errors
/// If the specification does not exist.
pub(super) fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    let file = PLACES.iter().map(|place| root.join(place)).find(|file| file.is_file());
    let file = file.ok_or("no SPECIFICATION.md")?;
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    for (line, name) in missing(root, &text) {
        findings.push(format!("{}:{line}: `{name}` does not exist", file.display()));
    }
    Ok(())
}

/// Returns the names in the tables of `text` that do not exist, with their lines.
fn missing(root: &Path, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_table = false;
    for (index, line) in text.lines().enumerate() {
        let Some(row) = line.strip_prefix('|').and_then(|row| row.strip_suffix('|')) else {
            is_table = false;
            continue;
        };
        let last = row.rsplit('|').next().unwrap_or_default().trim();
        if last == "enforced by" {
            is_table = true;
        } else if is_table {
            let parts = last.split(';').flat_map(|part| missing_of_part(root, part));
            found.extend(parts.map(|name| (index + 1, name)));
        }
    }
    found
}

/// Checks one part of a cell. A part names at most one crate: `` `crate`: `test`, `test` ``.
fn missing_of_part(root: &Path, part: &str) -> Vec<String> {
    let mut krate = root.join("crates").join(DEFAULT);
    let mut file: Option<PathBuf> = None;
    let mut missing = Vec::new();
    for name in part.split('`').skip(1).step_by(2).flat_map(alternatives) {
        let exists = if let Some(command) = name.strip_prefix("cargo xtask ") {
            module(&root.join("xtask/src"), command).is_some()
        } else if let Some(target) = name.strip_prefix("make ") {
            contains(&root.join("Makefile"), &format!("\n{target}:"))
        } else if let Some(example) = name.strip_prefix("--example ") {
            krate.join("examples").join(format!("{example}.rs")).is_file()
        } else if name.starts_with("weft-") {
            krate = root.join("crates").join(&name);
            krate.is_dir()
        } else if name.contains('/') {
            let places = [root.join(&name), krate.join(&name), krate.join("src").join(&name)];
            file = places.into_iter().find(|place| place.exists());
            file.is_some()
        } else if !name.contains(|letter: char| letter.is_lowercase()) || name.contains(['-', '='])
        {
            true // A variable, or an option of a test.
        } else {
            let test = name.trim_end_matches('*');
            file.as_ref().is_some_and(|file| contains(file, test) || is_case(&krate, test))
                || is_inside(&krate.join("src"), &name)
        };
        if !exists {
            missing.push(name);
        }
    }
    missing
}

/// Expands alternatives: `a{b,c}d` becomes `abd` and `acd`.
fn alternatives(name: &str) -> Vec<String> {
    let Some((before, (inner, after))) =
        name.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return vec![name.to_owned()];
    };
    inner.split(',').map(|one| format!("{before}{one}{after}")).collect()
}

fn contains(file: &Path, text: &str) -> bool {
    fs::read_to_string(file).is_ok_and(|all| all.contains(text))
}

/// Returns whether a program of the crate's tests has a case of this name.
fn is_case(krate: &Path, name: &str) -> bool {
    let mut folders = vec![krate.join("programs")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|it| it.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if contains(&path, name) {
                return true;
            }
        }
    }
    false
}

/// Returns the file of a module in its parent's directory.
fn module(folder: &Path, name: &str) -> Option<PathBuf> {
    let files = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
    files.into_iter().find(|file| file.is_file())
}

/// Returns whether `source` has the module, or the item of a module, that a path names.
fn is_inside(source: &Path, path: &str) -> bool {
    let mut folder = source.to_owned();
    let mut file = None;
    for segment in path.split("::") {
        match (module(&folder, segment), &file) {
            (Some(found), _) => {
                file = Some(found);
                folder.push(segment);
            }
            (None, Some(file)) => {
                return ["mod", "fn"]
                    .iter()
                    .any(|word| contains(file, &format!("{word} {segment}")));
            }
            (None, None) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{alternatives, missing};
    use crate::dist::workspace;

    fn missing_in(cell: &str) -> Vec<String> {
        let text = format!("| promise | enforced by |\n| --- | --- |\n| it works | {cell} |\n");
        missing(&workspace(), &text).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn existing_names_are_found() {
        assert!(missing_in("`tests/rping.rs`, `crates/weft-lab/tests/{tcp,fio}.rs`").is_empty());
        assert!(missing_in("`weft-sys`: `lock::models`, by loom; `tests/tcp.rs`").is_empty());
        assert!(missing_in("`cargo xtask rfc`; `make bench` (idle); review").is_empty());
        assert!(missing_in("`tests/sockets_semantics.rs`: `share_*`").is_empty());
    }

    #[test]
    fn missing_names_are_reported() {
        assert_eq!(missing_in("`tests/rping.rs`, `tests/gone.rs`"), ["tests/gone.rs"]);
        assert_eq!(missing_in("`weft-sys`: `lock::gone`"), ["lock::gone"]);
        assert_eq!(missing_in("`weft-sys`: `gone::models`"), ["gone::models"]);
        assert_eq!(missing_in("`weft-gone`"), ["weft-gone"]);
        let commands = missing_in("`cargo xtask gone`; `make gone`");
        assert_eq!(commands, ["cargo xtask gone", "make gone"]);
        assert_eq!(missing_in("`tests/tcp.rs`: `gone_*`"), ["gone_*"]);
    }

    #[test]
    fn braces_are_expanded() {
        assert_eq!(alternatives("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
    }
}
