//! The sources and destinations of copies.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, fsync, mkdirat, openat, statat,
};
use rustix::io::Errno;

use super::request::{Flags, Origin, Request};
use crate::limits::{DEPTH_MAX, ORIGINS_MAX};
use crate::tree::apply::{Backup, Full, QuotaSession};
use crate::tree::beneath;
use crate::tree::reach::Reach;
use crate::tree::selection::Selection;
use crate::tree::source::{Missing, Start};
use crate::wire::record_name::Name;

/// Why a path cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The path contains `..` or an invalid name.
    #[error("invalid path: a component is `..` or too long")]
    Path,
    /// The client may not do this in the share.
    #[error("this share {0}")]
    Access(&'static str),
    /// The quota leaves no room for the directory.
    #[error("{0}")]
    Full(Full),
    /// The destination is the source or is within it.
    #[error("{0}")]
    Same(&'static str),
    /// A stream needs a file, and this is a directory.
    #[error("is a directory; a stream goes to a file: name it")]
    Directory,
    /// A stream needs a file, and this is none.
    #[error("is not a regular file, and a standard stream needs one")]
    NotFile,
    /// Names with the suffix would be those without, or none at all.
    #[error("the suffix of --suffix is empty, too long, or has a slash")]
    Suffix,
    /// No share has this name.
    #[error("there is no such share; this server has: {0}")]
    NoShare(String),
}

impl From<Errno> for PlaceError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// The directory that a sink writes to, and the new name of a single source there.
#[derive(Debug)]
pub struct Destination {
    /// The directory.
    pub root: OwnedFd,
    /// The new name; if `None`, sources keep their names.
    pub new_name: Option<Name>,
    /// Whether the directory exists. In a dry run it may not; `root` is then the directory in which
    /// it would be created.
    pub is_there: bool,
    /// The quota of the tree that contains it.
    pub quota: Option<QuotaSession>,
    /// Whether the source must not learn what is there.
    pub is_blind: bool,
    /// How what is replaced is kept.
    pub backup: Option<Box<Backup>>,
    /// Other directories to whose files the sink may link; `None` for one that does not exist.
    pub thirds: Vec<Option<OwnedFd>>,
}

impl Destination {
    fn within(root: OwnedFd) -> Self {
        let (backup, thirds) = (None, Vec::new());
        let (quota, is_blind) = (None, false);
        Self { root, new_name: None, is_there: true, quota, is_blind, backup, thirds }
    }
}

/// The place that a sink writes to.
#[derive(Debug)]
pub enum Target {
    /// A directory.
    Directory(Destination),
    /// A descriptor that gets the bytes of a single file.
    Output(OwnedFd),
    /// None: the observer learns what the source has.
    Listing,
}

/// Returns the device and inode of a file.
fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Checks that no directory is copied into itself and that nothing replaces itself.
///
/// # Errors
/// `Same`, or an error of the kernel.
pub(super) fn check_apart(starts: &[Start], to: &Destination) -> Result<(), PlaceError> {
    for Start { directory, name, selection, .. } in starts {
        if selection.is_some()
            && to.is_there
            && identity(&fstat(directory)?) == identity(&fstat(&to.root)?)
        {
            return Err(PlaceError::Same("source and destination are the same"));
        }
        let Some(name) = name else { continue };
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let source = identity(&statat(directory, name.as_path(), flags)?);
        let new_name = to.new_name.as_ref().unwrap_or(name);
        let there = statat(&to.root, new_name.as_path(), flags);
        if to.is_there && there.is_ok_and(|there| identity(&there) == source) {
            return Err(PlaceError::Same("source and destination are the same"));
        }
    }
    let sources = directories(starts)?;
    check_outside(to.root.as_fd(), &|at| sources.contains(&at))
}

/// Returns the directories among the sources.
fn directories(starts: &[Start]) -> Result<Vec<(u64, u64)>, PlaceError> {
    let mut directories = Vec::new();
    for Start { directory, name, selection, .. } in starts {
        if let Some(selection) = selection {
            // What is missing is none, and is reported later.
            let stats = selection.paths().filter_map(|path| {
                let path = if path.is_empty() { b"." } else { path };
                statat(directory, path, AtFlags::SYMLINK_NOFOLLOW).ok()
            });
            let is_folder =
                |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            let folders = stats.filter(is_folder).map(|stat| identity(&stat));
            directories.extend(folders.take_while(|_| selection.is_deep()));
            continue;
        }
        let stat = match name {
            Some(name) => statat(directory, name.as_path(), AtFlags::SYMLINK_NOFOLLOW)?,
            None => fstat(directory)?,
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            directories.push(identity(&stat));
        }
    }
    Ok(directories)
}

/// Returns the identifier that the kernel has had since it was started.
fn boot() -> Option<Vec<u8>> {
    std::fs::read("/proc/sys/kernel/random/boot_id").ok()
}

fn origin(boot: &[u8], (device, inode): (u64, u64)) -> Origin {
    let bytes = [boot, &device.to_be_bytes(), &inode.to_be_bytes()].concat();
    *blake3::hash(&bytes).as_bytes().first_chunk().expect("32 bytes")
}

/// Returns the directories among the sources. Of what cannot be examined, there are none.
pub(super) fn origins(starts: &[Start]) -> Vec<Origin> {
    let (Some(boot), Ok(directories)) = (boot(), directories(starts)) else { return Vec::new() };
    directories.into_iter().take(ORIGINS_MAX).map(|it| origin(&boot, it)).collect()
}

/// Parses an acceptor's answer to a request for its files: whether there is a directory among them,
/// and its directories.
pub(super) fn parse_answer(answer: &[u8]) -> (bool, &[Origin]) {
    match answer.split_first() {
        Some((is_folder, origins)) => (*is_folder == 1, origins.as_chunks().0),
        None => (false, &[]),
    }
}

/// Checks that a directory, and all above it, are none of these.
fn check_outside_of(origins: &[Origin], to: BorrowedFd<'_>) -> Result<(), PlaceError> {
    match boot() {
        Some(boot) if !origins.is_empty() => {
            check_outside(to, &|at| origins.contains(&origin(&boot, at)))
        }
        _ => Ok(()),
    }
}

/// Checks that a directory, and all above it, are no sources.
fn check_outside(
    to: BorrowedFd<'_>,
    is_source: &dyn Fn((u64, u64)) -> bool,
) -> Result<(), PlaceError> {
    match chain(to)?.into_iter().any(is_source) {
        true => Err(PlaceError::Same("a directory cannot be copied into itself")),
        false => Ok(()),
    }
}

/// Returns a directory and all above it.
fn chain(to: BorrowedFd<'_>) -> Result<Vec<(u64, u64)>, PlaceError> {
    let mut all = Vec::new();
    let mut above = rustix::io::dup(to)?;
    loop {
        let at = identity(&fstat(&above)?);
        if all.last() == Some(&at) {
            return Ok(all);
        }
        all.push(at);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        above = openat(&above, "..", flags, Mode::empty())?;
    }
}

/// Keeps links of sources on this host from leading to the destination, or above it.
///
/// # Errors
/// An error of the kernel.
pub(super) fn keep_links_out(starts: &mut [Start], to: &Destination) -> Result<(), PlaceError> {
    let out = starts.iter_mut().filter_map(|start| match &mut start.links {
        Reach::Anywhere(except) => Some(except),
        Reach::Nowhere | Reach::Within(..) => None,
    });
    for except in out {
        except.extend(chain(to.root.as_fd())?);
    }
    Ok(())
}

/// Checks the same by the names of paths on one server.
///
/// # Errors
/// `Same`, or `Path`.
pub(super) fn check_apart_on_server(sources: &[Vec<u8>], to: &[u8]) -> Result<(), PlaceError> {
    let to = parts(to)?;
    for path in sources {
        let source = parts(path)?;
        let is_content = path.ends_with(b"/") || source.len() < 2;
        let becomes = match source.last() {
            Some(last) if !is_content => [&to[..], slice::from_ref(last)].concat(),
            _ => to.clone(),
        };
        if becomes == source || to == source {
            return Err(PlaceError::Same("source and destination are the same"));
        }
        if to.starts_with(&source) {
            return Err(PlaceError::Same("a directory cannot be copied into itself"));
        }
    }
    Ok(())
}

/// Splits a path of a peer into its components.
///
/// # Errors
/// `Path` if a component is `..` or invalid.
pub(super) fn parts(path: &[u8]) -> Result<Vec<Name>, PlaceError> {
    let parts = path.split(|&byte| byte == b'/');
    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
    let parts: Vec<Name> =
        parts.map(Name::new).collect::<Result<_, _>>().map_err(|_| PlaceError::Path)?;
    if parts.len() < DEPTH_MAX { Ok(parts) } else { Err(PlaceError::Path) }
}

/// Opens a directory beneath another one, one component at a time, without following links.
fn walk(base: BorrowedFd<'_>, parts: &[Name]) -> Result<OwnedFd, Errno> {
    let mut fd = beneath::open_dir(base, Path::new("."))?;
    for part in parts {
        fd = beneath::open_dir(&fd, part.as_path())?;
    }
    Ok(fd)
}

/// Finds the destination at a path beneath a directory. If the flags require a directory, it is
/// created if it does not exist, except in a dry run, and charged to the quota. It is in none of
/// the directories `origins`.
///
/// # Errors
/// An error of the kernel: the parent of the last component must exist.
pub(super) fn destination(
    base: BorrowedFd<'_>,
    parts: &[Name],
    flags: Flags,
    origins: &[Origin],
    quota: Option<&QuotaSession>,
) -> Result<Destination, PlaceError> {
    let is_stream = flags.has(Flags::STREAM);
    let Some((last, before)) = parts.split_last() else {
        if is_stream {
            return Err(PlaceError::Directory);
        }
        let root = walk(base, &[])?;
        check_outside_of(origins, root.as_fd())?;
        return Ok(Destination::within(root));
    };
    let is_folder = flags.has(Flags::FOLDER);
    let parent = walk(base, before)?;
    match beneath::open_dir(&parent, last.as_path()) {
        Ok(_) if is_stream => Err(PlaceError::Directory),
        Ok(root) => {
            check_outside_of(origins, root.as_fd())?;
            Ok(Destination::within(root))
        }
        Err(Errno::NOENT) if is_folder && flags.has(Flags::DRY_RUN) => {
            Ok(Destination { is_there: false, ..Destination::within(parent) })
        }
        Err(Errno::NOENT) if is_folder => {
            check_outside_of(origins, parent.as_fd())?;
            quota.map_or(Ok(()), |quota| quota.charge(0, 1)).map_err(PlaceError::Full)?;
            let made = mkdirat(&parent, last.as_path(), Mode::from_raw_mode(0o777));
            if let (Some(quota), Err(_)) = (quota, made) {
                quota.refund(0, 1);
            }
            match made {
                Ok(()) if flags.has(Flags::SYNCS) => fsync(&parent)?,
                // Another copy to the same place may have created it since.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            Ok(Destination::within(beneath::open_dir(&parent, last.as_path())?))
        }
        Err(Errno::NOENT | Errno::NOTDIR) if !is_folder => {
            if is_stream {
                check_replaceable(parent.as_fd(), last)?;
            }
            let new_name = Some(last.clone());
            Ok(Destination { new_name, ..Destination::within(parent) })
        }
        Err(error) => Err(error.into()),
    }
}

/// Checks that a file of a stream does not replace a pipe or a device, into which its user may want
/// to write.
fn check_replaceable(parent: BorrowedFd<'_>, name: &Name) -> Result<(), PlaceError> {
    match statat(parent, name.as_path(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Symlink => Ok(()),
            _ => Err(PlaceError::NotFile),
        },
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a directory is another one, or is somewhere in it.
///
/// # Errors
/// An error of the kernel.
pub fn is_within(directory: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Result<bool, PlaceError> {
    let other = identity(&fstat(other)?);
    Ok(chain(directory)?.contains(&other))
}

fn open_local(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

/// Opens a directory of which nothing is used.
pub(super) fn anywhere() -> Result<OwnedFd, Errno> {
    open_local(Path::new("/"))
}

/// Opens the parent directory of a local path's last component, and returns that component.
fn split(path: &Path) -> Result<Option<(OwnedFd, Name)>, PlaceError> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let name = Name::new(name.as_bytes()).map_err(|_| PlaceError::Path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(Some((open_local(parent.unwrap_or_else(|| Path::new(".")))?, name)))
}

/// Finds the destination of a local path of this user, which may contain links.
///
/// # Errors
/// An error of the kernel: the parent of the last component must exist.
pub fn local_destination(
    path: &Path,
    flags: Flags,
    starts: &[Start],
) -> Result<Destination, PlaceError> {
    local_destination_outside(path, flags, &origins(starts))
}

/// Finds the same, which must be in none of these directories.
///
/// # Errors
/// The same, and `Same`.
pub(super) fn local_destination_outside(
    path: &Path,
    flags: Flags,
    origins: &[Origin],
) -> Result<Destination, PlaceError> {
    if let Ok(root) = open_local(path) {
        if flags.has(Flags::STREAM) {
            return Err(PlaceError::Directory);
        }
        check_outside_of(origins, root.as_fd())?;
        return Ok(Destination::within(root));
    }
    let (parent, name) = split(path)?.ok_or(PlaceError::Path)?;
    destination(parent.as_fd(), &[name], flags, origins, None)
}

/// Returns the source of a local path, and whether it is a directory. A path that ends in a slash,
/// or has no last component, means the contents of the directory.
///
/// # Errors
/// An error of the kernel.
pub(super) fn local_start(path: &Path, flags: Flags) -> Result<(Start, bool), PlaceError> {
    let links = own_links(flags);
    match split(path)? {
        Some((directory, name)) if !is_content(path) => {
            Ok(followed(Start { links, ..Start::entry(directory, name) })?)
        }
        _ => Ok((Start { links, ..Start::contents(open_local(path)?) }, true)),
    }
}

/// Where the links of this process's user may lead.
fn own_links(flags: Flags) -> Reach {
    if flags.has(Flags::FOLLOWS) { Reach::Anywhere(Vec::new()) } else { Reach::Nowhere }
}

/// Returns a source that has a name, and whether it is a directory, to which it may be a link that
/// is followed. An error here names the whole path, so a missing entry is reported now.
fn followed(start: Start) -> Result<(Start, bool), Errno> {
    let Start { directory, name: Some(name), links, .. } = &start else { return Ok((start, true)) };
    let stat = statat(directory, name.as_path(), AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::Symlink || !links.follows() {
        return Ok((start, kind == FileType::Directory));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match links.open(directory, name, name.as_bytes(), flags) {
        Ok(target) => {
            let (name, links) = (name.clone(), links.clone());
            let links = links.at(&name);
            Ok((Start { new_name: Some(name), links, ..Start::contents(target) }, true))
        }
        // If it leads nowhere, that is found when it is read.
        Err(_) => Ok((start, false)),
    }
}

/// Returns the source of what is selected in a local directory.
///
/// # Errors
/// An error of the kernel.
pub fn local_selection(
    path: &Path,
    flags: Flags,
    selection: Arc<Selection>,
) -> Result<Start, PlaceError> {
    let (selection, links) = (Some(selection), own_links(flags));
    Ok(Start { selection, links, ..Start::contents(open_local(path)?) })
}

impl PlaceError {
    /// Returns the source of this path as one that is missing, if others can be copied without it.
    #[must_use]
    pub fn missing(&self, path: &Path) -> Option<Missing> {
        let Self::System(error) = self else { return None };
        let errno = Errno::from_raw_os_error(error.raw_os_error()?);
        let name = path.file_name().and_then(|name| Name::new(name.as_bytes()).ok());
        Some(Missing { name, errno })
    }
}

/// Returns the source of a local path, and whether it means the contents of a directory. The source
/// of a stream is a single file.
///
/// # Errors
/// `NotFile`, or an error of the kernel.
pub fn local_source(path: &Path, flags: Flags) -> Result<(Start, bool), PlaceError> {
    match flags.has(Flags::STREAM) {
        true => Ok((local_file(path)?, false)),
        false => local_start(path, flags),
    }
}

/// Returns the source of a local path to a single file, to which it may be a link.
///
/// # Errors
/// `NotFile`, or an error of the kernel.
fn local_file(path: &Path) -> Result<Start, PlaceError> {
    let (start, _) = local_start(&path.canonicalize()?, Flags::default())?;
    check_file(&start)?;
    Ok(start)
}

/// Checks that a source is a regular file.
///
/// # Errors
/// `NotFile`, or an error of the kernel.
pub(super) fn check_file(start: &Start) -> Result<(), PlaceError> {
    let Start { directory, name: Some(name), links, .. } = start else {
        return Err(PlaceError::NotFile);
    };
    let stat = match links.follows() {
        true => fstat(links.open(directory, name, name.as_bytes(), OFlags::PATH)?)?,
        false => statat(directory, name.as_path(), AtFlags::SYMLINK_NOFOLLOW)?,
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(PlaceError::NotFile),
    }
}

/// Whether a path means the contents of a directory.
fn is_content(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/") || bytes.ends_with(b"/.")
}

/// Resolves a path as a remote shell does: `~` is the user's home, and relative paths begin there.
///
/// # Errors
/// If the home is unknown.
pub(super) fn from_home(path: &[u8]) -> Result<PathBuf, PlaceError> {
    let rest = match path {
        b"~" => &b""[..],
        [b'~', b'/', rest @ ..] => rest,
        path => return Ok(Path::new(OsStr::from_bytes(path)).to_owned()),
    };
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let home = PathBuf::from(home.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?);
    let rest = rest.iter().position(|&byte| byte != b'/').map_or(&b""[..], |at| &rest[at..]);
    Ok(home.join(OsStr::from_bytes(rest)))
}

/// How the paths of a request are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// They begin with the name of a share, and cannot leave it.
    Shares,
    /// They are ordinary paths of the user.
    Paths,
}

/// Returns the path of a request that has one path, for reports.
pub(super) fn only_path(request: &Request) -> Vec<u8> {
    request.paths.first().cloned().unwrap_or_default()
}

/// Returns the only names that a server may send for a request, or `None` if it may send any,
/// because the request names a directory's contents. `is_folder` means that the server reports a
/// directory among the sources.
///
/// # Errors
/// `Path` if a path of the request is invalid.
pub(super) fn names(
    request: &Request,
    is_folder: bool,
    naming: Naming,
) -> Result<Option<HashSet<Name>>, PlaceError> {
    let mut names = HashSet::new();
    for path in &request.paths {
        if naming == Naming::Paths {
            let path = Path::new(OsStr::from_bytes(path));
            match path.file_name().filter(|_| !is_content(path)) {
                Some(name) => {
                    names.insert(Name::new(name.as_bytes()).map_err(|_| PlaceError::Path)?)
                }
                None => return Ok(None),
            };
            continue;
        }
        let whole = parts(path)?;
        // The first component is the name of the share.
        match whole.split_last() {
            Some((last, [_, ..])) if !path.ends_with(b"/") => names.insert(last.clone()),
            _ => return Ok(None),
        };
    }
    if let (Some(name), [_], false) = (&request.new_name, &request.paths[..], is_folder) {
        names = [Name::new(name).map_err(|_| PlaceError::Path)?].into();
    }
    Ok(Some(names))
}

/// Returns the source of a path beneath a directory, and whether it is a directory. Links that are
/// followed stay beneath the first directory.
///
/// # Errors
/// An error of the kernel.
pub(super) fn start(
    base: BorrowedFd<'_>,
    path: &[u8],
    flags: Flags,
) -> Result<(Start, bool), PlaceError> {
    let names = parts(path)?;
    let links = |names: &[Name]| match flags.has(Flags::FOLLOWS) {
        true => {
            Ok::<_, Errno>(Reach::Within(Arc::new(rustix::io::dup(base)?), Name::joined(names)))
        }
        false => Ok(Reach::Nowhere),
    };
    let open = |names: &[Name]| match flags.has(Flags::FOLLOWS) && !names.is_empty() {
        true => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            beneath::follow(base, &Name::joined(names), flags)
        }
        false => walk(base, names),
    };
    match names.split_last() {
        Some((last, before)) if !path.ends_with(b"/") => {
            let start = Start::entry(open(before)?, last.clone());
            Ok(followed(Start { links: links(before)?, ..start })?)
        }
        _ => {
            let start = Start::contents(open(&names)?);
            Ok((Start { links: links(&names)?, ..start }, true))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn paths_of_a_peer_cannot_leave_the_directory() {
        let folder = tempfile::tempdir().expect("a folder");
        let share = folder.path().join("share");
        fs::create_dir_all(share.join("sub")).expect("room");
        fs::write(folder.path().join("secret"), "x").expect("room");
        symlink("..", share.join("up")).expect("room");
        symlink("/", share.join("root")).expect("room");
        let base = open_local(&share).expect("a folder");
        for path in ["../secret", "sub/../../secret", "up/secret", "root/etc/passwd", ".."] {
            assert!(start(base.as_fd(), path.as_bytes(), Flags::default()).is_err(), "{path}");
            let to = parts(path.as_bytes())
                .and_then(|it| destination(base.as_fd(), &it, Flags::default(), &[], None));
            assert!(to.is_err(), "{path}");
        }
        // A link is copied as a link, and cannot be a destination directory.
        assert!(start(base.as_fd(), b"up", Flags::default()).is_ok());
        assert!(start(base.as_fd(), b"up/", Flags::default()).is_err());
        let to = parts(b"root").expect("a path");
        let to = destination(base.as_fd(), &to, Flags::default(), &[], None);
        assert!(to.map(|it| it.new_name.is_some()).unwrap_or(true));
    }

    #[test]
    fn server_may_send_only_requested_names() {
        let asked = |paths: &[&str], new_name: Option<&str>, is_folder| {
            let paths = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
            let new_name = new_name.map(|name| name.as_bytes().to_vec());
            let request = Request { paths, new_name, ..Request::default() };
            let names = names(&request, is_folder, Naming::Shares);
            let names = names.expect("paths")?;
            let mut names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            names.sort();
            Some(names.join(" "))
        };
        let shown = |name: &str| format!("{:?}", Name::new(name.as_bytes()).expect("a name"));
        assert_eq!(asked(&["share/a/b"], None, false), Some(shown("b")));
        assert_eq!(asked(&["/share//b/."], Some("c"), true), Some(shown("b")));
        assert_eq!(asked(&["share/b"], Some("c"), false), Some(shown("c")));
        let both = format!("{} {}", shown("a"), shown("b"));
        assert_eq!(asked(&["share/a", "share/b"], None, true), Some(both));
        // The contents of a directory may have any names.
        for paths in [&["share"][..], &["share/"], &["share/a/"], &["share/a", "share/b/"]] {
            assert_eq!(asked(paths, None, true), None, "{paths:?}");
        }
    }

    #[test]
    fn remote_user_may_send_only_requested_names() {
        let asked = |path: &str, new_name: Option<&str>| {
            let new_name = new_name.map(|name| name.as_bytes().to_vec());
            let paths = vec![path.as_bytes().to_vec()];
            let request = Request { paths, new_name, ..Request::default() };
            let names = names(&request, false, Naming::Paths).expect("a path")?;
            Some(names.iter().map(|name| format!("{name:?}")).collect::<String>())
        };
        let shown = |name: &str| Some(format!("{:?}", Name::new(name.as_bytes()).expect("a name")));
        for path in ["b", "/a/b", "../b", "~/a/b"] {
            assert_eq!(asked(path, None), shown("b"), "{path}");
            assert_eq!(asked(path, Some("c")), shown("c"), "{path}");
        }
        for path in [".", "a/", "a/.", "..", "/"] {
            assert_eq!(asked(path, None), None, "{path}");
        }
    }

    #[test]
    fn paths_on_one_server_must_be_apart() {
        let check = |from: &str, to: &str| {
            check_apart_on_server(&[from.as_bytes().to_vec()], to.as_bytes()).is_ok()
        };
        for (from, to) in [("s/a", "s/b"), ("s/a", "t/a"), ("s/a/", "s/b"), ("s/a/b", "s/b")] {
            assert!(check(from, to), "{from} {to}");
        }
        for (from, to) in [
            ("s/a", "s/a"),
            ("s/a", "s"),
            ("s/a", "s/a/b"),
            ("s/a/", "/s//a/./b"),
            ("s/a/", "s/a"),
            ("s", "s/b"),
            ("s/a", "s/../s"),
        ] {
            assert!(!check(from, to), "{from} {to}");
        }
    }

    #[test]
    fn copies_that_create_one_directory_at_a_time_both_find_it() {
        let folder = tempfile::tempdir().expect("a folder");
        for round in 0..300 {
            let path = folder.path().join(round.to_string());
            let start = std::sync::Barrier::new(2);
            let create = || {
                start.wait();
                local_destination(&path, Flags::FOLDER, &[]).map(drop)
            };
            std::thread::scope(|scope| {
                let other = scope.spawn(create);
                create().expect("a folder");
                other.join().expect("no panic").expect("a folder");
            });
        }
    }

    #[test]
    fn destination_is_a_directory_or_a_new_name() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("here")).expect("room");
        let name_of = |path: &str, is_folder| {
            let flags = Flags::default().with(Flags::FOLDER, is_folder);
            let to = local_destination(&folder.path().join(path), flags, &[]);
            to.map(|to| to.new_name.map(|name| name.as_bytes().to_vec())).ok()
        };
        assert_eq!(name_of("here", false), Some(None));
        assert_eq!(name_of("new", false), Some(Some(b"new".to_vec())));
        assert_eq!(name_of("made", true), Some(None));
        assert_eq!(name_of("none/new", false), None);
        assert!(folder.path().join("made").is_dir());
        let flags = Flags::FOLDER.with(Flags::DRY_RUN, true);
        let to = local_destination(&folder.path().join("planned"), flags, &[]).expect("a place");
        assert!(!to.is_there && !folder.path().join("planned").exists());
    }
}
