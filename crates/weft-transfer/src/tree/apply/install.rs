//! Creates whole files, links, pipes and devices under temporary names, and renames them when they
//! are complete.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fstat, fsync, ftruncate, mknodat, readlinkat, renameat,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::tree::beneath;
use crate::tree::digest::{digest_of_file, leave_cache};
use crate::tree::metadata;
use crate::tree::write::write_all;
use crate::wire::record::{Entry, Kind, Status, Tail};
use crate::wire::record_name::Name;

use super::attributes;
use super::context::Context;
use super::directory::Directory;
use super::dry;
use super::options::Append;
use super::report::{Change, EntryKind, Event, Failure, Problem, Step};
use super::special;

/// An entry that has its final name.
#[derive(Debug)]
pub(super) struct Installed {
    /// The result of setting its attributes.
    pub(super) attributes: Result<(), Errno>,
    /// Whether it is new or has replaced another one.
    pub(super) change: Change,
}

/// Writes a file whose data is complete, and renames it. Returns whether it has its final name.
pub(super) fn whole(
    context: &Context,
    directory: &Arc<Directory>,
    entry: &Entry,
    name: &Name,
    data: &[u8],
    tail: Tail,
) -> bool {
    let result = try_whole(context, directory, entry, name, data, tail);
    settle(context, directory, name, result, (tail, tail.hash), entry)
}

/// Reports the result of a file. Returns whether it has its final name.
pub(super) fn settle(
    context: &Context,
    directory: &Arc<Directory>,
    name: &Name,
    result: Result<Installed, Failure>,
    (tail, hash): (Tail, Option<[u8; 32]>),
    entry: &Entry,
) -> bool {
    let is_linked = entry.is_linked;
    match result {
        Ok(Installed { attributes, change }) => {
            context.session.others.replaced(&directory.dir, name);
            if let Err(error) = attributes {
                context.problem(&directory.dir, Some(name), Step::Attributes, error);
            }
            if tail.status == Status::Changed {
                let problem = Problem { step: Step::Changed, errno: None };
                // Its other names would be links to what is replaced.
                if context.again(&directory.dir, Some(name), problem, !is_linked) {
                    return true;
                }
                context.event(&directory.dir, Some(name), Event::Problem(problem));
            } else if attributes.is_ok() {
                context.confirm(entry.number);
            }
            let event = Event::Copied { size: tail.size, hash };
            context.event(&directory.dir, Some(name), event);
            context.done(&directory.dir, Some(name), change, EntryKind::File, tail.size);
            true
        }
        Err((step, errno)) => {
            let problem = Problem { step, errno: Some(errno) };
            if !is_linked || !context.again(&directory.dir, Some(name), problem, false) {
                directory.failed(context, Some(name), step, errno);
            }
            false
        }
    }
}

/// Writes the file. It exists afterwards also if its attributes could not be set.
fn try_whole(
    context: &Context,
    directory: &Arc<Directory>,
    entry: &Entry,
    name: &Name,
    data: &[u8],
    tail: Tail,
) -> Result<Installed, Failure> {
    if let Status::Failed { errno } = tail.status {
        return Err((Step::Source, Errno::from_raw_os_error(errno as i32)));
    }
    let data = &data[..tail.size as usize];
    if tail.hash.is_some_and(|hash| *blake3::hash(data).as_bytes() != hash) {
        return Err((Step::Verify, Errno::BADMSG));
    }
    let dir = context.dirs.open(&directory.dir).map_err(|error| (Step::Create, error))?;
    let write_error = |error| (Step::Write, error);
    let complete = |fd: &OwnedFd, plan: attributes::Plan| {
        if context.options.verifies {
            leave_cache(fd).map_err(write_error)?;
            let found = digest_of_file(fd).map_err(|error| (Step::Verify, error))?;
            if found != *blake3::hash(data).as_bytes() {
                return Err((Step::Verify, Errno::BADMSG));
            }
        }
        let attributes = plan.set(context, fd.as_fd(), entry, (&directory.dir, Some(name)));
        if context.options.syncs {
            fsync(fd).map_err(write_error)?;
        }
        Ok(attributes)
    };
    if let Some((fd, plan, stat)) = open_in_place(context, directory, dir.as_fd(), entry, name)? {
        let written = if context.options.appends == Some(Append::Trusted) {
            let kept = metadata::size(&stat);
            write_all(&fd, data.get(kept as usize..).unwrap_or_default(), kept)
        } else {
            write_all(&fd, data, 0).and_then(|()| ftruncate(&fd, tail.size))
        };
        written.map_err(write_error)?;
        return Ok(Installed { attributes: complete(&fd, plan)?, change: Change::Update });
    }
    let (fd, temporary, plan) = create(context, directory, dir.as_fd(), entry, name)?;
    let result = write_all(&fd, data, 0).map_err(write_error).and_then(|()| {
        let attributes = complete(&fd, plan)?;
        let change = rename(context, directory, &*dir, &temporary, name)?;
        Ok(Installed { attributes, change })
    });
    if result.is_err() {
        // Only the first error is reported.
        let _ = unlinkat(&*dir, temporary.as_path(), AtFlags::empty());
        context.refund(entry.size, 1);
    } else {
        // The file may have become shorter while it was read.
        context.refund(entry.size.saturating_sub(tail.size), 0);
    }
    result
}

/// Returns how files are opened. Those that are read back are opened once, because their modes may
/// forbid it later.
pub(super) fn access(context: &Context) -> OFlags {
    if context.options.verifies { OFlags::RDWR } else { OFlags::WRONLY }
}

/// Creates a temporary file, and charges the quota for its size.
pub(super) fn create(
    context: &Context,
    directory: &Arc<Directory>,
    dir: BorrowedFd<'_>,
    entry: &Entry,
    name: &Name,
) -> Result<(OwnedFd, Name, attributes::Plan), Failure> {
    let temporary = directory.temporary(context, name);
    let plan = attributes::plan(context, entry, Some(directory.created));
    let flags = access(context) | OFlags::CREATE | OFlags::EXCL;
    context.charge(entry.size, 1)?;
    let fd = beneath::open(dir, temporary.as_path(), flags, plan.create_mode);
    let fd = fd.map_err(|error| {
        context.refund(entry.size, 1);
        (Step::Create, error)
    })?;
    Ok((fd, temporary, plan))
}

/// Opens a regular file that exists, if files are written in place, and charges the quota for what
/// it grows by. Whatever happens then, the file stays.
pub(super) fn open_in_place(
    context: &Context,
    directory: &Directory,
    dir: BorrowedFd<'_>,
    entry: &Entry,
    name: &Name,
) -> Result<Option<(OwnedFd, attributes::Plan, Stat)>, Failure> {
    if !context.options.in_place || directory.is_new() {
        return Ok(None);
    }
    let is_file = |stat: &Stat| metadata::kind(stat) == FileType::RegularFile;
    let there = statat(dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW);
    if !there.as_ref().is_ok_and(is_file) {
        return Ok(None);
    }
    let write_error = |error| (Step::Write, error);
    let flags = access(context) | OFlags::NONBLOCK;
    let fd = match beneath::open(dir, name.as_path(), flags, 0) {
        Ok(fd) => fd,
        // Something else has its name now, which is replaced.
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR) => return Ok(None),
        Err(error) => return Err(write_error(error)),
    };
    let stat = fstat(&fd).map_err(write_error)?;
    if !is_file(&stat) {
        return Ok(None);
    }
    let growth = entry.size.saturating_sub(metadata::size(&stat));
    context.charge(growth, 0)?;
    Ok(Some((fd, attributes::plan(context, entry, None), stat)))
}

/// Renames a temporary file to its final name. What it replaces does not count towards the quota
/// any more. Returns whether it has replaced something, if changes are listed.
pub(super) fn rename(
    context: &Context,
    directory: &Arc<Directory>,
    dir: impl AsFd,
    temporary: &Name,
    name: &Name,
) -> Result<Change, Failure> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let _turn = context.turn();
    let is_needed = context.quota.is_some() || context.options.lists;
    let before = is_needed.then(|| statat(&dir, name.as_path(), flags).ok()).flatten();
    let change = if before.is_some() { Change::Update } else { Change::Copy };
    let rename = || renameat(&dir, temporary.as_path(), &dir, name.as_path());
    let kept = match &context.backup {
        Some(backup) => backup.keep(context.around(), &directory.dir, &dir, name)?,
        None => 0,
    };
    let mut result = rename();
    if matches!(result, Err(Errno::ISDIR)) && context.options.replaces {
        directory.put_aside(context, &dir, name)?;
        result = rename();
    } else if let (Ok(()), Some(before)) = (&result, before) {
        match context.backup {
            Some(_) => context.refund(0, kept),
            None => context.refund(metadata::size_of_last(&before), 1),
        }
    }
    result.map(|()| change).map_err(|error| match error {
        Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST => (Step::Clash, error),
        error => (Step::Rename, error),
    })
}

/// Creates a symbolic link, a pipe, a socket or a device.
pub(super) fn other(context: &Context, directory: &Arc<Directory>, entry: &Entry, name: &Name) {
    match try_other(context, directory, entry, name) {
        Ok((attributes, change)) => {
            context.session.others.replaced(&directory.dir, name);
            match attributes {
                Ok(()) => context.confirm(entry.number),
                Err(error) => {
                    context.problem(&directory.dir, Some(name), Step::Attributes, error);
                }
            }
            if let Some(change) = change {
                let kind = match entry.kind {
                    Kind::Symlink { .. } => EntryKind::Symlink,
                    _ => EntryKind::Special,
                };
                context.done(&directory.dir, Some(name), change, kind, 0);
            }
        }
        Err((step, error)) => directory.failed(context, Some(name), step, error),
    }
}

/// Returns the result of setting attributes, and the change, if changes are listed.
fn try_other(
    context: &Context,
    directory: &Arc<Directory>,
    entry: &Entry,
    name: &Name,
) -> Result<(Result<(), Errno>, Option<Change>), Failure> {
    let create_error = |error| (Step::Create, error);
    let dir = context.dirs.open(&directory.dir).map_err(create_error)?;
    let created = directory.created;
    let set = |name: &Name| attributes::set_by_name(context, &*dir, name, entry, created);
    let is_listed = context.options.lists && !directory.is_new();
    let change =
        is_listed.then(|| dry::change_of_other(context, directory.place(name), entry, created));
    if let Kind::Symlink { target } = &entry.kind
        && !directory.is_new()
        && let Ok(there) = readlinkat(&*dir, name.as_path(), Vec::new())
        && there.as_bytes() == &**target
    {
        return Ok((set(name), change.flatten()));
    }
    if !directory.is_new()
        && let Ok(there) = statat(&*dir, name.as_path(), AtFlags::SYMLINK_NOFOLLOW)
        && special::is_same(entry, &there)
    {
        let mode = set_mode(context, &*dir, name, entry, metadata::mode(&there) & 0o777);
        let others = set(name);
        return Ok((mode.and(others), change.flatten()));
    }
    let temporary = directory.temporary(context, name);
    context.charge(0, 1)?;
    make(context, &*dir, entry, &temporary).map_err(|error| {
        context.refund(0, 1);
        create_error(error)
    })?;
    let attributes = set(&temporary);
    match rename(context, directory, &*dir, &temporary, name) {
        Ok(change) => Ok((attributes, Some(change))),
        Err(failure) => {
            // Only the first error is reported.
            let _ = unlinkat(&*dir, temporary.as_path(), AtFlags::empty());
            context.refund(0, 1);
            Err(failure)
        }
    }
}

fn make(context: &Context, dir: impl AsFd, entry: &Entry, name: &Name) -> Result<(), Errno> {
    if let Kind::Symlink { target } = &entry.kind {
        return symlinkat(&**target, dir, name.as_path());
    }
    let (kind, device) = special::kind_of(&entry.kind).ok_or(Errno::INVAL)?;
    let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
    if is_device && !context.options.makes_devices {
        return Err(Errno::PERM);
    }
    let mode = entry.mode & 0o777;
    mknodat(&dir, name.as_path(), kind, Mode::from_raw_mode(mode.into()), device)?;
    set_mode(context, &dir, name, entry, mode & !context.who.umask)
}

/// Sets the mode of a pipe, a socket or a device, which now has the mode `there`.
fn set_mode(
    context: &Context,
    dir: impl AsFd,
    name: &Name,
    entry: &Entry,
    there: u16,
) -> Result<(), Errno> {
    let mode = entry.mode & 0o777;
    if !context.options.keeps_modes || mode == there {
        return Ok(());
    }
    // Opening a pipe or a device can block or have effects; `O_PATH` avoids that. The mode can then
    // only be set through the descriptor's link in `/proc`.
    let fd = beneath::open(&dir, name.as_path(), OFlags::PATH, 0)?;
    let mode = Mode::from_raw_mode(mode.into());
    rustix::fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), mode)
}
