//! Access rights of memory regions, windows and queue pairs.

use crate::{Errno, Result};

bitflags::bitflags! {
    /// `ibv_access_flags`, with the same bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Access: u32 {
        /// The program's own receives, reads and atomics may write here.
        const LOCAL_WRITE = 1;
        /// A peer's RDMA Write may write here.
        const REMOTE_WRITE = 1 << 1;
        /// A peer's RDMA Read may read here.
        const REMOTE_READ = 1 << 2;
        /// A peer's atomics may change this memory.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to this region.
        const MW_BIND = 1 << 4;
        /// Offsets count from zero instead of from the address.
        const ZERO_BASED = 1 << 5;
        /// Pages appear when touched (not supported here: `EOPNOTSUPP`).
        const ON_DEMAND = 1 << 6;
        /// Huge pages hint of on-demand paging.
        const HUGETLB = 1 << 7;
        /// A peer may flush to visibility (not supported: `EOPNOTSUPP`).
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush to persistence (not supported: `EOPNOTSUPP`).
        const FLUSH_PERSISTENT = 1 << 9;
        /// Bits that a provider may ignore (`IBV_ACCESS_OPTIONAL_RANGE`), relaxed ordering first.
        const OPTIONAL = 0x3ff0_0000;
    }
}

impl Access {
    /// Checks the access flags of a registration.
    ///
    /// # Errors
    /// `EINVAL` for unknown bits and for remote write or atomic access without local write
    /// (ibv_reg_mr(3)); `EOPNOTSUPP` for on-demand paging and for flushes, which need hardware.
    pub fn for_region(bits: u32) -> Result<Self> {
        let access = Self::from_bits(bits).ok_or(Errno::INVAL)?;
        if access.intersects(Self::ON_DEMAND | Self::FLUSH_GLOBAL | Self::FLUSH_PERSISTENT) {
            return Err(Errno::OPNOTSUPP);
        }
        let changes = Self::REMOTE_WRITE | Self::REMOTE_ATOMIC;
        if access.intersects(changes) && !access.contains(Self::LOCAL_WRITE) {
            return Err(Errno::INVAL);
        }
        Ok(access - Self::OPTIONAL)
    }
}
