//! The sources of `--relative` and `--files-from`: selected paths beneath one directory.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, stdin};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use weft_transfer::tree::selection::Selection;

use super::place::Place;
use crate::args::CpArgs;

/// What is selected beneath a directory of this host.
#[derive(Clone, Debug)]
pub(super) struct Selected {
    pub(super) top: PathBuf,
    pub(super) selection: Arc<Selection>,
}

/// Returns what is selected, if the options select paths.
///
/// # Errors
/// If the sources do not fit, or the file of paths cannot be read.
pub(super) fn of(args: &CpArgs, sources: &[Place]) -> Result<Option<Selected>> {
    if !args.relative && args.files_from.is_none() {
        return Ok(None);
    }
    let local = sources.iter().map(|source| match source {
        Place::Local(path) => Some(path),
        Place::Remote(_) | Place::Standard => None,
    });
    let Some(local) = local.collect::<Option<Vec<_>>>() else {
        bail!("--relative and --files-from are for sources on this host");
    };
    let selected = match &args.files_from {
        Some(file) => {
            let [top] = &local[..] else { bail!("--files-from takes one source") };
            Selected { top: top.to_path_buf(), selection: Arc::new(listed(args, file)?) }
        }
        None => relative(&local)?,
    };
    Ok(Some(selected))
}

/// Returns the selection of a file of paths.
fn listed(args: &CpArgs, file: &Path) -> Result<Selection> {
    let mut bytes = Vec::new();
    match file.as_os_str() == "-" {
        true => stdin().read_to_end(&mut bytes).map(drop).context("standard input")?,
        false => bytes = fs::read(file).with_context(|| file.display().to_string())?,
    }
    let end = if args.from0 { 0 } else { b'\n' };
    let lines = bytes.split(|&byte| byte == end).filter(|line| !line.is_empty());
    let is_path = |line: &&[u8]| args.from0 || !line.starts_with(b"#") && !line.starts_with(b";");
    let mut selection = Selection::new(args.is_recursive());
    for line in lines.filter(is_path) {
        // In rsync it would mean another directory to begin in, for this path alone.
        if line.windows(3).any(|three| three == b"/./") {
            let line = OsStr::from_bytes(line).display();
            bail!("{line}: /./ marks nothing in a list: name another source");
        }
        add(&mut selection, line)?;
    }
    Ok(selection)
}

/// Returns the selection of these sources, each with the directories that its path names.
fn relative(sources: &[&PathBuf]) -> Result<Selected> {
    let mut selection = Selection::new(true);
    let mut top = None;
    for source in sources {
        let path = source.as_os_str().as_bytes();
        let (start, rest) = match path.windows(3).position(|three| three == b"/./") {
            Some(at) => (&path[..at + 1], &path[at + 3..]),
            None if path.starts_with(b"/") => (&b"/"[..], path),
            None => (&b"."[..], path),
        };
        let rest = if rest.is_empty() { b"." } else { rest };
        add(&mut selection, rest)?;
        if top.is_some_and(|top| top != start) {
            bail!("with --relative, all sources have to begin in the same directory");
        }
        top = Some(start);
    }
    let top = PathBuf::from(OsStr::from_bytes(top.context("no source")?));
    Ok(Selected { top, selection: Arc::new(selection) })
}

fn add(selection: &mut Selection, path: &[u8]) -> Result<()> {
    let shown = || OsStr::from_bytes(path).display().to_string();
    selection.add(path).with_context(shown)
}
