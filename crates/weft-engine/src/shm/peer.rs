//! The process at the other end.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;
use weft_sys::{
    PeerPresence, Piece, Region, peek_process, poke_process, read_process, write_process,
};

use crate::hello::ProcessId;
use crate::{Errno, Result};

/// The process at the other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    presence: PeerPresence,
    /// By which its memory can be read and written, if the kernel lets us.
    reach: Option<Reach>,
}

#[derive(Debug)]
struct Reach {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Peer {
    /// The process `pid`, which says that its name stands at `probe` in its memory.
    pub(super) fn new(presence: PeerPresence, pid: Option<Pid>, id: ProcessId, probe: u64) -> Self {
        let reach = pid.and_then(|pid| {
            let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            let mut found = ProcessId::default();
            peek_process(pid, probe, &mut found).ok()?;
            (found == id).then_some(Reach { pid, pidfd })
        });
        Self { presence, reach }
    }

    /// Whether a thread of the peer's sleeps that must be woken for what has just been brought.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.presence.is_asleep()
    }

    /// Whether the kernel lets us copy from and to the peer's memory.
    pub(crate) fn is_reachable(&self) -> bool {
        self.reach.is_some()
    }

    /// Fills `target` from pieces of the peer's memory.
    ///
    /// # Errors
    /// `EPERM` when the kernel forbids it; `EFAULT` and `ESRCH` for memory that is not there.
    pub(crate) fn read(&self, pieces: &[Piece], target: &Region) -> Result<()> {
        let reach = self.reach.as_ref().ok_or(Errno::PERM)?;
        read_process(reach.pid, pieces, target)
    }

    /// Copies `source` to an address in the peer's memory.
    ///
    /// # Errors
    /// As [`Peer::read`].
    pub(crate) fn write(&self, addr: u64, source: &Region) -> Result<()> {
        write_process(self.alive()?, &[(addr, source.len())], source)
    }

    /// Copies `bytes` to an address in the peer's memory.
    ///
    /// # Errors
    /// As [`Peer::read`].
    pub(crate) fn write_bytes(&self, addr: u64, bytes: &[u8]) -> Result<()> {
        poke_process(self.alive()?, addr, bytes)
    }

    /// The peer's number, which, if the peer is gone, may be another's by now.
    fn alive(&self) -> Result<Pid> {
        let reach = self.reach.as_ref().ok_or(Errno::PERM)?;
        if reach.is_alive() { Ok(reach.pid) } else { Err(Errno::SRCH) }
    }
}

impl Reach {
    fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&at_once)), Ok(0))
    }
}
