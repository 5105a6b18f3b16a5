//! Checks the documents: their sizes, their links, and the files and crates that they name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::files::read;

/// Documents with a maximum size in bytes, because readers read them from beginning to end.
const SIZES: [(&str, usize); 2] = [("README.md", 10_000), ("ARCHITECTURE.md", 30_000)];
/// The document whose first table lists the crates.
const CRATES: &str = "CONTRIBUTING.md";

/// Checks every document at the root and under `docs/`.
///
/// # Errors
/// If a document cannot be read.
pub(super) fn check(
    root: &Path,
    sources: &[PathBuf],
    findings: &mut Vec<String>,
) -> Result<(), String> {
    let documents = documents(root)?;
    for (name, bytes_max) in SIZES {
        let bytes = read(&root.join(name))?.len();
        if bytes > bytes_max {
            findings.push(format!("{name}: {bytes} bytes, at most {bytes_max}"));
        }
    }
    for document in &documents {
        let text = read(document)?;
        let name = document.strip_prefix(root).unwrap_or(document).display();
        let folder = document.parent().unwrap_or(root);
        let links = broken_links(folder, document, &text);
        findings.extend(links.into_iter().map(|link| format!("{name}: no such link: {link}")));
        let files = missing_sources(root, sources, &text);
        findings.extend(files.into_iter().map(|file| format!("{name}: no such file: {file}")));
    }
    let crates = crates(root)?;
    findings.extend(different_crates(&crates, &read(&root.join(CRATES))?));
    Ok(())
}

/// Returns the documents at the root and under `docs/`.
///
/// # Errors
/// If a directory cannot be read.
pub(super) fn documents(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for folder in [root.to_owned(), root.join("docs"), root.join("docs/internals")] {
        let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        found.extend(paths.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    found.sort();
    Ok(found)
}

/// Returns the workspace's crates as CONTRIBUTING.md must name them.
fn crates(root: &Path) -> Result<BTreeSet<String>, String> {
    let folder = root.join("crates");
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let names = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = path.join("Cargo.toml").is_file().then(|| path.file_name())??;
        Some(format!("crates/{}", name.to_string_lossy()))
    });
    Ok(names.chain(["xtask".into()]).collect())
}

/// Returns the differences between the crates and the first column of the first table of `text`.
fn different_crates(crates: &BTreeSet<String>, text: &str) -> Vec<String> {
    let rows = text.lines().skip_while(|line| !line.starts_with('|')).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let named: BTreeSet<String> =
        rows.filter_map(|row| row.split('`').nth(1).map(str::to_owned)).collect();
    let missing = crates.difference(&named).map(|name| format!("{CRATES}: {name} is missing"));
    let gone = named.iter().filter(|name| name.starts_with("crates/") && !crates.contains(*name));
    missing.chain(gone.map(|name| format!("{CRATES}: {name} does not exist"))).collect()
}

/// Returns the links in `text` whose file or heading does not exist.
fn broken_links(folder: &Path, document: &Path, text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let local = targets.filter(|target| !target.contains("://"));
    let broken = local.filter(|target| {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let file = if path.is_empty() { document.to_owned() } else { folder.join(path) };
        !file.exists() || !anchor.is_empty() && !has_heading(&file, anchor)
    });
    broken.map(str::to_owned).collect()
}

fn has_heading(file: &Path, anchor: &str) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| line.trim_start_matches('#').trim()).any(|title| slug(title) == anchor)
}

/// Returns the anchor that Markdown renderers generate for a heading.
fn slug(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns the Rust files that `text` names in backticks and that do not exist.
fn missing_sources(root: &Path, sources: &[PathBuf], text: &str) -> Vec<String> {
    let names = text.split('`').skip(1).step_by(2).filter(|name| {
        name.ends_with(".rs") && !name.contains(|c: char| c.is_whitespace() || "{*<".contains(c))
    });
    let missing = names.filter(|name| {
        !root.join(name).is_file() && !sources.iter().any(|source| source.ends_with(name))
    });
    missing.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crate_that_is_not_in_the_table_is_reported() {
        let table = "| folder | what |\n| --- | --- |\n| `crates/a` | |\n| `crates/gone` | |\n\nx";
        let crates = ["crates/a", "crates/b"].map(str::to_owned).into();
        let expected =
            ["CONTRIBUTING.md: crates/b is missing", "CONTRIBUTING.md: crates/gone does not exist"];
        assert_eq!(different_crates(&crates, table), expected);
    }

    #[test]
    fn link_to_no_file_or_heading_is_reported() {
        let root = crate::dist::workspace();
        let readme = root.join("README.md");
        let text = "[a](README.md#limits-that-bite-first) [b](README.md#gone) [c](gone.md) \
                    [d](https://example.org)";
        assert_eq!(broken_links(&root, &readme, text), ["README.md#gone", "gone.md"]);
    }

    #[test]
    fn file_that_does_not_exist_is_reported() {
        let root = crate::dist::workspace();
        let sources = [PathBuf::from("/w/crates/weft-sys/src/lock.rs")];
        let text = "`lock.rs`, `weft-sys/src/lock.rs`, `gone.rs`, `{a,b}.rs`";
        assert_eq!(missing_sources(&root, &sources, text), ["gone.rs"]);
    }

    #[test]
    fn slug_matches_the_anchor_of_renderers() {
        assert_eq!(
            slug("Transports and ways to wait: weft bench"),
            "transports-and-ways-to-wait-weft-bench"
        );
    }
}
