//! Writes the packages' copyright files: the owners and licences of all linked crates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::supply::{Metadata, text_of};

/// The crates that the packages contain.
const ROOTS: [&str; 4] = ["weft-cli", "weft-preload", "weft-sockets", "weft-verbs"];

/// The contents of the copyright files.
pub(super) struct Texts {
    /// Each crate and its licence, in Debian's format.
    pub(super) summary: String,
    /// The licence files of all crates. Each text appears once.
    pub(super) licences: String,
}

pub(super) fn texts(source: &Path) -> Result<Texts, String> {
    let metadata = Metadata::read()?;
    let linked = metadata.linked_into(&ROOTS);
    let mit = read(&source.join("LICENSE-MIT"))?;
    let mut summary = String::from(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: Weft\n\
         Comment: The crates below are linked into the programs and libraries. Their\n\
         \x20licence files are in /usr/share/doc/weft/licences-of-crates.gz.\n\n\
         Files: *\nCopyright: 2026 The Weft authors\nLicense: Apache-2.0 or MIT\n",
    );
    let mut licences: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in linked.iter().filter(|package| package["source"].is_string()) {
        let (name, version) = (text_of(package, "name")?, text_of(package, "version")?);
        let authors = authors(package);
        summary += &format!(
            "\nFiles: {name}-{version}/*\nCopyright: {authors}\nLicense: {}\n",
            text_of(package, "license")?.replace(" OR ", " or ").replace(" AND ", " and "),
        );
        let manifest = Path::new(text_of(package, "manifest_path")?);
        let folder = manifest.parent().ok_or("a manifest without a folder")?;
        for file in licence_files(folder)? {
            licences
                .entry(read(&folder.join(file))?)
                .or_default()
                .insert(format!("{name} {version}"));
        }
    }
    summary += "\nLicense: Apache-2.0\n On Debian systems: /usr/share/common-licenses/Apache-2.0\n";
    summary += "\nLicense: MIT\n";
    for line in mit.lines() {
        summary += &format!(" {}\n", if line.is_empty() { "." } else { line });
    }
    let licences = licences.iter().map(|(text, crates)| {
        let crates: Vec<&str> = crates.iter().map(String::as_str).collect();
        format!("=== {}\n\n{}\n\n", crates.join(", "), text.trim_end())
    });
    Ok(Texts { summary, licences: licences.collect() })
}

/// Returns the authors that the manifest names.
fn authors(package: &Value) -> String {
    let authors = package["authors"].as_array().into_iter().flatten();
    let authors: Vec<&str> = authors.filter_map(Value::as_str).collect();
    if authors.is_empty() { "its authors".into() } else { authors.join("\n           ") }
}

/// Returns the names of a crate's licence files.
fn licence_files(folder: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let files = entries.flatten().filter(|entry| entry.path().is_file());
    let names = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| is_licence(name)).collect();
    names.sort();
    Ok(names)
}

fn is_licence(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let stems = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
    stems.iter().any(|stem| name.starts_with(stem))
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::{is_licence, texts};
    use crate::dist::workspace;

    #[test]
    fn licence_files_are_recognised_by_name() {
        assert!(is_licence("LICENSE-MIT") && is_licence("license.txt") && is_licence("COPYING"));
        assert!(!is_licence("lib.rs") && !is_licence("README.md"));
    }

    /// Crates that only tests use are not linked, and need no mention.
    #[test]
    fn linked_crates_are_named_and_those_of_tests_are_not() {
        let texts = texts(&workspace()).expect("texts");
        assert!(texts.summary.contains("\nFiles: rustix-"));
        assert!(texts.summary.contains("\nFiles: clap-"));
        assert!(!texts.summary.contains("\nFiles: proptest-"));
        assert!(texts.licences.contains("Permission is hereby granted, free of charge"));
    }
}
