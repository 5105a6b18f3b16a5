//! The protocol's view of the memory that messages come from and go to.

use std::sync::Arc;

use weft_wire::rd::Reason;
use weft_wire::rdmap::AtomicOp;

use super::limits::ATOMIC_LEN;
use crate::access::Access;
use crate::mr::{AccessContext, AccessError, Pin};
use crate::pd::Pd;
use crate::registered::MrCache;

/// The side whose request accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// A request of the local program.
    Local,
    /// A request of a peer.
    Remote,
}

/// Memory with keys. An access that fails leaves the memory unchanged.
pub(super) trait Memory {
    /// Appends `len` bytes at `addr` to `out`.
    fn read(
        &mut self,
        party: Party,
        key: u32,
        addr: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Reason>;

    /// Copies `bytes` to `addr`.
    fn write(&mut self, party: Party, key: u32, addr: u64, bytes: &[u8]) -> Result<(), Reason>;

    /// Carries out a peer's atomic operation at `addr`, and returns the value before.
    fn update(&mut self, key: u32, addr: u64, op: AtomicOp) -> Result<u64, Reason>;

    /// Checks that a peer may read `len` bytes at `addr`.
    fn check_remote_read(&mut self, key: u32, addr: u64, len: u64) -> Result<(), Reason>;
}

/// The process's registered memory, as accessible to one protection domain.
#[derive(Debug)]
pub(super) struct Registered {
    pd: Arc<Pd>,
    cache: MrCache,
}

/// Not the number of any queue pair, because an endpoint binds no windows.
const NO_QP: u32 = 0;

impl Registered {
    pub(super) fn new(pd: &Arc<Pd>) -> Self {
        Self { pd: Arc::clone(pd), cache: MrCache::default() }
    }

    fn pin(&mut self, key: u32, addr: u64, len: u64, needs: Access) -> Result<Pin<'_>, Reason> {
        let context = AccessContext { pd: &self.pd, xrcd: None, qp_num: NO_QP };
        self.cache.access(context, key, addr, len, needs).map_err(reason)
    }
}

impl Memory for Registered {
    fn read(
        &mut self,
        party: Party,
        key: u32,
        addr: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Reason> {
        let needs = match party {
            Party::Local => Access::empty(),
            Party::Remote => Access::REMOTE_READ,
        };
        let pin = self.pin(key, addr, len as u64, needs)?;
        pin.extents().for_each(|extent| extent.copy_out(out));
        Ok(())
    }

    fn write(&mut self, party: Party, key: u32, addr: u64, bytes: &[u8]) -> Result<(), Reason> {
        let needs = match party {
            Party::Local => Access::LOCAL_WRITE,
            Party::Remote => Access::REMOTE_WRITE,
        };
        let pin = self.pin(key, addr, bytes.len() as u64, needs)?;
        let mut rest = bytes;
        for extent in pin.extents() {
            let (part, behind) = rest.split_at(extent.len());
            extent.copy_in(part);
            rest = behind;
        }
        Ok(())
    }

    fn update(&mut self, key: u32, addr: u64, op: AtomicOp) -> Result<u64, Reason> {
        let pin = self.pin(key, addr, ATOMIC_LEN.into(), Access::REMOTE_ATOMIC)?;
        let word = pin.contiguous();
        // It is not aligned (RFC 7306, section 8.2), or half of it is in another extent.
        word.and_then(|word| word.update_u64(|old| op.apply(old))).ok_or(Reason::Malformed)
    }

    fn check_remote_read(&mut self, key: u32, addr: u64, len: u64) -> Result<(), Reason> {
        self.pin(key, addr, len, Access::REMOTE_READ).map(drop)
    }
}

fn reason(error: AccessError) -> Reason {
    match error {
        AccessError::Key => Reason::Key,
        AccessError::Domain => Reason::Domain,
        AccessError::Bounds => Reason::Bounds,
        AccessError::Rights => Reason::Rights,
    }
}
