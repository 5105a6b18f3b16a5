//! The peer's process.

use weft_sys::calls::process::Pid;
use weft_sys::{PeerPresence, Piece, ProcessMemory, Region};

use crate::hello::ProcessId;
use crate::{Errno, Result};

/// The process at the other end of a connection.
#[derive(Debug)]
pub(crate) struct ShmPeer {
    presence: PeerPresence,
    /// The peer's memory, if the kernel lets us access it.
    memory: Option<ProcessMemory>,
}

impl ShmPeer {
    /// Opens the process `pid`, which claims to have its identity at address `probe`.
    pub(super) fn new(presence: PeerPresence, pid: Option<Pid>, id: ProcessId, probe: u64) -> Self {
        let memory = pid.and_then(|pid| ProcessMemory::open(pid, probe, &id).ok());
        Self { presence, memory }
    }

    /// Whether a thread of the peer sleeps that must be woken for new data.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.presence.is_asleep()
    }

    /// Whether the kernel lets us copy from and to the peer's memory.
    pub(crate) fn is_reachable(&self) -> bool {
        self.memory.is_some()
    }

    /// Fills `target` from pieces of the peer's memory.
    ///
    /// # Errors
    /// `EPERM` if the kernel forbids it; `EFAULT` for memory that is not there; `ESRCH` if the peer
    /// has ended or executes another program.
    pub(crate) fn read(&self, pieces: &[Piece], target: &Region) -> Result<()> {
        self.memory()?.read(pieces, target)
    }

    /// Copies `source` to an address in the peer's memory.
    ///
    /// # Errors
    /// As [`ShmPeer::read`].
    pub(crate) fn write(&self, addr: u64, source: &Region) -> Result<()> {
        self.memory()?.write(addr, source)
    }

    /// Copies `bytes` to an address in the peer's memory.
    ///
    /// # Errors
    /// As [`ShmPeer::read`].
    pub(crate) fn write_bytes(&self, addr: u64, bytes: &[u8]) -> Result<()> {
        self.memory()?.write_bytes(addr, bytes)
    }

    fn memory(&self) -> Result<&ProcessMemory> {
        self.memory.as_ref().ok_or(Errno::PERM)
    }
}
