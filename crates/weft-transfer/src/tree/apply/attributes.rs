//! Owner, mode, extended attributes and times of what the sink creates.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown, fsetxattr,
    futimens, utimensat,
};
use rustix::io::{Errno, Result};

use crate::tree::metadata;
use crate::wire::record::{Entry, Time};
use crate::wire::record_name::Name;

use super::context::Context;

/// What the kernel gives to a file that is created in a directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Created {
    pub(super) gid: u32,
    /// Modes are as asked for, less the umask: no list of access rights changes them.
    pub(super) has_plain_modes: bool,
}

/// What is to be set on a file, given what creating it sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The mode to create it with.
    pub(super) create_mode: u16,
    owner: Option<(Option<u32>, Option<u32>)>,
    mode: Option<u16>,
}

/// What to set on a regular file, or, without `created`, on something that is there.
pub(super) fn plan(context: &Context, entry: &Entry, created: Option<Created>) -> Plan {
    let who = context.who;
    let (uid, gid) = (context.owner(false, entry.uid), context.owner(true, entry.gid));
    let is_root = who.uid == 0;
    let is_owner_known = created.is_some() && !who.gets_odd_groups;
    let got_gid = created.map_or(who.gid, |created| created.gid);
    let has_owner = is_owner_known && uid == who.uid && gid == got_gid;
    let sets_owner = context.options.keeps_owners && !has_owner;
    let owner = sets_owner.then_some((is_root.then_some(uid), Some(gid)));
    let keeps_special = context.options.keeps_special_bits
        && context.options.keeps_owners
        && (is_root || uid == who.uid);
    let special = entry.mode & 0o6000;
    let wanted = (entry.mode & 0o1777) | if keeps_special { special } else { 0 };
    if !context.options.keeps_modes {
        return Plan { create_mode: entry.mode & 0o777, owner, mode: None };
    }
    let has_plain_modes = created.is_some_and(|created| created.has_plain_modes);
    // Until the file has its owner, the group's bits would go to another group.
    let is_safe = owner.is_none() || (wanted >> 3) & !wanted & 0o7 == 0;
    if has_plain_modes && is_safe && wanted & (who.umask | 0o7000) == 0 {
        return Plan { create_mode: wanted, owner, mode: None };
    }
    Plan { create_mode: 0o600, owner, mode: Some(wanted) }
}

impl Plan {
    /// Sets all on an open file or directory. The result is the first error; the rest is set in
    /// spite of it.
    pub(super) fn set(self, context: &Context, fd: BorrowedFd<'_>, entry: &Entry) -> Result<()> {
        let mut result = Ok(());
        let mut note = |done: Result<()>| {
            if result.is_ok() {
                result = done;
            }
        };
        let mut mode = self.mode;
        if let Some((uid, gid)) = self.owner {
            match fchown(fd, uid.map(Uid::from_raw), gid.map(Gid::from_raw)) {
                Ok(()) => {}
                // Not for this process to set; then no bit may act for the wrong owner.
                Err(Errno::PERM | Errno::INVAL) if context.who.uid != 0 => {
                    mode = mode.map(|mode| mode & 0o1777);
                }
                Err(error) => {
                    mode = mode.map(|mode| mode & 0o1777);
                    note(Err(error));
                }
            }
        }
        for xattr in &entry.xattrs {
            if is_privileged(&xattr.name) && !context.options.keeps_special_bits {
                note(Err(Errno::PERM));
                continue;
            }
            note(fsetxattr(fd, &*xattr.name, &xattr.value, XattrFlags::empty()));
        }
        if let Some(mode) = mode {
            note(fchmod(fd, Mode::from_raw_mode(mode.into())));
        }
        if context.options.keeps_times {
            note(futimens(fd, &times(entry)));
        }
        result
    }
}

/// Sets owner and times of what cannot be opened: links, pipes and devices.
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

/// Whether owner and mode are what they would be set to.
pub(super) fn is_same(context: &Context, entry: &Entry, stat: &rustix::fs::Stat) -> bool {
    let Plan { owner, mode, .. } = plan(context, entry, None);
    let has_owner = owner.is_none_or(|(uid, gid)| {
        // Another process than root's sets a group where it can, and asks each time.
        uid.is_none_or(|uid| uid == stat.st_uid) && gid.is_none_or(|gid| gid == stat.st_gid)
    });
    has_owner && mode.is_none_or(|mode| u32::from(mode) == stat.st_mode & 0o7777)
}

/// The same for what is not opened: owner and time.
pub(super) fn is_same_by_name(
    context: &Context,
    entry: &Entry,
    stat: &rustix::fs::Stat,
    created: Created,
) -> bool {
    let has_owner = plan(context, entry, Some(created)).owner.is_none_or(|(uid, gid)| {
        uid.is_none_or(|uid| uid == stat.st_uid) && gid.is_none_or(|gid| gid == stat.st_gid)
    });
    has_owner && (!context.options.keeps_times || metadata::mtime(stat) == entry.mtime)
}

/// Whether an attribute can give rights to who runs a file (`security.capability`), or is for the
/// system alone.
fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

fn times(entry: &Entry) -> Timestamps {
    let spec = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: spec(entry.atime), last_modification: spec(entry.mtime) }
}
