//! What names objects that a program may import: descriptors of contexts, and handles.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use weft_engine::pd::Pd as EnginePd;
use weft_engine::{Context as EngineContext, Result};
use weft_sys::Lock;

use crate::device::Device;

/// What a descriptor of an opened device names: the inode tells it from all others.
#[derive(Debug)]
struct Named {
    inode: (u64, u64),
    engine: Weak<EngineContext>,
    device: &'static Device,
}

static OPENED: Lock<Vec<Named>> = Lock::new(Vec::new());
static DOMAINS: Lock<Handles<EnginePd>> = Lock::new(Handles::new());

/// Numbers for the objects of one kind.
#[derive(Debug)]
pub(crate) struct Handles<T>(Vec<(u32, Weak<T>)>);

impl<T> Handles<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// The handle by which a program may import the object.
    pub(crate) fn of(&mut self, object: &Arc<T>) -> u32 {
        self.0.retain(|(_, object)| object.strong_count() != 0);
        let known = self.0.iter().find(|(_, other)| other.as_ptr() == Arc::as_ptr(object));
        if let Some((handle, _)) = known {
            return *handle;
        }
        let handle = self.0.last().map_or(1, |(last, _)| last.wrapping_add(1));
        self.0.push((handle, Arc::downgrade(object)));
        handle
    }

    /// The object that a program names.
    pub(crate) fn find(&self, handle: u32) -> Option<Arc<T>> {
        self.0.iter().find(|(other, _)| *other == handle)?.1.upgrade()
    }
}

fn inode_of(fd: BorrowedFd<'_>) -> Result<(u64, u64)> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A descriptor by which a program may import the context.
///
/// # Errors
/// `EMFILE` and the like when there is no descriptor left.
pub(crate) fn descriptor(engine: &Arc<EngineContext>, device: &'static Device) -> Result<OwnedFd> {
    let fd = memfd_create("weft-context", MemfdFlags::CLOEXEC)?;
    let named = Named { inode: inode_of(fd.as_fd())?, engine: Arc::downgrade(engine), device };
    let mut opened = OPENED.lock();
    opened.retain(|named| named.engine.strong_count() != 0);
    opened.push(named);
    Ok(fd)
}

/// A handle by which a program may import the domain.
pub(crate) fn handle(domain: &Arc<EnginePd>) -> u32 {
    DOMAINS.lock().of(domain)
}

/// The domain that a handle names.
pub(crate) fn domain(handle: u32) -> Option<Arc<EnginePd>> {
    DOMAINS.lock().find(handle)
}

/// The context that a descriptor names, and its device. `None`: another process's, or nobody's.
///
/// # Errors
/// `EBADF` and the like for a descriptor that is none.
pub(crate) fn opened(fd: BorrowedFd<'_>) -> Result<Option<(Arc<EngineContext>, &'static Device)>> {
    let inode = inode_of(fd)?;
    let opened = OPENED.lock();
    let mut found = opened.iter().filter(|named| named.inode == inode);
    Ok(found.find_map(|named| Some((named.engine.upgrade()?, named.device))))
}
