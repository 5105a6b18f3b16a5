//! The identity of this process: its id, its program, and the owner of its memory.

use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use weft_stream::{Owner, Process};
use weft_sys::calls;

use crate::descriptor::Descriptor;
use crate::kernel::{Host, Kernel as _};
use crate::{unseen_fork, wait};

/// This process's id, recorded when it started.
static PID: AtomicU32 = AtomicU32::new(0);

/// A random number that tells this process's memory from that of another process with the same id.
static PROOF: AtomicU64 = AtomicU64::new(0);

/// Records the identity when the process starts.
pub(crate) fn begin() {
    PID.store(std::process::id(), Ordering::Relaxed);
    renew_proof();
}

/// Records the identity in a forked child. Returns the parent's id.
pub(crate) fn in_child() -> u32 {
    let pid = std::process::id();
    let parent = PID.swap(pid, Ordering::Relaxed);
    unseen_fork::has_begun(pid);
    renew_proof();
    parent
}

fn renew_proof() {
    let mut bytes = [0; 8];
    // Without random bytes, use the process id and the time.
    let random = calls::rand::getrandom(&mut bytes, calls::rand::GetRandomFlags::empty());
    let number = u64::from(PID.load(Ordering::Relaxed)) << 32 ^ wait::now();
    let proof = if random == Ok(8) { u64::from_ne_bytes(bytes) } else { number };
    PROOF.store(proof, Ordering::Relaxed);
}

/// Returns the identity of the process that owns the calling thread's memory.
pub(crate) fn owner() -> Owner {
    let proof = (PROOF.as_ptr() as u64, PROOF.load(Ordering::Relaxed));
    Owner { pid: std::process::id(), proof }
}

/// Returns whether this is a child that still shares the parent's memory (`vfork(2)`). Its
/// descriptor table is its own, so the parent's state must not follow its calls.
pub(crate) fn is_borrowed() -> bool {
    let pid = std::process::id();
    pid != number() && !unseen_fork::is_own(pid)
}

/// Returns this process's id.
pub(crate) fn number() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// Returns the file name by which the program was started.
///
/// The file that `/proc/self/exe` leads to may have another name: one file may be several programs
/// (Debian's `redis-server` is a link to `redis-check-rdb`).
pub(crate) fn program() -> &'static [u8] {
    let path = calls::process::linux_execfn().to_bytes();
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// Returns the description of this end of a connection.
pub(crate) fn me(fd: RawFd) -> Process {
    let cookie = Host::cookie(Descriptor::of(fd).as_fd()).unwrap_or(0);
    let mut padded = [0; 16];
    let name = program();
    let len = name.len().min(padded.len());
    padded[..len].copy_from_slice(&name[..len]);
    Process { pid: PID.load(Ordering::Relaxed), fd: fd.cast_unsigned(), cookie, program: padded }
}
