use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::allowances::Allowance;
use super::check_crate;

const ROOT: &str = "\
//! A crate.
//!
//! # Layers
//!
//! ```text
//! top
//! middle other
//! low
//! ```

mod low;
mod middle;
mod other;
mod top;
";
const TOP: (&str, &str) = ("top.rs", "use crate::middle::Middle;\nuse crate::low;");
const LOW: (&str, &str) = ("low.rs", "pub(crate) struct Low;");
const OTHER: (&str, &str) = ("other.rs", "");

/// Returns the findings in a crate of these files, without the directory's name.
fn findings(files: &[(&str, &str)], allowance: Allowance) -> Vec<String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder: PathBuf =
        std::env::temp_dir().join(format!("weft-tidy-{}-{number}", std::process::id()));
    for (name, text) in files {
        let file = folder.join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
        fs::write(file, text).expect("a file");
    }
    let mut findings = Vec::new();
    check_crate("it", &folder.join("lib.rs"), allowance, &mut findings).expect("a graph");
    fs::remove_dir_all(&folder).expect("removal");
    let prefix = format!("{}/", folder.display());
    findings.iter().map(|finding| finding.replace(&prefix, "")).collect()
}

#[test]
fn imports_of_lower_layers_are_allowed() {
    let middle = ("middle/mod.rs", "mod part;\npub(crate) struct Middle(part::Part);");
    let part = ("middle/part.rs", "use crate::low::Low;\npub(super) struct Part(Low);");
    let files = [("lib.rs", ROOT), TOP, middle, part, LOW, OTHER];
    assert!(findings(&files, Allowance::NONE).is_empty());
}

#[test]
fn use_of_a_higher_layer_is_reported() {
    let root =
        ROOT.replace("//! top\n", "//! low\n").replacen("//! low\n//! ```", "//! top\n//! ```", 1);
    assert_ne!(root, ROOT);
    let middle = ("middle.rs", "use crate::low::Low;\npub(crate) struct Middle(Low);");
    let files = [("lib.rs", root.as_str()), TOP, middle, LOW, OTHER];
    assert_eq!(
        findings(&files, Allowance::NONE),
        [
            "middle.rs:1: middle uses low of a higher layer",
            "top.rs:1: top uses middle of a higher layer",
            "top.rs:2: top uses low of a higher layer",
            "it: 3 uses of higher layers, 0 allowed"
        ]
        .map(str::to_owned)
    );
}

#[test]
fn allowance_permits_uses_of_higher_layers() {
    let middle = ("middle.rs", "pub(crate) struct Middle;");
    let low = ("low.rs", "pub(crate) fn low() { crate::other::other(); }");
    let files = [("lib.rs", ROOT), TOP, middle, low, OTHER];
    let found = findings(&files, Allowance::NONE);
    assert_eq!(found[0], "low.rs:1: low uses other of a higher layer");
    assert!(findings(&files, Allowance { upward: 1, ..Allowance::NONE }).is_empty());
    let too_much = findings(&files, Allowance { upward: 2, ..Allowance::NONE });
    assert_eq!(too_much, ["it: 1 uses of higher layers: lower its allowance of 2"]);
}

#[test]
fn cycle_is_reported() {
    let middle = ("middle.rs", "use crate::other;\npub(crate) struct Middle;");
    let other = ("other.rs", "use crate::middle::Middle;");
    let files = [("lib.rs", ROOT), TOP, middle, LOW, other];
    assert_eq!(
        findings(&files, Allowance::NONE),
        [
            "it: modules that use one another in a cycle:",
            "    middle.rs:1: uses other",
            "    other.rs:1: uses middle",
            "it: 2 modules in cycles, 0 allowed"
        ]
    );
    assert!(findings(&files, Allowance { in_cycles: 2, ..Allowance::NONE }).is_empty());
}

#[test]
fn child_may_use_a_parent_that_only_declares() {
    let part = ("middle/part.rs", "use super::Middle;\nimpl Middle { fn a(&self) {} }");
    let declares = ("middle/mod.rs", "mod part;\nuse part::b;\npub(crate) struct Middle;");
    let files = [("lib.rs", ROOT), TOP, declares, part, LOW, OTHER];
    assert!(findings(&files, Allowance::NONE).is_empty());
    let works = "mod part;\nuse part::b;\npub(crate) struct Middle;\nfn a() { while b() {} }";
    let files = [("lib.rs", ROOT), TOP, ("middle/mod.rs", works), part, LOW, OTHER];
    assert_eq!(
        findings(&files, Allowance::NONE).last().expect("one"),
        "it: 2 modules in cycles, 0 allowed"
    );
}

#[test]
fn reexported_name_counts_for_its_declaring_module() {
    // `part` and `rest` use each other; one of them uses a name that their parent re-exports.
    let middle = ("middle/mod.rs", "mod part;\nmod rest;\npub(crate) use rest::Middle;");
    let part = ("middle/part.rs", "use super::Middle;\npub(super) struct Part;");
    let rest = ("middle/rest.rs", "use super::part::Part;\npub(crate) struct Middle;");
    let files = [("lib.rs", ROOT), TOP, middle, part, rest, LOW, OTHER];
    assert_eq!(
        findings(&files, Allowance::NONE).last().expect("one"),
        "it: 2 modules in cycles, 0 allowed"
    );
}

#[test]
fn every_module_must_be_in_one_layer() {
    let middle = ("middle.rs", "pub(crate) struct Middle;");
    let root = ROOT.replace("//! middle other", "//! middle low gone");
    let files = [("lib.rs", root.as_str()), TOP, middle, LOW, OTHER];
    assert_eq!(
        findings(&files, Allowance::NONE),
        [
            "lib.rs: low stands in two layers",
            "lib.rs: other is in no layer of `# Layers`",
            "lib.rs: gone of `# Layers` is no module"
        ]
    );
}
