//! Finds installed programs, and the Debian packages of missing ones.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::paths::kept;

/// The list that `scripts/setup` installs: in each line a package, then its programs and files in
/// use.
const PACKAGES: &str = include_str!("../../../scripts/packages.txt");

/// Returns the path of an installed program.
///
/// # Errors
///
/// If it is not installed; the error says how to install it.
pub fn locate(program: impl AsRef<OsStr>) -> Result<PathBuf> {
    let program = program.as_ref();
    if Path::new(program).is_absolute() {
        return require(program).map(|()| PathBuf::from(program));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    // A user's PATH may lack the directories of daemons such as tgtd.
    let directories = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut files = directories.map(|directory| directory.join(program));
    match files.find(|file| file.is_file()) {
        Some(file) => Ok(file),
        None => bail!(missing(program)),
    }
}

/// Checks that `file`, which belongs to one of the packages, exists.
///
/// # Errors
///
/// If it does not; the error says how to install it.
pub fn require(file: impl AsRef<OsStr>) -> Result<()> {
    let file = file.as_ref();
    if !Path::new(file).exists() {
        bail!(missing(file));
    }
    Ok(())
}

/// Returns why what `scripts/fetch <name>` gets is missing, for the note of a skipped test.
pub(crate) fn not_fetched(name: &str) -> String {
    let file = kept("fetched").map(|directory| directory.join(format!("{name}.failed")));
    match file.ok().and_then(|file| fs::read_to_string(file).ok()) {
        Some(reason) => format!("{name} was not fetched: {}", reason.trim()),
        None => format!("{name} was not fetched: run scripts/fetch"),
    }
}

fn missing(program: &OsStr) -> String {
    let name = program.to_string_lossy();
    match package_of(&name) {
        Some(package) => format!("{name} is not installed: sudo apt-get install -y {package}"),
        None => format!("{name} is not installed"),
    }
}

fn package_of(program: &str) -> Option<&'static str> {
    PACKAGES.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let package = words.next()?;
        words.any(|word| word == program).then_some(package)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_programs_name_their_package() {
        assert_eq!(package_of("ib_read_lat"), Some("perftest"));
        assert_eq!(package_of("/usr/include/rdma/rdma_cma.h"), Some("librdmacm-dev"));
        assert_eq!(package_of("no-such-program"), None);
        assert!(missing(OsStr::new("tgtd")).contains("apt-get install -y tgt"));
    }

    #[test]
    fn what_was_not_fetched_has_a_reason() {
        assert_eq!(not_fetched("no-such"), "no-such was not fetched: run scripts/fetch");
    }

    #[test]
    fn program_is_located_in_path_or_is_an_error() {
        assert!(locate("sh").unwrap().is_file());
        assert!(locate("no-such-program").is_err());
        assert!(locate("/no/such/program").is_err());
    }
}
