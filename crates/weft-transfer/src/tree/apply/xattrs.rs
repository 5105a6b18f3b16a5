//! Extended attributes of the entries that the sink creates or finds.

use std::os::fd::BorrowedFd;

use rustix::fs::{XattrFlags, fremovexattr, fsetxattr};
use rustix::io::{Errno, Result};

use crate::limits::XATTRS_LEN_MAX;
use crate::tree::metadata;
use crate::wire::record::{Entry, Xattr};

use super::context::Context;

/// The extended attributes of an open entry that differ from those at the source.
#[derive(Debug, Default)]
pub(super) struct Differences<'entry> {
    set: Vec<&'entry Xattr>,
    remove: Vec<Box<[u8]>>,
    /// Attributes that would give privileges, which this sink does not set.
    refused: usize,
}

/// Compares the extended attributes of an open file or directory with those of its entry.
///
/// Without those of the source nothing differs. If those of the open file cannot be read, all of
/// the source's are set and none are removed.
pub(super) fn differences<'entry>(
    context: &Context,
    fd: BorrowedFd<'_>,
    entry: &'entry Entry,
) -> Differences<'entry> {
    let Some(wanted) = &entry.xattrs else { return Differences::default() };
    let there = metadata::xattrs(fd, XATTRS_LEN_MAX).unwrap_or_default();
    let mut differences = Differences::default();
    for xattr in wanted {
        if is_privileged(&xattr.name) && !context.options.keeps_special_bits {
            differences.refused += 1;
        } else if !there.contains(xattr) {
            differences.set.push(xattr);
        }
    }
    let is_wanted = |name: &[u8]| wanted.iter().any(|xattr| *xattr.name == *name);
    let extra = there.into_iter().map(|xattr| xattr.name);
    differences.remove.extend(extra.filter(|name| is_removable(name) && !is_wanted(name)));
    differences
}

impl Differences<'_> {
    /// Whether there is nothing that the sink would change.
    pub(super) fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    /// Makes the attributes of the open entry those of the source. Returns the first error; later
    /// attributes are set nevertheless.
    pub(super) fn apply(self, fd: BorrowedFd<'_>) -> Result<()> {
        let mut result = if self.refused == 0 { Ok(()) } else { Err(Errno::PERM) };
        for name in self.remove {
            match fremovexattr(fd, &*name) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(error) => result = result.and(Err(error)),
            }
        }
        for Xattr { name, value } in self.set {
            let set = fsetxattr(fd, &**name, value, XattrFlags::empty());
            result = result.and(set);
        }
        result
    }
}

/// Whether an attribute can give privileges to a program (`security.capability`), or is reserved
/// for the system.
fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// Whether a sink removes an attribute that the source's entry does not have. Others belong to the
/// system of this host, such as the label of SELinux.
fn is_removable(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
}
