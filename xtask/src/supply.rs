//! Checks the dependencies of the workspace: licences, sources, versions, and the compiler that
//! they need.
//!
//! The database of advisories must be downloaded, so `cargo deny` checks them, where it is
//! installed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::dist::workspace;
use crate::tools::output;

/// Licences that a crate may have, or offer as an alternative.
const LICENCES: [&str; 10] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
/// Crates that are used in two versions, because other crates do not agree on one.
const DUPLICATES: [&str; 11] = [
    "cpufeatures",
    "derive_more",
    "derive_more-impl",
    "embedded-io",
    "getrandom",
    "rand",
    "rand_chacha",
    "rand_core",
    "syn",
    "thiserror",
    "thiserror-impl",
];
const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Checks all crates of the workspace and its dependencies on this machine's architecture. With
/// `--advisories` instead checks what is known against them, which changes with the day.
///
/// # Errors
/// Lists the findings, one a line; or the error of cargo.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    match args {
        [] => {}
        [option] if option == "--advisories" => return advisories(),
        _ => return Err("takes --advisories or nothing".into()),
    }
    let (packages, compiler) = (Metadata::read()?.packages, compiler()?);
    let findings = check(&packages, &compiler)?;
    if findings.is_empty() {
        println!("{} crates: licences, sources and versions are as listed", packages.len());
        let built = env!("CARGO_PKG_RUST_VERSION");
        if release(&compiler) != release(built) {
            println!("this compiler is {compiler}: rust-version {built} is not built here");
        }
        Ok(())
    } else {
        Err(format!("\n{}", findings.join("\n")))
    }
}

/// Has `cargo deny` check the advisories, if it is installed.
///
/// # Errors
/// What it prints, if there is an advisory, or if it cannot get the database.
fn advisories() -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let deny = |args: &[&str]| {
        output(Command::new(&cargo).current_dir(workspace()).arg("deny").args(args))
    };
    if deny(&["--version"]).is_err() {
        println!("advisories are not checked: cargo deny is not installed");
        return Ok(());
    }
    deny(&["--all-features", "check", "advisories"])?;
    println!("no advisory applies to the crates");
    Ok(())
}

/// The output of `cargo metadata` for the workspace's crates and their dependencies.
#[derive(Debug)]
pub(crate) struct Metadata {
    packages: Vec<Value>,
    nodes: Vec<Value>,
}

impl Metadata {
    /// Runs `cargo metadata`.
    ///
    /// # Errors
    /// Errors of cargo and of the compiler.
    pub(crate) fn read() -> Result<Self, String> {
        let compiler = output(Command::new("rustc").arg("-vV"))?;
        let host = compiler.lines().find_map(|line| line.strip_prefix("host: "));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(workspace()).args(["metadata", "--format-version", "1", "--locked"]);
        command.args(["--filter-platform", host.ok_or("rustc names no host")?]);
        let metadata: Value = serde_json::from_str(&output(&mut command)?)
            .map_err(|e| format!("cargo metadata: {e}"))?;
        let nodes =
            metadata["resolve"]["nodes"].as_array().ok_or("cargo metadata has no graph")?.clone();
        let used: BTreeSet<&str> = nodes.iter().filter_map(|node| node["id"].as_str()).collect();
        let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
        let is_used = |it: &&Value| it["id"].as_str().is_some_and(|id| used.contains(id));
        let packages = packages.iter().filter(is_used).cloned().collect();
        Ok(Self { packages, nodes })
    }

    /// Returns the crates that are linked into `roots`, and the crates that run during their build.
    pub(crate) fn linked_into(&self, roots: &[&str]) -> Vec<&Value> {
        let is_root = |it: &&Value| it["name"].as_str().is_some_and(|name| roots.contains(&name));
        let mut open: Vec<&str> =
            self.packages.iter().filter(is_root).filter_map(|it| it["id"].as_str()).collect();
        let mut found: BTreeSet<&str> = open.iter().copied().collect();
        while let Some(at) = open.pop() {
            let node = self.nodes.iter().find(|node| node["id"].as_str() == Some(at));
            let uses = node.and_then(|node| node["deps"].as_array()).into_iter().flatten();
            for used in uses {
                let kinds = used["dep_kinds"].as_array().into_iter().flatten();
                let is_for_tests = kinds.clone().all(|kind| kind["kind"].as_str() == Some("dev"));
                if let Some(id) = used["pkg"].as_str().filter(|_| !is_for_tests)
                    && found.insert(id)
                {
                    open.push(id);
                }
            }
        }
        let is_found = |it: &&Value| it["id"].as_str().is_some_and(|id| found.contains(id));
        self.packages.iter().filter(is_found).collect()
    }
}

/// Returns a field that each crate has.
///
/// # Errors
/// If the field is missing.
pub(crate) fn text_of<'package>(
    package: &'package Value,
    field: &str,
) -> Result<&'package str, String> {
    package[field].as_str().ok_or_else(|| format!("a crate without {field}"))
}

/// Returns the version of the compiler in use, for example `1.95`.
fn compiler() -> Result<String, String> {
    let version = output(Command::new("rustc").arg("-V"))?;
    let number = version.split(' ').nth(1).ok_or("rustc has no version")?;
    Ok(number.rsplit_once('.').map_or(number, |(version, _)| version).to_owned())
}

fn check(packages: &[Value], compiler: &str) -> Result<Vec<String>, String> {
    let mut findings = Vec::new();
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    let mut declared = None;
    for package in packages {
        let name = text_of(package, "name")?;
        *versions.entry(name).or_default() += 1;
        let needs = package["rust_version"].as_str();
        match package["source"].as_str() {
            None => declared = declared.or(needs),
            Some(SOURCE) => {}
            Some(source) => findings.push(format!("{name} comes from {source}")),
        }
        match package["license"].as_str() {
            Some(licence) if is_allowed(licence) => {}
            licence => {
                findings.push(format!("{name} has the licence {}", licence.unwrap_or("(none)")));
            }
        }
    }
    for (name, _) in versions.iter().filter(|(_, count)| **count > 1) {
        if !DUPLICATES.contains(name) {
            findings.push(format!("{name} is used in several versions"));
        }
    }
    for name in DUPLICATES {
        if versions.get(name).is_none_or(|count| *count < 2) {
            findings.push(format!("{name} is used in one version: take it off the list"));
        }
    }
    let declared = declared.ok_or("the workspace declares no rust-version")?;
    if release(compiler) < release(declared) {
        findings.push(format!("rust-version is {declared}, this compiler is {compiler}"));
    }
    for package in packages {
        if let (Some(name), Some(needs)) =
            (package["name"].as_str(), package["rust_version"].as_str())
            && release(needs) > release(declared)
        {
            findings.push(format!("{name} needs Rust {needs}, rust-version is {declared}"));
        }
    }
    Ok(findings)
}

/// Returns the minor version of a Rust version. It is `None` if the crate names no version.
fn release(version: &str) -> Option<u32> {
    version.split('.').nth(1)?.parse().ok()
}

/// Returns whether the listed licences satisfy an SPDX expression.
fn is_allowed(expression: &str) -> bool {
    let is_met = |one: &str| {
        one.replace('/', " OR ")
            .split(" OR ")
            .any(|licence| LICENCES.contains(&licence.trim().trim_matches(['(', ')'])))
    };
    expression.split(" AND ").all(is_met)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{DUPLICATES, SOURCE, check, is_allowed};

    fn package(name: &str) -> Value {
        json!({"name": name, "source": SOURCE, "license": "MIT", "rust_version": "1.60.0"})
    }

    fn findings(extra: Value) -> Vec<String> {
        let own = json!({"name": "own", "license": "MIT", "rust_version": "1.90"});
        let twice = DUPLICATES.into_iter().chain(DUPLICATES).map(package);
        let packages: Vec<Value> = twice.chain([own, extra]).collect();
        check(&packages, "1.95").expect("a result")
    }

    #[test]
    fn listed_licences_sources_and_versions_pass() {
        assert!(findings(package("a")).is_empty());
    }

    #[test]
    fn unlisted_licence_source_version_or_compiler_is_reported() {
        let change = |key: &str, value: &str| {
            let mut package = package("a");
            package[key] = value.into();
            findings(package)
        };
        assert_eq!(change("license", "GPL-3.0"), ["a has the licence GPL-3.0"]);
        assert_eq!(change("source", "git+x"), ["a comes from git+x"]);
        assert_eq!(change("rust_version", "1.91"), ["a needs Rust 1.91, rust-version is 1.90"]);
        assert_eq!(change("name", "own"), ["own is used in several versions"]);
        let own = json!({"name": "own", "license": "MIT", "rust_version": "1.90"});
        assert_eq!(
            check(&[own], "1.89").expect("a result").last().expect("one"),
            "rust-version is 1.90, this compiler is 1.89"
        );
    }

    #[test]
    fn one_licence_of_or_is_enough_and_and_needs_all() {
        assert!(is_allowed("GPL-2.0 OR MIT"));
        assert!(is_allowed("MIT/Apache-2.0"));
        assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(!is_allowed("MIT AND GPL-2.0"));
    }
}
