//! Extended reliable connections (IBTA annex A14): many shared receive queues behind one queue
//! pair.
//!
//! A message names its shared receive queue by number. The target queue pair has no queues and no
//! protection domain of its own: its XRC domain decides which shared receive queues a peer may
//! name, and the protection domains of those decide which memory the peer may access.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use weft_sys::calls;
use weft_sys::calls::fs::fstat;
use weft_sys::{Forkable, Lock};

use crate::context::Context;
use crate::cq::Cq;
use crate::limits::OBJECTS_MAX;
use crate::mr::ExtraDomains;
use crate::pd::Pd;
use crate::srq::{self, QueueDomain, Srq, SrqAttr};
use crate::{Errno, Result};

/// The valid bits of a shared receive queue's number.
const NUMBER_MASK: u32 = 0x00ff_ffff;

/// An XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    /// The name of the device.
    device: String,
    file: Option<File>,
    queues: Lock<HashMap<u32, Weak<Srq>>>,
}

/// The file whose inode identifies a domain. It stays open, so that the inode is not reused.
#[derive(Debug)]
struct File {
    device: u64,
    inode: u64,
    _held: OwnedFd,
}

/// How `ibv_open_xrcd` treats a domain that does or does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// `O_CREAT`: create the domain if it does not exist.
    pub create: bool,
    /// `O_EXCL`: fail if the domain exists.
    pub exclusive: bool,
}

static SHARED: Forkable<Lock<Vec<Weak<Xrcd>>>> = Forkable::new(|| Lock::new(Vec::new()));

impl Xrcd {
    /// `ibv_open_xrcd`: opens the domain that the file identifies for this device within this
    /// process. Without a file it creates a domain that cannot be opened again.
    ///
    /// # Errors
    /// `EAGAIN` if the domain does not exist and `mode` does not create it; `EINVAL` if it exists
    /// and `mode` is exclusive; `EBADF` and similar for the descriptor.
    pub fn open(
        context: &Arc<Context>,
        file: Option<BorrowedFd<'_>>,
        mode: OpenMode,
    ) -> Result<Arc<Self>> {
        let Some(file) = file else { return Ok(Self::new(context, None)) };
        let stat = fstat(file)?;
        let file = File {
            device: stat.st_dev,
            inode: stat.st_ino,
            _held: calls::io::fcntl_dupfd_cloexec(file, 0)?,
        };
        let mut shared = SHARED.get().lock();
        shared.retain(|domain| domain.strong_count() != 0);
        let found = shared.iter().filter_map(Weak::upgrade).find(|other| other.is(context, &file));
        match found {
            Some(_) if mode.exclusive => Err(Errno::INVAL),
            Some(domain) => Ok(domain),
            None if !mode.create => Err(Errno::AGAIN),
            None => {
                let domain = Self::new(context, Some(file));
                shared.push(Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }

    fn new(context: &Arc<Context>, file: Option<File>) -> Arc<Self> {
        let queues = Lock::new(HashMap::new());
        Arc::new(Self { device: context.device().name.clone(), file, queues })
    }

    fn is(&self, context: &Context, file: &File) -> bool {
        let same_file = |own: &File| (own.device, own.inode) == (file.device, file.inode);
        self.device == context.device().name && self.file.as_ref().is_some_and(same_file)
    }

    /// Creates a shared receive queue and assigns a number to it.
    fn add(&self, make: impl FnOnce(u32) -> Arc<Srq>) -> Result<Arc<Srq>> {
        /// The next number. Numbers are assigned in turn, so that a freed one is not soon reused.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let mut queues = self.queues.lock();
        queues.retain(|_, queue| queue.strong_count() != 0);
        if queues.len() >= OBJECTS_MAX as usize {
            return Err(Errno::NOMEM);
        }
        let number = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed) & NUMBER_MASK;
            if number != 0 && !queues.contains_key(&number) {
                break number;
            }
        };
        let queue = make(number);
        queues.insert(number, Arc::downgrade(&queue));
        Ok(queue)
    }

    /// The shared receive queue with this number.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<Srq>> {
        self.queues.lock().get(&number).and_then(Weak::upgrade)
    }
}

impl QueueDomain for Xrcd {
    fn remove(&self, number: u32) {
        self.queues.lock().remove(&number);
    }
}

/// A peer may access memory of the protection domains of the domain's shared receive queues.
impl ExtraDomains for Xrcd {
    fn permits(&self, pd: &Arc<Pd>) -> bool {
        let queues = self.queues.lock();
        queues.values().filter_map(Weak::upgrade).any(|queue| Arc::ptr_eq(queue.pd(), pd))
    }
}

impl Srq {
    /// `ibv_create_srq_ex` in an XRC domain: receives complete to `cq`.
    ///
    /// # Errors
    /// As [`Srq::new`]; `ENOMEM` if the domain has too many queues.
    pub fn new_xrc(
        pd: &Arc<Pd>,
        attr: SrqAttr,
        domain: &Arc<Xrcd>,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Self>> {
        srq::check(attr)?;
        domain.add(|number| Self::numbered(pd, attr, Arc::clone(domain) as _, number, cq))
    }
}
