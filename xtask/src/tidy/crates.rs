//! Checks the dependencies between the crates of the workspace.

use std::fs;
use std::path::Path;

/// The dependencies that one crate may have within the workspace.
struct Allowed {
    name: &'static str,
    product: &'static [&'static str],
    /// Additional dependencies of its tests and examples.
    tests: &'static [&'static str],
}

const fn krate(
    name: &'static str,
    product: &'static [&'static str],
    tests: &'static [&'static str],
) -> Allowed {
    Allowed { name, product, tests }
}

/// All crates of the workspace. Each uses only crates above its own line.
const CRATES: &[Allowed] = &[
    krate("weft-testing", &[], &[]),
    krate("weft-launch", &[], &[]),
    krate("weft-abi", &[], &[]),
    krate("weft-wire", &[], &["weft-testing"]),
    krate("weft-sys", &[], &[]),
    krate("weft-engine", &["weft-wire", "weft-sys"], &["weft-testing"]),
    krate("weft-verbs", &["weft-abi", "weft-engine", "weft-sys"], &[]),
    krate("weft-rdma", &["weft-abi", "weft-sys"], &[]),
    krate("weft-fabric", &["weft-engine", "weft-rdma", "weft-sys"], &[]),
    krate("weft-preload", &["weft-sys"], &[]),
    krate("weft-stream", &["weft-sys"], &["weft-testing"]),
    krate("weft-extended", &[], &[]),
    krate(
        "weft-sockets",
        &["weft-engine", "weft-extended", "weft-stream", "weft-sys"],
        &["weft-testing"],
    ),
    krate("weft-target", &["weft-rdma", "weft-sys"], &["weft-testing"]),
    krate("weft-transfer", &["weft-fabric", "weft-rdma", "weft-sys"], &["weft-testing"]),
    krate("weft-pipeline", &["weft-transfer"], &["weft-testing"]),
    krate("weft-tuples", &["weft-fabric", "weft-sys"], &["weft-testing"]),
    krate("weft-tuples-c", &["weft-tuples"], &[]),
    krate("weft-tuples-replica", &["weft-tuples"], &["weft-testing"]),
    krate("weft-histories", &["weft-tuples"], &["weft-testing"]),
    krate("weft-bench", &["weft-engine", "weft-fabric", "weft-stream", "weft-sys"], &[]),
    krate(
        "weft-cli",
        &[
            "weft-bench",
            "weft-engine",
            "weft-pipeline",
            "weft-stream",
            "weft-sys",
            "weft-target",
            "weft-transfer",
            "weft-tuples",
            "weft-tuples-replica",
        ],
        &[],
    ),
    krate(
        "weft-lab",
        &["weft-stream"],
        &["weft-engine", "weft-fabric", "weft-histories", "weft-tuples"],
    ),
    krate("xtask", &[], &[]),
];

/// Returns the names and directories of all crates of the workspace, the lowest layer first.
pub(super) fn folders() -> impl Iterator<Item = (&'static str, String)> {
    CRATES.iter().map(|krate| {
        let name = krate.name;
        (name, if name == "xtask" { name.into() } else { format!("crates/{name}") })
    })
}

/// Compares the table with the manifests.
///
/// # Errors
/// If the directory of the crates cannot be read.
pub(super) fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    let crates = root.join("crates");
    let entries = fs::read_dir(&crates).map_err(|e| format!("{}: {e}", crates.display()))?;
    for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if CRATES.iter().all(|krate| krate.name != name) {
            findings.push(format!("{}: crate without a layer", entry.path().display()));
        }
    }
    for (at, krate) in CRATES.iter().enumerate() {
        let below: Vec<&str> = CRATES[..at].iter().map(|below| below.name).collect();
        for used in krate.product.iter().chain(krate.tests).filter(|used| !below.contains(used)) {
            findings.push(format!("{} stands above {used}, which it uses", krate.name));
        }
    }
    for ((name, folder), krate) in folders().zip(CRATES) {
        let manifest = root.join(folder).join("Cargo.toml");
        match fs::read_to_string(&manifest) {
            Ok(text) => findings.extend(
                not_allowed(&text, krate)
                    .into_iter()
                    .map(|found| format!("{}: {name} {found}", manifest.display())),
            ),
            Err(error) => findings.push(format!("{}: {error}", manifest.display())),
        }
    }
    Ok(())
}

/// Returns the dependencies in the manifest `text` that the table does not allow.
fn not_allowed(text: &str, krate: &Allowed) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        let mut name = line.split(['.', '=', ' ']).next().unwrap_or_default();
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            // `[dependencies.weft-sys]` is a separate table.
            name = section.rsplit('.').next().unwrap_or_default();
        }
        let is_test = section.contains("dev-dependencies");
        if !section.contains("dependencies") || CRATES.iter().all(|other| other.name != name) {
            continue;
        }
        let may_use = krate.product.contains(&name) || is_test && krate.tests.contains(&name);
        if !may_use {
            let whose = if is_test { "'s tests" } else { "" };
            found.push(format!("{whose} must not depend on {name}").trim_start().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{krate, not_allowed};

    #[test]
    fn dependency_outside_of_the_table_is_found() {
        let engine = krate("weft-engine", &["weft-wire"], &["weft-sys"]);
        let manifest = "[dependencies]\nweft-wire.workspace = true\nlibc = \"1\"\n\
                        [dev-dependencies]\nweft-sys = { path = \"x\" }\n";
        assert!(not_allowed(manifest, &engine).is_empty());
        let upward = manifest.replace("libc", "weft-verbs");
        assert_eq!(not_allowed(&upward, &engine), ["must not depend on weft-verbs"]);
        let swapped = manifest.replace("weft-wire", "weft-sys");
        assert_eq!(not_allowed(&swapped, &engine), ["must not depend on weft-sys"]);
        let table = format!("{manifest}[dev-dependencies.weft-lab]\npath = \"y\"\n");
        assert_eq!(not_allowed(&table, &engine), ["'s tests must not depend on weft-lab"]);
        let conditional = format!("{manifest}[target.'cfg(unix)'.dependencies]\nweft-cli = \"1\"");
        assert_eq!(not_allowed(&conditional, &engine), ["must not depend on weft-cli"]);
    }
}
