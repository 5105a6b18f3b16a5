//! Checks where limits are declared: in a `limits.rs`, so that all limits of a crate are in one
//! place.

use std::fs;
use std::path::Path;

use super::{allowances, crates, files};

/// Ends of the names of limits.
const ENDS: [&str; 4] = ["_MAX", "_CAPACITY", "BACKLOG", "SLOTS"];

/// Reports constants whose name ends like that of a limit and that are declared elsewhere.
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
                format!("{}:{line}: {limit} belongs in limits.rs", file.display())
            }));
        }
        let (allowed, count) = (allowances::of(name).limits, found.len());
        let what = "limits outside of limits.rs";
        allowances::compare(name, what, allowed, count, found, findings);
    }
    Ok(())
}

/// Returns whether a file belongs to a test or to a simulation.
pub(super) fn is_for_tests(file: &Path) -> bool {
    file.components().any(|part| {
        let part = part.as_os_str();
        part == "sim" || part == "fake" || part == "tests" || part == "tests.rs"
    })
}

/// Returns the constants of a file that are limits, without those of its test module.
fn limits(text: &str) -> Vec<(usize, &str)> {
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut found = Vec::new();
    for (index, line) in product.lines().enumerate() {
        // An indented constant belongs to a type or a function and is not a limit of the crate.
        let kinds = ["pub(crate) ", "pub(super) ", "pub "];
        let item = kinds.iter().find_map(|kind| line.strip_prefix(kind)).unwrap_or(line);
        let Some((name, _)) = item.strip_prefix("const ").and_then(|rest| rest.split_once(':'))
        else {
            continue;
        };
        if ENDS.iter().any(|end| name.ends_with(end)) {
            found.push((index + 1, name));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::limits;

    #[test]
    fn limits_are_found_by_name() {
        let text = "const A_MAX: u8 = 1;\npub(crate) const B_CAPACITY: u8 = 2;\n\
                    const C_LEN: u8 = 3;\nimpl D {\n    const E_MAX: u8 = 4;\n}\n\
                    pub const BACKLOG: u8 = 5;\nconst G_SLOTS: u8 = 7;\n\
                    #[cfg(test)]\nmod tests {\nconst F_MAX: u8 = 6;\n}";
        assert_eq!(limits(text), [(1, "A_MAX"), (2, "B_CAPACITY"), (7, "BACKLOG"), (8, "G_SLOTS")]);
    }
}
