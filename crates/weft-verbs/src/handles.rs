//! The identifiers by which a program imports objects: descriptors of contexts, and handles.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use weft_engine::pd::Pd as EnginePd;
use weft_engine::{Context as EngineContext, Result};
use weft_sys::Lock;
use weft_sys::calls::fs::{MemfdFlags, fstat, memfd_create};
use weft_sys::calls::pipe::{PipeFlags, pipe_with};

use crate::device::Device;

/// An open context, identified by the inode of its descriptor.
#[derive(Debug)]
struct OpenContext {
    inode: (u64, u64),
    engine: Weak<EngineContext>,
    device: &'static Device,
}

static OPENED: Lock<Vec<OpenContext>> = Lock::new(Vec::new());
static DOMAINS: Lock<Handles<EnginePd>> = Lock::new(Handles::new());

/// Handle numbers for the objects of one kind.
#[derive(Debug)]
pub(crate) struct Handles<T>(Vec<(u32, Weak<T>)>);

impl<T> Handles<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the handle by which a program can import the object.
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

    /// Finds the object of a handle.
    pub(crate) fn find(&self, handle: u32) -> Option<Arc<T>> {
        self.0.iter().find(|(other, _)| *other == handle)?.1.upgrade()
    }
}

fn inode_of(fd: BorrowedFd<'_>) -> Result<(u64, u64)> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Creates a descriptor by which a program can import the context. Only the inode matters, so where
/// a filter refuses `memfd_create(2)`, an end of a pipe does.
///
/// # Errors
/// `EMFILE` or `ENFILE` when no descriptor is left.
pub(crate) fn descriptor(engine: &Arc<EngineContext>, device: &'static Device) -> Result<OwnedFd> {
    let fd = memfd_create("weft-context", MemfdFlags::CLOEXEC)
        .or_else(|_| pipe_with(PipeFlags::CLOEXEC).map(|(reading, _)| reading))?;
    let named =
        OpenContext { inode: inode_of(fd.as_fd())?, engine: Arc::downgrade(engine), device };
    let mut opened = OPENED.lock();
    opened.retain(|named| named.engine.strong_count() != 0);
    opened.push(named);
    Ok(fd)
}

/// Returns the handle by which a program can import the domain.
pub(crate) fn handle(domain: &Arc<EnginePd>) -> u32 {
    DOMAINS.lock().of(domain)
}

/// Finds the domain of a handle.
pub(crate) fn domain(handle: u32) -> Option<Arc<EnginePd>> {
    DOMAINS.lock().find(handle)
}

/// Finds the context of a descriptor, and its device. `None`: the descriptor is of another process
/// or no context.
///
/// # Errors
/// `EBADF` for an invalid descriptor.
pub(crate) fn opened(fd: BorrowedFd<'_>) -> Result<Option<(Arc<EngineContext>, &'static Device)>> {
    let inode = inode_of(fd)?;
    let opened = OPENED.lock();
    let mut found = opened.iter().filter(|named| named.inode == inode);
    Ok(found.find_map(|named| Some((named.engine.upgrade()?, named.device))))
}
