//! Copies between this process's memory and another's, by `process_vm_readv(2)` and
//! `process_vm_writev(2)`.
//!
//! # Safety
//! The kernel checks the other process's addresses. The local addresses come from a [`Region`],
//! whose creator guarantees that they are valid.
#![allow(unsafe_code)]

use crate::calls::io::Errno;
use crate::calls::process::Pid;
use crate::limits::CALL_BYTES_MAX;
pub use crate::limits::PIECES_MAX;
use crate::region::Region;

/// A piece of another process's memory: address and length in bytes.
pub type Piece = (u64, usize);

/// Fills `target` from `pieces` of another process's memory. Their total length is that of
/// `target`.
///
/// # Errors
/// `EPERM` if the kernel forbids it (ptrace rules), `ESRCH` if the process is gone, `EFAULT` if an
/// address is not mapped. Part of the target may have been filled then.
fn read_process(pid: Pid, pieces: &[Piece], target: &Region) -> Result<(), Errno> {
    transfer(pid, pieces, target, |pid, local, remote, count| {
        // SAFETY: `local` is one element and `remote` has `count`, and both live during the call.
        // The creator of the region guarantees that the local range is mapped and writable; the
        // kernel checks the other one.
        unsafe { libc::process_vm_readv(pid, local, 1, remote, count, 0) }
    })
}

/// Fills `bytes` from an address in another process.
///
/// # Errors
/// Those of `read_process`.
pub fn peek_process(pid: Pid, addr: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    // SAFETY: the region is `bytes`, which stays borrowed until the last use.
    let target = unsafe { Region::new(bytes.as_mut_ptr() as usize, bytes.len()) };
    read_process(pid, &[(addr, bytes.len())], &target.ok_or(Errno::FAULT)?)
}

/// A word that tells a process from others with the same number: its address there, and its value.
pub type Proof = (u64, u64);

/// Fills `target` from `pieces` of another process's memory, whose total length is that of
/// `target`. Checks that the process has the proof.
///
/// # Errors
/// Those of `read_process`; `ESRCH` also if it is another process.
pub fn read_proven(pid: Pid, pieces: &[Piece], target: &Region, proof: Proof) -> Result<(), Errno> {
    let mut done = 0;
    loop {
        let part =
            target.part(done, CALL_BYTES_MAX.min(target.len() - done)).ok_or(Errno::FAULT)?;
        read_part(pid, pieces, done, &part, proof)?;
        done += part.len();
        if done == target.len() {
            return Ok(());
        }
    }
}

/// Reads what one call can: as much as fits `target`, behind the first `skip` bytes of the pieces.
/// The same call reads the proof, and so from the same address space.
fn read_part(
    pid: Pid,
    pieces: &[Piece],
    skip: usize,
    target: &Region,
    (proof_at, proof): Proof,
) -> Result<(), Errno> {
    let (mut remote, count) = part_of(pieces, skip, target.len())?;
    let proof_at = usize::try_from(proof_at).map_err(|_| Errno::FAULT)?;
    let place = remote.get_mut(count as usize).ok_or(Errno::INVAL)?;
    *place = libc::iovec { iov_base: proof_at as *mut libc::c_void, iov_len: size_of_val(&proof) };
    let mut found = 0_u64;
    let local = [
        libc::iovec { iov_base: target.addr() as *mut libc::c_void, iov_len: target.len() },
        libc::iovec { iov_base: (&raw mut found).cast(), iov_len: size_of_val(&found) },
    ];
    // SAFETY: both lists live during the call. The creator of the region guarantees that the target
    // is mapped and writable, and the other buffer is a local variable. The kernel checks the other
    // process's addresses.
    let moved = unsafe {
        libc::process_vm_readv(
            pid.as_raw_nonzero().get(),
            local.as_ptr(),
            2,
            remote.as_ptr(),
            count + 1,
            0,
        )
    };
    match usize::try_from(moved) {
        Ok(moved) if moved != target.len() + size_of_val(&found) => Err(Errno::FAULT),
        Ok(_) if found == proof => Ok(()),
        Ok(_) => Err(Errno::SRCH),
        Err(_) => Err(last_error()),
    }
}

/// Copies `source` to `pieces` of another process's memory, whose total length is that of `source`.
///
/// # Errors
/// Those of [`read_process`].
fn write_process(pid: Pid, pieces: &[Piece], source: &Region) -> Result<(), Errno> {
    transfer(pid, pieces, source, |pid, local, remote, count| {
        // SAFETY: both lists live during the call. The creator of the region guarantees that the
        // source is mapped and readable, and it is only read; the kernel checks the other process's
        // ranges.
        unsafe { libc::process_vm_writev(pid, local, 1, remote, count, 0) }
    })
}

/// Copies `bytes` to an address in another process.
///
/// # Errors
/// Those of `read_process`.
pub fn poke_process(pid: Pid, addr: u64, bytes: &[u8]) -> Result<(), Errno> {
    // SAFETY: the region is `bytes`, which stays borrowed until the last use, and is only read.
    let source = unsafe { Region::new(bytes.as_ptr() as usize, bytes.len()) };
    write_process(pid, &[(addr, bytes.len())], &source.ok_or(Errno::FAULT)?)
}

fn transfer(
    pid: Pid,
    pieces: &[Piece],
    ours: &Region,
    call: impl Fn(i32, *const libc::iovec, *const libc::iovec, libc::c_ulong) -> isize,
) -> Result<(), Errno> {
    let mut done = 0;
    // One call moves at most 2 GiB.
    while done < ours.len() {
        let (remote, count) = part_of(pieces, done, ours.len() - done)?;
        let base = (ours.addr() + done) as *mut libc::c_void;
        let local = libc::iovec { iov_base: base, iov_len: ours.len() - done };
        let moved = call(pid.as_raw_nonzero().get(), &raw const local, remote.as_ptr(), count);
        match usize::try_from(moved) {
            Ok(0) => return Err(Errno::FAULT),
            Ok(moved) => done += moved,
            Err(_) => return Err(last_error()),
        }
    }
    Ok(())
}

pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The pieces of `len` bytes behind the first `skip`, in a list with room for a proof.
fn part_of(
    pieces: &[Piece],
    mut skip: usize,
    mut len: usize,
) -> Result<([libc::iovec; PIECES_MAX + 1], libc::c_ulong), Errno> {
    let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES_MAX + 1];
    let mut count = 0;
    for &(addr, piece) in pieces {
        let skipped = skip.min(piece);
        let taken = (piece - skipped).min(len);
        skip -= skipped;
        len -= taken;
        if taken == 0 {
            continue;
        }
        let addr = usize::try_from(addr).map_err(|_| Errno::FAULT)?;
        let base = addr.checked_add(skipped).ok_or(Errno::FAULT)?;
        let slot = remote.get_mut(count).ok_or(Errno::INVAL)?;
        *slot = libc::iovec { iov_base: base as *mut libc::c_void, iov_len: taken };
        count += 1;
    }
    Ok((remote, count as libc::c_ulong))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(bytes: &mut [u8]) -> Region {
        // SAFETY: the tests keep `bytes` alive while the region is used.
        unsafe { Region::new(bytes.as_mut_ptr() as usize, bytes.len()) }.expect("no wrap")
    }

    #[test]
    fn pieces_are_gathered_and_scattered() {
        let own = rustix::process::getpid();
        let (a, b) = (*b"abc", *b"defgh");
        let mut all = [0; 8];
        let pieces = [(a.as_ptr() as u64, 3), (b.as_ptr() as u64, 5)];
        read_process(own, &pieces, &region(&mut all)).expect("own memory");
        assert_eq!(&all, b"abcdefgh");
        let (mut c, mut d) = ([0; 2], [0; 6]);
        let pieces = [(c.as_mut_ptr() as u64, 2), (0, 0), (d.as_mut_ptr() as u64, 6)];
        write_process(own, &pieces, &region(&mut all)).expect("own memory");
        assert_eq!((&c, &d), (b"ab", b"cdefgh"));
    }

    #[test]
    fn read_of_another_process_fails_its_proof() {
        let own = rustix::process::getpid();
        let (bytes, proof) = (*b"abcd", 0x1234_u64);
        let mut all = [0; 4];
        let pieces = [(bytes.as_ptr() as u64, 4)];
        let place = std::ptr::from_ref(&proof) as u64;
        let read = |all: &mut [u8], proof| read_proven(own, &pieces, &region(all), proof);
        assert_eq!(read(&mut all, (place, 0x1234)), Ok(()));
        assert_eq!(&all, b"abcd");
        assert_eq!(read(&mut all, (place, 0x1235)), Err(Errno::SRCH));
        assert_eq!(read(&mut all, (8, 0x1234)), Err(Errno::FAULT));
    }

    #[test]
    fn unmapped_memory_is_an_error() {
        let mut bytes = [0; 8];
        let own = rustix::process::getpid();
        assert_eq!(read_process(own, &[(8, 8)], &region(&mut bytes)), Err(Errno::FAULT));
        assert_eq!(read_process(own, &[(u64::MAX, 8)], &region(&mut bytes)), Err(Errno::FAULT));
    }
}
