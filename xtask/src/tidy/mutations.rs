//! Checks that the known defects, with which simulations and random programs are tested, can still
//! be put into the product.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Checks every patch in a directory `mutations` below `crates/`.
///
/// # Errors
/// If a directory cannot be read, or git cannot start.
pub(super) fn check(root: &Path, findings: &mut Vec<String>) -> Result<(), String> {
    let mut patches = Vec::new();
    collect(&root.join("crates"), &mut patches)?;
    patches.sort();
    for patch in patches {
        if !applies(root, &patch)? {
            let name = patch.strip_prefix(root).unwrap_or(&patch).display();
            findings.push(format!(
                "{name}: does not apply: make it anew from the code as it is now, or remove it"
            ));
        }
    }
    Ok(())
}

fn collect(folder: &Path, patches: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        if path.is_dir() {
            collect(&path, patches)?;
        } else if path.extension().is_some_and(|end| end == "patch")
            && folder.file_name().is_some_and(|name| name == "mutations")
        {
            patches.push(path);
        }
    }
    Ok(())
}

/// Returns whether a patch applies to the tree, which stays as it is.
fn applies(root: &Path, patch: &Path) -> Result<bool, String> {
    let mut git = Command::new("git");
    let output = git.current_dir(root).args(["apply", "--check"]).arg(patch).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    Ok(output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files::read;

    #[test]
    fn patch_of_other_code_does_not_apply() {
        let root = crate::dist::workspace();
        let mut patches = Vec::new();
        collect(&root.join("crates"), &mut patches).expect("a readable tree");
        let patch = patches.first().expect("known defects");
        assert_eq!(applies(&root, patch), Ok(true));
        // The line that is removed has changed meanwhile.
        let text = read(patch).expect("a patch").replace("\n-", "\n-x");
        let file = std::env::temp_dir().join(format!("weft-{}.patch", std::process::id()));
        fs::write(&file, text).expect("a temporary file");
        assert_eq!(applies(&root, &file), Ok(false));
        fs::remove_file(&file).expect("a temporary file");
    }
}
