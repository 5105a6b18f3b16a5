//! Owners, modes, extended attributes and times of the entries that the sink creates.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chmod, chownat, fchmod, fchown,
    fstat, futimens, utimensat,
};
use rustix::io::{Errno, Result};

use crate::tree::dirs::Dir;
use crate::tree::{beneath, metadata};
use crate::wire::record::{Entry, Kind, Time};
use crate::wire::record_name::Name;

use super::context::Context;
use super::options::ApplyOptions;
use super::report::Lost;
use super::xattrs;

/// The attributes that the kernel gives a new file in a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Created {
    pub(super) gid: u32,
    /// New files get the requested mode minus the umask; no default ACL changes it.
    pub(super) has_plain_modes: bool,
}

/// The attributes to set on a file after its creation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The mode for its creation.
    pub(super) create_mode: u16,
    owner: Option<(Option<u32>, Option<u32>)>,
    mode: Option<u16>,
}

/// Plans the attributes of a new regular file, or, if `created` is `None`, of an existing entry.
pub(super) fn plan(context: &Context, entry: &Entry, created: Option<Created>) -> Plan {
    let who = context.who;
    let (uid, gid) = (context.owner(false, entry.uid), context.owner(true, entry.gid));
    let is_root = who.uid == 0;
    let is_owner_known = created.is_some() && !who.gets_odd_groups;
    let got_gid = created.map_or(who.gid, |created| created.gid);
    let has_owner = is_owner_known && uid == who.uid && gid == got_gid;
    let sets_owner = context.options.keeps_owners && !has_owner;
    let owner = sets_owner.then_some((is_root.then_some(uid), Some(gid)));
    let wanted = entry.mode & 0o7777;
    if !context.options.keeps_modes {
        return Plan { create_mode: entry.mode & 0o777, owner, mode: None };
    }
    let has_plain_modes = created.is_some_and(|created| created.has_plain_modes);
    // Until the file has its owner, the group's permission bits would apply to another group.
    let is_safe = owner.is_none() || (wanted >> 3) & !wanted & 0o7 == 0;
    if has_plain_modes && is_safe && wanted & (who.umask | 0o7000) == 0 {
        return Plan { create_mode: wanted, owner, mode: None };
    }
    Plan { create_mode: 0o600, owner, mode: Some(wanted) }
}

impl Plan {
    /// Sets all attributes of an open file or directory. Returns the first error; later attributes
    /// are set nevertheless.
    pub(super) fn set(
        self,
        context: &Context,
        fd: BorrowedFd<'_>,
        entry: &Entry,
        (dir, name): (&Dir, Option<&Name>),
    ) -> Result<()> {
        let (mut result, mut lost) = (Ok(()), Lost::default());
        let mut note = |done: Result<()>| {
            if result.is_ok() {
                result = done;
            }
        };
        if let Some((uid, gid)) = self.owner {
            match fchown(fd, uid.map(Uid::from_raw), gid.map(Gid::from_raw)) {
                Ok(()) => {}
                // This process may not change the owner.
                Err(Errno::PERM | Errno::INVAL) if context.who.uid != 0 => lost.owner = true,
                Err(error) => note(Err(error)),
            }
            // An unprivileged process can give files to no other user.
            lost.owner |= uid.is_none() && context.owner(false, entry.uid) != context.who.uid;
        }
        note(xattrs::differences(context, fd, entry).apply(fd));
        if let Some(mode) = self.mode {
            let kept = fstat(fd).map_or(0, |stat| special_bits(context, &stat, entry));
            note(fchmod(fd, Mode::from_raw_mode((mode & (0o1777 | kept)).into())));
            // The kernel takes setgid away without an error where the group is not this user's.
            let has = |bits: u16| fstat(fd).is_ok_and(|stat| metadata::mode(&stat) & bits == bits);
            lost.special = mode & 0o6000 != 0 && !has(mode & 0o6000);
        }
        if context.keeps_time_of(entry) {
            note(futimens(fd, &times(entry)));
        }
        context.has_lost(dir, name, lost);
        result
    }
}

/// Opens a directory. If it is this user's, and its mode does not let this user change what is in
/// it, it gets another mode.
pub(super) fn open_dir(context: &Context, dir: &Arc<Dir>) -> Result<Arc<OwnedFd>> {
    let opened = context.dirs.open(dir);
    if !context.deletes_really() || context.who.uid == 0 {
        return opened;
    }
    let fd = match (opened, dir.place()) {
        (Err(Errno::ACCESS), Some((parent, name))) => {
            let above = context.dirs.open(parent)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let fd = beneath::open(&*above, name.as_path(), flags, 0)?;
            let stat = fstat(&fd)?;
            if stat.st_uid != context.who.uid {
                return Err(Errno::ACCESS);
            }
            // Its mode can only be set through the descriptor's link in `/proc`.
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700);
            chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), mode)?;
            context.dirs.open(dir)?
        }
        (opened, _) => opened?,
    };
    let stat = fstat(&*fd)?;
    if stat.st_uid == context.who.uid && stat.st_mode & 0o300 != 0o300 {
        fchmod(&*fd, Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700))?;
    }
    Ok(fd)
}

/// Returns the special bits that an open entry may have: setuid if it belongs to the user to whom
/// it belongs at the source, and setgid with the same group.
fn special_bits(context: &Context, stat: &Stat, entry: &Entry) -> u16 {
    let ApplyOptions { keeps_special_bits, keeps_owners, is_same_host, .. } = context.options;
    // The numbers of another host's owners mean something only if they are kept.
    let keeps = keeps_special_bits && (keeps_owners || is_same_host);
    // In a directory the bit only passes the group on.
    let keeps_group = keeps || entry.kind == Kind::Directory;
    let has_user = stat.st_uid == context.owner(false, entry.uid);
    let has_group = stat.st_gid == context.owner(true, entry.gid);
    let setuid = if keeps && has_user { 0o4000 } else { 0 };
    let setgid = if keeps_group && has_group { 0o2000 } else { 0 };
    setuid | setgid
}

/// Sets owner and times of entries that cannot be opened: links, pipes and devices.
pub(super) fn set_by_name(
    context: &Context,
    dir: impl AsFd,
    name: &Name,
    entry: &Entry,
    created: Created,
) -> Result<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let mut result = Ok(());
    if let Some((uid, gid)) = plan(context, entry, Some(created)).owner {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        match chownat(&dir, name.as_path(), uid, gid, flags) {
            Err(Errno::PERM | Errno::INVAL) if context.who.uid != 0 => {}
            other => result = other,
        }
    }
    if context.options.keeps_times {
        let set = utimensat(&dir, name.as_path(), &times(entry), flags);
        result = result.and(set);
    }
    result
}

/// Whether owner and mode already have the values that would be set.
pub(super) fn is_same(context: &Context, entry: &Entry, stat: &Stat) -> bool {
    let Plan { owner, mode, .. } = plan(context, entry, None);
    let has_owner = owner.is_none_or(|(uid, gid)| {
        // A process without root privileges sets the group if the kernel allows it, so each group
        // is tried.
        uid.is_none_or(|uid| uid == stat.st_uid) && gid.is_none_or(|gid| gid == stat.st_gid)
    });
    // Bits that cannot be kept do not differ for ever.
    let kept = 0o1777 | special_bits(context, stat, entry);
    has_owner && mode.is_none_or(|mode| mode & kept == metadata::mode(stat))
}

/// Whether owner and time of an entry that is not opened have the values that would be set.
pub(super) fn is_same_by_name(
    context: &Context,
    entry: &Entry,
    stat: &Stat,
    created: Created,
) -> bool {
    let has_owner = plan(context, entry, Some(created)).owner.is_none_or(|(uid, gid)| {
        uid.is_none_or(|uid| uid == stat.st_uid) && gid.is_none_or(|gid| gid == stat.st_gid)
    });
    has_owner && (!context.options.keeps_times || metadata::mtime(stat) == entry.mtime)
}

fn times(entry: &Entry) -> Timestamps {
    let spec = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: spec(entry.atime), last_modification: spec(entry.mtime) }
}
