//! Locates Weft's libraries next to the executable, wherever the tree is installed.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// The verbs libraries, which `LD_LIBRARY_PATH` finds.
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
/// The library that answers verbs programs' file system calls, loaded by `LD_PRELOAD`.
const PRELOAD: &str = "libweft-preload.so";
/// The library that carries TCP connections through shared memory, loaded by `LD_PRELOAD`.
const SOCKETS: &str = "libweft-sockets.so";

/// A complete set of Weft's libraries.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Absolute path of the libraries' directory.
    pub(crate) directory: PathBuf,
}

impl Layout {
    /// Finds the libraries that belong to the running executable.
    ///
    /// # Errors
    ///
    /// If they are missing, or if the dynamic loader could not read their path from a variable.
    pub(crate) fn find() -> Result<Self> {
        Self::beside(&executable()?)
    }

    /// Returns the path in `LD_PRELOAD` for verbs programs.
    pub(crate) fn preload(&self) -> PathBuf {
        self.directory.join(PRELOAD)
    }

    /// Returns the path in `LD_PRELOAD` for programs with TCP connections.
    pub(crate) fn sockets(&self) -> PathBuf {
        self.directory.join(SOCKETS)
    }

    fn beside(executable: &Path) -> Result<Self> {
        let candidates = candidates(executable);
        let Some(directory) = candidates.iter().find(|directory| is_complete(directory)) else {
            let looked: Vec<_> = candidates.iter().map(|c| c.display().to_string()).collect();
            bail!(
                "Weft's libraries are not in {}; in the source tree run `make build`, \
                 elsewhere install the whole tree with `make install`",
                looked.join(" or ")
            );
        };
        let directory = directory
            .canonicalize()
            .with_context(|| format!("cannot resolve {}", directory.display()))?;
        // ld.so(8): spaces and colons separate the entries of LD_PRELOAD, colons those of
        // LD_LIBRARY_PATH, and neither variable has an escape character.
        if directory.to_string_lossy().contains([':', ' ']) {
            bail!(
                "the dynamic loader cannot find libraries in {}: \
                 move Weft to a directory without colon or space in its name",
                directory.display()
            );
        }
        Ok(Self { directory })
    }
}

/// Returns the path of the running executable. Where `/proc` is not mounted, so that the kernel
/// does not tell it, this is the file that its name in the command line leads to.
///
/// # Errors
///
/// If that name leads to no file.
pub(crate) fn executable() -> Result<PathBuf> {
    env::current_exe().or_else(|error| {
        let name = env::args_os().next().unwrap_or_default();
        let found = named(&name, &env::var_os("PATH").unwrap_or_default());
        found.ok_or(error).context("cannot tell where weft itself is")
    })
}

/// Returns the file that a shell executes under a name, with all links resolved.
fn named(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let is_path = name.as_encoded_bytes().contains(&b'/');
    let directories = if is_path { vec![PathBuf::new()] } else { env::split_paths(path).collect() };
    let mut files = directories.iter().map(|directory| directory.join(name));
    files.find(|file| file.is_file())?.canonicalize().ok()
}

/// Returns the directories to try, best first: the installed one, then the workspace's `dist`. An
/// installed tool lies beside the libraries, and what starts it in `bin`.
fn candidates(executable: &Path) -> Vec<PathBuf> {
    let directory = executable.parent();
    if let Some(directory) = directory.filter(|directory| directory.ends_with("lib/weft")) {
        return vec![directory.to_owned()];
    }
    let installed = directory.and_then(Path::parent).map(|root| root.join("lib/weft"));
    let built = executable
        .ancestors()
        .filter(|ancestor| ancestor.file_name().is_some_and(|name| name == "target"))
        .filter_map(Path::parent)
        .map(|workspace| workspace.join("dist/lib/weft"));
    installed.into_iter().chain(built).collect()
}

fn is_complete(directory: &Path) -> bool {
    LIBRARIES.iter().chain([&PRELOAD, &SOCKETS]).all(|library| directory.join(library).is_file())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    /// Creates empty files so that `directory` looks like a complete set of libraries.
    pub(crate) fn populate(directory: &Path) {
        fs::create_dir_all(directory).unwrap();
        for library in LIBRARIES.iter().chain([&PRELOAD, &SOCKETS]) {
            fs::write(directory.join(library), "").unwrap();
        }
    }

    #[test]
    fn installed_tree_is_found() {
        let root = tempfile::tempdir().unwrap();
        populate(&root.path().join("lib/weft"));
        for executable in ["bin/weft", "lib/weft/weft"] {
            let layout = Layout::beside(&root.path().join(executable)).unwrap();
            assert!(layout.directory.ends_with("lib/weft"));
            assert!(layout.preload().ends_with("lib/weft/libweft-preload.so"));
        }
    }

    #[test]
    fn workspace_tree_is_found() {
        let root = tempfile::tempdir().unwrap();
        populate(&root.path().join("dist/lib/weft"));
        for executable in ["target/release/weft", "target/x86_64-unknown-linux-gnu/debug/weft"] {
            let layout = Layout::beside(&root.path().join(executable)).unwrap();
            assert!(layout.directory.ends_with("dist/lib/weft"));
        }
    }

    #[test]
    fn executable_is_found_by_its_name() {
        let root = tempfile::tempdir().unwrap();
        let (bin, other) = (root.path().join("bin"), root.path().join("other"));
        for directory in [&bin, &other] {
            fs::create_dir(directory).unwrap();
        }
        let weft = bin.join("weft");
        fs::write(&weft, "").unwrap();
        std::os::unix::fs::symlink(&weft, other.join("link")).unwrap();
        let path = env::join_paths([&other, &bin]).unwrap();
        let real = weft.canonicalize().unwrap();
        assert_eq!(named(OsStr::new("weft"), &path).as_ref(), Some(&real));
        assert_eq!(named(OsStr::new("link"), &path).as_ref(), Some(&real));
        assert_eq!(named(weft.as_os_str(), OsStr::new("")).as_ref(), Some(&real));
        assert_eq!(named(OsStr::new("none"), &path), None);
        assert_eq!(named(OsStr::new("other/weft"), &path), None);
    }

    #[test]
    fn error_for_an_incomplete_tree_says_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        populate(&root.path().join("lib/weft"));
        fs::remove_file(root.path().join("lib/weft").join(PRELOAD)).unwrap();
        let error = Layout::beside(&root.path().join("bin/weft")).unwrap_err().to_string();
        assert!(error.contains("make build"), "{error}");
    }

    #[test]
    fn directory_that_the_loader_cannot_name_is_refused() {
        let root = tempfile::tempdir().unwrap();
        populate(&root.path().join("a:b/lib/weft"));
        assert!(Layout::beside(&root.path().join("a:b/bin/weft")).is_err());
    }
}
