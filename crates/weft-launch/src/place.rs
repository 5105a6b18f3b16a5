//! Where this executable lies, and with it the libraries and the tool.

use core::ffi::CStr;

use crate::kernel::{mode_of, target_of};
use crate::limits::{LINKS_MAX, TEXT_LEN_MAX};
use crate::text::{Text, directory_of};

/// The libraries that a program gets, beside each other.
const LIBRARIES: [&[u8]; 4] = [PRELOAD, SOCKETS, b"/libibverbs.so.1", b"/librdmacm.so.1"];
/// The one that answers what verbs programs ask the file system.
pub(crate) const PRELOAD: &[u8] = b"/libweft-preload.so";
/// The one for programs with sockets.
pub(crate) const SOCKETS: &[u8] = b"/libweft-sockets.so";
/// Type of a regular file in `st_mode`, and the bits that have the type.
const REGULAR: u32 = 0o100_000;
const TYPE: u32 = 0o170_000;

/// Returns the path of this executable, as the kernel tells it.
pub(crate) fn executable() -> Option<Text> {
    let mut memory = [0; TEXT_LEN_MAX];
    let path = target_of(c"/proc/self/exe", &mut memory)?;
    if path.starts_with(b"/") { Text::of(&[path]) } else { None }
}

/// Returns the path of an executable by the name with which it was executed, without the links that
/// lead there, for where `/proc` is not mounted.
pub(crate) fn executable_by_name(name: &CStr) -> Option<Text> {
    let mut path = Text::of(&[name.to_bytes()])?;
    for _ in 0..LINKS_MAX {
        let mut memory = [0; TEXT_LEN_MAX];
        let Some(target) = target_of(path.as_c_str(), &mut memory) else { return Some(path) };
        path = match directory_of(path.as_bytes()) {
            Some(directory) if !target.starts_with(b"/") => Text::of(&[directory, b"/", target])?,
            _ => Text::of(&[target])?,
        };
    }
    None
}

/// Returns the directory of the libraries, without links, for an executable's path. `None` unless
/// it is complete and the dynamic loader can read its path.
pub(crate) fn libraries(executable: &Text) -> Option<Text> {
    let root = directory_of(directory_of(executable.as_bytes())?)?;
    // The executable's own path has no links; what is appended may be one.
    let parent = Text::of(&[root, b"/lib"])?;
    let directory = Text::of(&[parent.as_bytes(), b"/weft"])?;
    if [&parent, &directory].into_iter().any(is_link) {
        return None;
    }
    // ld.so(8): both separate entries in LD_PRELOAD, and cannot be escaped.
    if directory.as_bytes().iter().any(|byte| b": ".contains(byte)) {
        return None;
    }
    let is_there = |name: &&[u8]| {
        Text::of(&[directory.as_bytes(), name]).is_some_and(|path| is_file(path.as_c_str()))
    };
    if LIBRARIES.iter().all(is_there) { Some(directory) } else { None }
}

/// Returns the path of the tool, for an executable's path.
pub(crate) fn tool(executable: &Text) -> Option<Text> {
    let directory = directory_of(executable.as_bytes());
    Text::of(&[directory.unwrap_or(b"."), b"/../lib/weft/weft"])
}

fn is_link(path: &Text) -> bool {
    target_of(path.as_c_str(), &mut [0; TEXT_LEN_MAX]).is_some()
}

pub(crate) fn is_file(path: &CStr) -> bool {
    mode_of(path).is_some_and(|mode| mode & TYPE == REGULAR)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};

    use super::*;

    fn text(path: &Path) -> Text {
        Text::of(&[path.as_os_str().as_bytes()]).unwrap()
    }

    fn path(text: &Text) -> PathBuf {
        std::ffi::OsStr::from_bytes(text.as_bytes()).into()
    }

    /// Makes a directory of libraries that are empty.
    fn populate(directory: &Path) {
        fs::create_dir_all(directory).unwrap();
        for name in LIBRARIES {
            fs::write(directory.join(path(&Text::of(&[&name[1..]]).unwrap())), "").unwrap();
        }
    }

    #[test]
    fn libraries_are_beside_the_directory_of_the_executable() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (executable, directory) = (text(&root.join("bin/weft")), root.join("lib/weft"));
        assert!(libraries(&executable).is_none());
        populate(&directory);
        assert_eq!(path(&libraries(&executable).unwrap()), directory);
        let missing = directory.join("librdmacm.so.1");
        fs::remove_file(&missing).unwrap();
        assert!(libraries(&executable).is_none());
        fs::create_dir(&missing).unwrap();
        assert!(libraries(&executable).is_none());
    }

    #[test]
    fn directories_that_are_links_or_cannot_be_named_are_left_to_the_tool() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        for name in ["a:b", "a b", "plain"] {
            populate(&root.join(name).join("lib/weft"));
        }
        let found = |name: &str| libraries(&text(&root.join(name).join("bin/weft"))).is_some();
        assert!(found("plain") && !found("a:b") && !found("a b"));
        for (link, target) in [("x/lib", "../plain/lib"), ("y/lib/weft", "../../plain/lib/weft")] {
            fs::create_dir_all(root.join(link).parent().unwrap()).unwrap();
            symlink(target, root.join(link)).unwrap();
        }
        assert!(root.join("y/lib/weft/librdmacm.so.1").exists() && !found("x") && !found("y"));
    }

    #[test]
    fn executable_is_found_by_its_name_through_links() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for directory in ["bin", "other"] {
            fs::create_dir(root.join(directory)).unwrap();
        }
        fs::write(root.join("bin/weft"), "").unwrap();
        symlink("second", root.join("other/first")).unwrap();
        symlink("../bin/weft", root.join("other/second")).unwrap();
        symlink(root.join("other/first"), root.join("third")).unwrap();
        symlink("endless", root.join("endless")).unwrap();
        let named = |name: &str| {
            executable_by_name(&CString::new(root.join(name).as_os_str().as_bytes()).unwrap())
        };
        for name in ["bin/weft", "other/first", "other/second", "third"] {
            let found = path(&named(name).unwrap());
            assert!(found.ends_with("bin/weft") && found.is_file(), "{}", found.display());
        }
        assert!(named("endless").is_none());
        assert_eq!(tool(&text(Path::new("weft"))).unwrap().as_c_str(), c"./../lib/weft/weft");
        let own = path(&executable().unwrap());
        assert_eq!(own, std::env::current_exe().unwrap());
    }
}
