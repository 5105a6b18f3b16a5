//! Programs and libraries in a package: their dependencies and their debug information.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::execute;
use crate::tools::{create, output, write};

/// Returns the command and the libraries below a package's root, without symbolic links.
pub(super) fn files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for folder in ["usr/bin", "usr/lib/weft"].map(|folder| root.join(folder)) {
        let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        found.extend(entries.flatten().map(|entry| entry.path()).filter(|path| !path.is_symlink()));
    }
    found.sort();
    Ok(found)
}

/// Moves the debug information of `file` into the tree `debug`, to the path where debuggers look
/// for the file's build identifier.
pub(super) fn split(file: &Path, debug: &Path) -> Result<(), String> {
    let notes = output(Command::new("readelf").arg("--notes").arg(file))?;
    let identifier = build_identifier(&notes);
    if let Some((first, rest)) = identifier.and_then(|identifier| identifier.split_at_checked(2)) {
        let folder = debug.join("usr/lib/debug/.build-id").join(first);
        create(&folder)?;
        let to = folder.join(format!("{rest}.debug"));
        let mut command = Command::new("objcopy");
        command.args(["--only-keep-debug", "--compress-debug-sections"]).arg(file).arg(&to);
        execute(&mut command)?;
        execute(Command::new("chmod").arg("644").arg(&to))?;
    }
    let mut command = Command::new("strip");
    execute(command.args(["--strip-unneeded", "--remove-section=.comment"]).arg(file))
}

fn build_identifier(notes: &str) -> Option<&str> {
    notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "))
}

/// Returns the value of `Depends`: the packages of the libraries that the files are linked to, with
/// the versions that have the used symbols.
pub(super) fn depends(root: &Path, stage: &Path) -> Result<String, String> {
    // dpkg-shlibdeps runs only in a source package.
    create(&stage.join("debian"))?;
    write(&stage.join("debian/control"), "Source: weft\n\nPackage: weft\nArchitecture: any\n")?;
    let mut command = Command::new("dpkg-shlibdeps");
    command.current_dir(stage).args(["-O", "--ignore-missing-info"]);
    // Weft's libibverbs and librdmacm belong to no other package.
    command.arg(format!("-l{}", root.join("usr/lib/weft").display()));
    command.args(["-xlibibverbs1", "-xlibrdmacm1"]).args(files(root)?);
    let answer = output(&mut command)?;
    let depends = answer.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    depends.map(str::to_owned).ok_or_else(|| format!("dpkg-shlibdeps: {answer}"))
}

#[cfg(test)]
mod tests {
    use super::build_identifier;

    #[test]
    fn build_identifier_is_found_among_notes() {
        let notes = "  Owner   Data size\n  GNU  0x14  NT_GNU_BUILD_ID\n    Build ID: 8a6f\n";
        assert_eq!(build_identifier(notes), Some("8a6f"));
        assert_eq!(build_identifier("  GNU  0x10  NT_GNU_ABI_TAG\n"), None);
    }
}
