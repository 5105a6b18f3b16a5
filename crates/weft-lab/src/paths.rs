//! Paths of the build's results, of the lab's sources and of the files that the lab writes.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};

/// Returns a directory for files of one run of the lab. They stay there for inspection.
///
/// # Errors
///
/// If it cannot be made.
pub fn scratch(name: &str) -> Result<PathBuf> {
    kept(&format!("lab/{name}"))
}

/// Returns a directory in the build's target directory, whose files later runs use again.
///
/// # Errors
///
/// If it cannot be made.
pub fn kept(name: &str) -> Result<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| workspace().join("target"), PathBuf::from);
    let directory = target.join(name);
    fs::create_dir_all(&directory)
        .and_then(|()| directory.canonicalize())
        .with_context(|| format!("cannot make {}", directory.display()))
}

/// The build that is under test; this workspace's if it is `None`.
static BUILD: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Has [`weft`] find the command of another build, which lies at `dist`; `None`: of this
/// workspace's. It applies to the whole process.
pub fn use_build(dist: Option<&Path>) {
    *BUILD.lock().unwrap_or_else(PoisonError::into_inner) = dist.map(Path::to_owned);
}

/// Returns the path of the `weft` command in `dist/`, or of the build that is used instead
/// ([`use_build`]).
///
/// # Errors
///
/// If it has not been built.
pub fn weft() -> Result<PathBuf> {
    let build = BUILD.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let weft = build.unwrap_or_else(|| workspace().join("dist")).join("bin/weft");
    if !weft.is_file() {
        bail!("{} is missing: run `make build`", weft.display());
    }
    Ok(weft)
}

/// Returns the path of a file of this crate's sources.
pub fn source(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_owned()
}
