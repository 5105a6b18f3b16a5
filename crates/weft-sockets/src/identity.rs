//! Which process this is: its number, its program, and whose memory it has.

use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_stream::{Owner, Process};

use crate::descriptor::Descriptor;
use crate::kernel::{Host, Kernel as _};
use crate::{unseen_fork, wait};

/// This process's number, as it was when it began to be one.
static PID: AtomicU32 = AtomicU32::new(0);

/// What tells this process's memory from that of another one with its number.
static PROOF: AtomicU64 = AtomicU64::new(0);

/// The process begins.
pub(crate) fn begin() {
    PID.store(std::process::id(), Ordering::Relaxed);
    renew_proof();
}

/// This is a child just born. Returns its parent's number.
pub(crate) fn in_child() -> u32 {
    let pid = std::process::id();
    let parent = PID.swap(pid, Ordering::Relaxed);
    unseen_fork::has_begun(pid);
    renew_proof();
    parent
}

fn renew_proof() {
    let mut bytes = [0; 8];
    // Without randomness the number and the time have to do.
    let random = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let number = u64::from(PID.load(Ordering::Relaxed)) << 32 ^ wait::now();
    let proof = if random == Ok(8) { u64::from_ne_bytes(bytes) } else { number };
    PROOF.store(proof, Ordering::Relaxed);
}

/// Who has the memory of the calling thread.
pub(crate) fn owner() -> Owner {
    let proof = (PROOF.as_ptr() as u64, PROOF.load(Ordering::Relaxed));
    Owner { pid: std::process::id(), proof }
}

/// Whether this is a child that still shares the parent's memory (`vfork(2)`): what it does to
/// descriptors is not the parent's.
pub(crate) fn is_borrowed() -> bool {
    let pid = std::process::id();
    pid != number() && !unseen_fork::is_own(pid)
}

/// This process's number.
pub(crate) fn number() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// The file name by which the program was started.
///
/// Not that of the file which `/proc/self/exe` leads to: one file may be several programs, as
/// Debian's `redis-server` is a link to `redis-check-rdb`.
pub(crate) fn program() -> &'static [u8] {
    let path = rustix::param::linux_execfn().to_bytes();
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// Who this end of a connection is.
pub(crate) fn me(fd: RawFd) -> Process {
    let cookie = Host::cookie(Descriptor::of(fd).as_fd()).unwrap_or(0);
    let mut padded = [0; 16];
    let name = program();
    let len = name.len().min(padded.len());
    padded[..len].copy_from_slice(&name[..len]);
    Process { pid: PID.load(Ordering::Relaxed), fd: fd.cast_unsigned(), cookie, program: padded }
}
