//! Where limits stand: in a `limits.rs`, so that a reader finds all bounds of a crate in one place.

use std::fs;
use std::path::Path;

use super::{allowances, crates, files};

/// Compares where constants named `…_MAX` or after a capacity are declared.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    for (name, folder) in crates::folders() {
        let mut found = Vec::new();
        for file in files::rust_files(&root.join(folder).join("src"))? {
            if file.ends_with("limits.rs") || is_for_tests(&file) || file.ends_with("bindings.rs") {
                continue;
            }
            let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let lines = limits(&text);
            found.extend(lines.iter().map(|(line, limit)| {
                format!("{}:{line}: {limit} belongs into limits.rs", file.display())
            }));
        }
        let (allowed, count) = (allowances::of(name).limits, found.len());
        let what = "limits outside of limits.rs";
        allowances::compare(name, what, allowed, count, found, findings);
    }
    Ok(())
}

/// Whether a file is a test's, or a simulation's.
pub(super) fn is_for_tests(file: &Path) -> bool {
    file.components().any(|part| {
        let part = part.as_os_str();
        part == "sim" || part == "fake" || part == "tests" || part == "tests.rs"
    })
}

/// The constants of a file that are limits, but for those of its test module.
fn limits(text: &str) -> Vec<(usize, &str)> {
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut found = Vec::new();
    for (index, line) in product.lines().enumerate() {
        // What is indented belongs to a type or a function, and bounds nothing else.
        let kinds = ["pub(crate) ", "pub(super) ", "pub "];
        let item = kinds.iter().find_map(|kind| line.strip_prefix(kind)).unwrap_or(line);
        let Some((name, _)) = item.strip_prefix("const ").and_then(|rest| rest.split_once(':'))
        else {
            continue;
        };
        if name.ends_with("_MAX") || name.ends_with("_CAPACITY") || name.ends_with("BACKLOG") {
            found.push((index + 1, name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::limits;

    #[test]
    fn limits_are_found_by_their_names() {
        let text = "const A_MAX: u8 = 1;\npub(crate) const B_CAPACITY: u8 = 2;\n\
                    const C_LEN: u8 = 3;\nimpl D {\n    const E_MAX: u8 = 4;\n}\n\
                    pub const BACKLOG: u8 = 5;\n#[cfg(test)]\nmod tests {\nconst F_MAX: u8 = 6;\n}";
        assert_eq!(limits(text), [(1, "A_MAX"), (2, "B_CAPACITY"), (7, "BACKLOG")]);
    }
}
