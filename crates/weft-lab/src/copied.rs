//! Folders in which `weft cp` and rsync copy, and what is there then.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use crate::endpoint::Port;
use crate::folder::Folder;
use crate::paths::weft;
use crate::ports;
use crate::program::{Program, Running};

const TIMEOUT: Duration = Duration::from_secs(120);

/// A folder, and perhaps a server of it.
#[derive(Debug)]
pub struct Place {
    folder: Folder,
    /// A server of the whole folder, under the name `share`, and its port.
    server: Option<(Running, u16)>,
}

impl Place {
    /// Makes a folder.
    pub fn new() -> Result<Self> {
        Ok(Self { folder: Folder::new(0o700)?, server: None })
    }

    /// The same with a server.
    pub fn served(options: &[&str]) -> Result<Self> {
        let (mut place, port) = (Self::new()?, ports::next());
        let config = place.path("config");
        let weft = || anyhow::Ok(Program::plain(weft()?).env("XDG_CONFIG_HOME", &config));
        let key = weft()?.args(["cp", "--show-key"]).run(TIMEOUT)?.success()?.stdout;
        let server = weft()?.args(["serve", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        let share = format!("share={}", place.folder.path().display());
        let server = server.args(["--allow", key.trim()]).args(options).arg(share);
        place.server = Some((server.start()?.listening(Port::Tcp(port))?, port));
        Ok(place)
    }

    /// Returns the operand of a path in the folder, at the server if there is one.
    pub fn at(&self, name: &str) -> String {
        match &self.server {
            Some((_, port)) => format!("127.0.0.1:{port}//share/{name}"),
            None => self.path(name).display().to_string(),
        }
    }

    /// Stops the server, which does not end.
    pub fn stop_server(&mut self) -> Result<()> {
        self.server.as_mut().map_or(Ok(()), |(server, _)| server.signal(Signal::STOP))
    }

    /// Returns the path of the folder.
    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns `weft cp`, without operands.
    pub fn weft(&self) -> Result<Program> {
        let weft = Program::plain(weft()?).env("XDG_CONFIG_HOME", self.path("config"));
        Ok(weft.args(["cp", "--accept-new"]))
    }
}

/// Returns the paths of everything in a folder, in order.
pub fn names(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut all, mut queue) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(path) = queue.pop() {
        for name in fs::read_dir(&path)? {
            let path = name?.path();
            if fs::symlink_metadata(&path)?.is_dir() {
                queue.push(path.clone());
            }
            all.push(path.strip_prefix(folder)?.to_owned());
        }
    }
    all.sort();
    Ok(all)
}

/// Returns the contents of a file, or a link; nothing of anything else.
fn bytes(path: &Path, meta: &Metadata) -> Result<Vec<u8>> {
    match () {
        () if meta.is_symlink() => Ok(fs::read_link(path)?.into_os_string().into_encoded_bytes()),
        () if meta.is_file() => Ok(fs::read(path)?),
        () => Ok(Vec::new()),
    }
}

/// The contents of a file, or a link, with mode and mtime.
pub type Seen = (Vec<u8>, u32, i64);

/// What there is in a folder.
pub fn contents(folder: &Path) -> Result<BTreeMap<PathBuf, Seen>> {
    let mut all = BTreeMap::new();
    for name in names(folder)? {
        let path = folder.join(&name);
        let meta = fs::symlink_metadata(&path)?;
        // Links have the same mode everywhere, and their times are not compared.
        let mtime = if meta.is_symlink() { 0 } else { meta.mtime() };
        all.insert(name, (bytes(&path, &meta)?, meta.mode() & 0o7777, mtime));
    }
    Ok(all)
}

/// Type and number of a device, owner, group, mode, time, contents, and the least of the names of
/// one inode.
pub type Whole = (u32, u64, u32, u32, i64, Vec<u8>, PathBuf);

/// What there is in a folder, with all that copies keep.
pub fn whole(folder: &Path) -> Result<BTreeMap<PathBuf, Whole>> {
    let (mut all, mut inodes) = (BTreeMap::new(), BTreeMap::new());
    for name in names(folder)? {
        let path = folder.join(&name);
        let meta = fs::symlink_metadata(&path)?;
        let first = inodes.entry(meta.ino()).or_insert_with(|| name.clone()).clone();
        let owner = (meta.uid(), meta.gid());
        let bytes = bytes(&path, &meta)?;
        let seen = (meta.mode(), meta.rdev(), owner.0, owner.1, meta.mtime(), bytes, first);
        all.insert(name, seen);
    }
    Ok(all)
}
