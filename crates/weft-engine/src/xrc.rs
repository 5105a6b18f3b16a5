//! Extended reliable connections (IBTA annex A14): many shared receive queues behind one queue
//! pair.
//!
//! A message names the shared receive queue that it is for, by number. The queue pair that receives
//! it has no queues and no protection domain of its own: an XRC domain says which shared receive
//! queues a peer may name, and the protection domains of these say which memory it may reach.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use rustix::fs::fstat;
use weft_sys::{Forkable, Lock};

use crate::context::Context;
use crate::cq::Cq;
use crate::limits::OBJECTS_MAX;
use crate::mr::MoreDomains;
use crate::pd::Pd;
use crate::srq::{self, QueueDomain, Srq, SrqAttr};
use crate::{Errno, Result};

/// The bits of a shared receive queue's number.
const NUMBER_MASK: u32 = 0x00ff_ffff;

/// An XRC domain.
#[derive(Debug)]
pub struct Xrcd {
    /// The name of the device.
    device: String,
    file: Option<File>,
    queues: Lock<HashMap<u32, Weak<Srq>>>,
}

/// The file whose inode names a domain. Held open, so that the inode is not used for another.
#[derive(Debug)]
struct File {
    device: u64,
    inode: u64,
    _held: OwnedFd,
}

/// What `ibv_open_xrcd` is to do about a domain that is, or is not, there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// `O_CREAT`: make it if it is not there.
    pub create: bool,
    /// `O_EXCL`: fail if it is there.
    pub exclusive: bool,
}

static SHARED: Forkable<Lock<Vec<Weak<Xrcd>>>> = Forkable::new(|| Lock::new(Vec::new()));

impl Xrcd {
    /// `ibv_open_xrcd`: the domain that the file names for this device within this process, or,
    /// without a file, one that nobody else can open.
    ///
    /// # Errors
    /// `EAGAIN` for a domain that is not there and not to be made; `EINVAL` for one that is there
    /// and should not be; `EBADF` and the like for the descriptor.
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
            _held: rustix::io::fcntl_dupfd_cloexec(file, 0)?,
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

    /// Makes a shared receive queue and gives it a number.
    fn add(&self, make: impl FnOnce(u32) -> Arc<Srq>) -> Result<Arc<Srq>> {
        /// Numbers are given out in turn, so that one of the past is not soon reused.
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

/// Memory may be reached if its protection domain is that of a shared receive queue of the domain.
impl MoreDomains for Xrcd {
    fn serves(&self, pd: &Arc<Pd>) -> bool {
        let queues = self.queues.lock();
        queues.values().filter_map(Weak::upgrade).any(|queue| Arc::ptr_eq(queue.pd(), pd))
    }
}

impl Srq {
    /// `ibv_create_srq_ex` in an XRC domain: receives complete to `cq`.
    ///
    /// # Errors
    /// As [`Srq::new`]; `ENOMEM` when the domain has too many.
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
