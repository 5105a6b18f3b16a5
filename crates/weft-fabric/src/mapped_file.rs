//! Files that are mapped, so that peers access them.
//!
//! Anybody who may write to the file may change it at any time, and shorten it. So its bytes are
//! copied, never borrowed, and a page that is missing is no end of the process but one of all
//! sharing: see [`weft_sys::FileMapping`].
//!
//! # Safety
//! [`Inner`] owns the mapping, and what is registered of it lies in a [`SharedFile`], which has the
//! mapping inside. The registration ends, and the carrier then waits for accesses in progress,
//! before the mapping is removed; if it does not end, the mapping stays. Nobody gets the right to
//! write to a mapping that is not writable.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::ops::RangeBounds;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{OFlags, fcntl_getfl};
use weft_engine::Errno;
use weft_engine::access::Access;
use weft_sys::{FileMapping, Lock, Region};

use crate::bounds;
use crate::carrier::Registration;
use crate::common::Common;
use crate::error::{Error, Result};
use crate::share::{RemoteKey, Rights};
use crate::watcher::Watched;

/// A part of a file that is mapped, to be read and written as memory by this process and by peers,
/// made by [`Fabric::map_file`](crate::Fabric::map_file). What is written to it is in the file at
/// once for all processes of this host; [`File::sync_data`] brings it to the device.
///
/// Anybody who may write to the file can change it, and cut it off, at any time. So its bytes are
/// copied, never borrowed. If a part of the file is missing that the mapping has, the process goes
/// on: the access that finds it reads zeros, or writes to nothing, as if the file had been cut off
/// right afterwards. Then all peers lose their rights, and what is tried later fails with
/// [`Error::Truncated`].
#[derive(Clone, Debug)]
pub struct MappedFile {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    mapping: FileMapping,
    is_writable: bool,
    /// To see its length, which has to be `end` at least.
    file: File,
    end: u64,
    common: Arc<Common>,
    sharing: Lock<Sharing>,
}

#[derive(Debug, Default)]
struct Sharing {
    /// What peers have rights by.
    registrations: Vec<Weak<Registration>>,
    is_watched: bool,
}

/// The range within a length; `None` if it is not inside, or has no bytes.
fn inside(range: &impl RangeBounds<u64>, len: u64) -> Option<(u64, u64)> {
    let range = bounds::within(range, len).filter(|range| !range.is_empty())?;
    Some((range.start, range.end))
}

/// The rights of a registration. Memory of a file that can only be read is not written at all.
fn access(rights: Rights) -> Access {
    let mut access = rights.access();
    access.set(Access::LOCAL_WRITE, rights.write || rights.atomic);
    access
}

impl MappedFile {
    pub(crate) fn new(
        common: &Arc<Common>,
        file: &File,
        range: &impl RangeBounds<u64>,
    ) -> Result<Self> {
        let failed = |cause| Error::system("map the file", cause);
        let errno = |error: &std::io::Error| Errno::from_io_error(error).unwrap_or(Errno::IO);
        let metadata = file.metadata().map_err(|error| failed(errno(&error)))?;
        if !metadata.is_file() {
            return Err(failed(Errno::NODEV));
        }
        let of = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        let (start, end) = inside(range, metadata.len()).ok_or(Error::Range { len: of })?;
        let len = usize::try_from(end - start).map_err(|_| Error::Memory { len: usize::MAX })?;
        let mode = fcntl_getfl(file).map_err(failed)? & OFlags::RWMODE;
        let is_writable = mode == OFlags::RDWR;
        let mapping = FileMapping::new(file, start, len, is_writable).map_err(failed)?;
        let file = file.try_clone().map_err(|error| failed(errno(&error)))?;
        let (common, sharing) = (Arc::clone(common), Lock::new(Sharing::default()));
        Ok(Self { inner: Arc::new(Inner { mapping, is_writable, file, end, common, sharing }) })
    }

    /// The number of bytes that are mapped: at least one.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // It never is.
    pub fn len(&self) -> usize {
        self.inner.region().len()
    }

    /// Copies bytes at `offset` of what is mapped. If somebody writes at the same time, the result
    /// may be a mixture of old and new bytes.
    ///
    /// # Errors
    /// [`Error::Range`] if they are not inside; [`Error::Truncated`].
    pub fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.inner.part(offset, bytes.len())?.fill(bytes);
        self.inner.check()
    }

    /// Copies bytes to `offset` of what is mapped.
    ///
    /// # Errors
    /// [`Error::Range`] if they would not be inside; [`Error::System`] with `EACCES` if the file is
    /// open for reading only; [`Error::Truncated`], and then some of them may have been written.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.inner.check_writable("write to a file that is open for reading only")?;
        self.inner.part(offset, bytes.len())?.copy_in(bytes);
        self.inner.check()
    }

    /// Changes eight bytes at `offset` of what is mapped in one step that peers' atomics do not
    /// split. Their place in the file has to be a multiple of eight. Returns the old value, in the
    /// byte order of this host.
    ///
    /// # Errors
    /// Those of [`MappedFile::write_at`]; [`Error::Range`] also if they are not aligned.
    pub fn update(&self, offset: usize, change: impl FnMut(u64) -> u64) -> Result<u64> {
        self.inner.check_writable("change a file that is open for reading only")?;
        let word = self.inner.part(offset, size_of::<u64>())?;
        let old = word.update_u64(change).ok_or(Error::Range { len: self.len() })?;
        self.inner.check().map(|()| old)
    }

    /// Lets peers access a range of what is mapped, until the returned value is dropped. Several
    /// ranges may be shared at a time, which may overlap.
    ///
    /// # Errors
    /// [`Error::Range`] if the range is empty or not inside; [`Error::System`] with `EACCES` if the
    /// file is open for reading only and peers would get more rights, or if no more memory can be
    /// registered; [`Error::Truncated`].
    pub fn share(&self, rights: Rights, range: impl RangeBounds<u64>) -> Result<SharedFile> {
        let inner = &self.inner;
        if rights.write || rights.atomic {
            inner.check_writable("share a file for writing that is open for reading only")?;
        }
        let len = self.len();
        let (start, end) = inside(&range, len as u64).ok_or(Error::Range { len })?;
        // They are at most `len`.
        let part = inner.part(start as usize, (end - start) as usize)?;
        let mut sharing = inner.sharing.lock();
        if !sharing.is_watched {
            let watched = inner.common.watch(inner);
            watched.map_err(|errno| Error::system("watch the file", errno))?;
            sharing.is_watched = true;
        }
        let registered = inner.common.domain.register(part, access(rights));
        let registered = registered.map_err(|errno| Error::system("register the file", errno))?;
        let registration = Arc::new(registered);
        let (address, len) = (part.addr() as u64, end - start);
        let key = RemoteKey::from_raw(address, len, registration.remote_key());
        sharing.registrations.push(Arc::downgrade(&registration));
        drop(sharing);
        let shared = SharedFile { registration, file: Arc::clone(inner), key };
        // From now on the watcher ends the rights if a page is missing.
        inner.check().map(|()| shared)
    }
}

impl Inner {
    fn region(&self) -> Region {
        // SAFETY: the callers use it while they have borrowed this value, or register it, see the
        // module's comment. They check that the mapping is writable before they write.
        unsafe { self.mapping.region() }
    }

    fn part(&self, offset: usize, len: usize) -> Result<Region> {
        let region = self.region();
        region.part(offset, len).ok_or(Error::Range { len: region.len() })
    }

    fn check_writable(&self, what: &'static str) -> Result<()> {
        if self.is_writable { Ok(()) } else { Err(Error::system(what, Errno::ACCESS)) }
    }

    /// Whether the file has been there until now.
    fn check(&self) -> Result<()> {
        // The last page that is left may show zeros behind the file's end.
        let has_all = self.file.metadata().is_ok_and(|metadata| metadata.len() >= self.end);
        if has_all && !self.mapping.is_torn() { Ok(()) } else { Err(Error::Truncated) }
    }
}

impl Watched for Inner {
    fn fd(&self) -> BorrowedFd<'_> {
        self.mapping.as_fd()
    }

    /// A page was missing.
    fn readable(&self) {
        self.mapping.take_event();
        if self.mapping.is_torn() {
            for registration in self.sharing.lock().registrations.drain(..) {
                if let Some(registration) = registration.upgrade() {
                    // A device that refuses keeps the mapping.
                    let _ = registration.end();
                }
            }
        }
    }
}

/// A range of a [`MappedFile`] that peers access. Dropping it ends their rights: it waits until
/// accesses in progress are over, and later ones are refused.
pub struct SharedFile {
    registration: Arc<Registration>,
    file: Arc<Inner>,
    key: RemoteKey,
}

impl SharedFile {
    /// The key to give to peers.
    #[must_use]
    pub fn key(&self) -> RemoteKey {
        self.key
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        let is_other =
            |other: &Weak<Registration>| other.as_ptr() != Arc::as_ptr(&self.registration);
        self.file.sharing.lock().registrations.retain(is_other);
        if self.registration.end().is_err() {
            // A device keeps the memory: the mapping has to stay.
            std::mem::forget(Arc::clone(&self.file));
        }
    }
}

impl fmt::Debug for SharedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedFile").field("key", &self.key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::sim::Simulation;
    use crate::{Fabric, Options};

    const PAGE: usize = 4_096;

    fn file(pages: usize) -> File {
        let file: OwnedFd = memfd_create(c"file", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, (pages * PAGE) as u64).unwrap();
        file.into()
    }

    #[test]
    fn rights_and_ranges_are_those_of_the_file() {
        let fabric = Fabric::open(Options::default()).unwrap();
        let file = file(2);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let whole = fabric.map_file(&file, ..).unwrap();
        assert_eq!(whole.len(), 2 * PAGE);
        whole.write_at(4_094, b"abcd").unwrap();
        let part = fabric.map_file(&File::open(&path).unwrap(), 4_095..=4_096).unwrap();
        let mut bytes = [0; 2];
        part.read_at(0, &mut bytes).unwrap();
        assert_eq!((&bytes, part.len()), (b"bc", 2));
        let is_refused = |error| matches!(error, Error::System { cause: Errno::ACCESS, .. });
        assert!(is_refused(part.write_at(0, b"x").unwrap_err()));
        assert!(is_refused(part.update(0, |old| old).unwrap_err()));
        assert!(is_refused(part.share(Rights::ALL, ..).unwrap_err()));
        assert!(is_refused(part.share(Rights::WRITE, ..).unwrap_err()));
        assert_eq!(part.share(Rights::READ, 1..).unwrap().key().len(), 1);
        let outside = |result: Result<()>| assert!(matches!(result, Err(Error::Range { .. })));
        outside(part.read_at(1, &mut bytes));
        outside(whole.write_at(usize::MAX, b"x"));
        outside(whole.update(4, |old| old).map(drop));
        outside(whole.share(Rights::READ, 1..1).map(drop));
        outside(whole.share(Rights::READ, ..=8_192).map(drop));
        outside(fabric.map_file(&file, ..8_193).map(drop));
        outside(fabric.map_file(&file, 8_192..).map(drop));
        outside(fabric.map_file(&file, u64::MAX..=u64::MAX).map(drop));
        let to_write = OpenOptions::new().write(true).open(&path).unwrap();
        assert!(is_refused(fabric.map_file(&to_write, ..).unwrap_err()));
        let folder = fabric.map_file(&File::open("/").unwrap(), ..).unwrap_err();
        assert!(matches!(folder, Error::System { cause: Errno::NODEV, .. }));
    }

    #[test]
    fn a_file_that_is_cut_off_is_shared_no_more() {
        let simulation = Simulation::new(1).unwrap();
        let [at, from] = [simulation.host(), simulation.host()];
        let (at, fabric) = (at.open(Options::default()).unwrap(), from.open(Options::default()));
        let fabric = fabric.unwrap();
        let listener = at.listen(([0, 0, 0, 0], 18_515).into()).unwrap();
        let connecting = fabric.connect(listener.address(), b"").unwrap();
        let _server = listener.accept().wait().unwrap().accept(b"").unwrap();
        let client = connecting.wait().unwrap().endpoint;
        let file = file(2);
        let mapped = at.map_file(&file, ..).unwrap();
        let shared = mapped.share(Rights::ALL, ..).unwrap();
        assert_eq!(client.fetch_add(&shared.key(), 4_096, 7).unwrap().wait(), Ok(0));
        assert_eq!(mapped.update(4_096, |old| old), Ok(7));
        // What is left can be used until somebody finds that a part is missing.
        ftruncate(&file, 4_100).unwrap();
        assert_eq!(mapped.read_at(0, &mut [0; 8]), Err(Error::Truncated));
        let page = fabric.alloc(PAGE).unwrap();
        let page = client.write(page, .., &shared.key(), 0).unwrap().wait().unwrap();
        ftruncate(&file, 4_096).unwrap();
        let page = client.read(page, .., &shared.key(), 4_096).unwrap().wait().unwrap();
        assert!(page.iter().all(|&byte| byte == 0));
        let end = client.write(page, .., &shared.key(), 0).unwrap().wait().map(drop);
        assert!(matches!(end, Err(Error::Denied { .. })), "{end:?}");
        assert!(matches!(mapped.share(Rights::READ, ..).map(drop), Err(Error::Truncated)));
    }
}
