//! The memory of one process, which is never another's.
//!
//! A process is named by a number, and what the number stands for changes: the process runs another
//! program (`execve(2)`), or ends, and the number is given to another. An open `/proc/PID/mem`
//! stays with the address space that the process had when it was opened, whatever becomes of the
//! number; once that is gone, reads and writes move no bytes. It copies each page twice, so only
//! what must not go astray is copied through it, which is what is written, and a look at whether
//! the address space is still there. Reading takes `process_vm_readv(2)`; a check
//! afterwards shows whether it read another process.
//!
//! # Safety
//! The kernel checks the other process's addresses; ours come from a [`Region`], whose maker
//! vouches for them, or from a borrowed slice.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::process_vm::{Piece, Proof, last_error, read_proven};
use crate::region::Region;

/// Bytes of the name by which a process is known.
const NAME_LEN: usize = 16;

/// The memory of one process.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: Pid,
    /// Its `/proc/PID/mem`.
    file: OwnedFd,
    /// A part of its name.
    proof: Proof,
}

impl ProcessMemory {
    /// The memory of process `pid`, if it has `name`, which no other process has, at address `at`.
    ///
    /// # Errors
    /// `EACCES` when the kernel forbids it (ptrace rules); `ENOENT` when there is no such process,
    /// or `/proc` shows none; `ESRCH` for another process.
    pub fn open(pid: Pid, at: u64, name: &[u8; NAME_LEN]) -> Result<Self, Errno> {
        let path = format!("/proc/{}/mem", pid.as_raw_nonzero());
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let [a, b, c, d, e, f, g, h, ..] = *name;
        let proof = (at, u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
        let memory = Self { pid, file, proof };
        let mut found = [0; NAME_LEN];
        memory.peek(at, &mut found)?;
        if found == *name { Ok(memory) } else { Err(Errno::SRCH) }
    }

    /// Fills `target` from pieces of the memory, which are together as long.
    ///
    /// # Errors
    /// `EPERM` when the kernel forbids it, `EFAULT` when memory is not mapped there, `ESRCH` when
    /// the memory is gone; part of the target may have been filled then.
    pub fn read(&self, pieces: &[Piece], target: &Region) -> Result<(), Errno> {
        // What has the proof is the process, or a child that it forked; if its address space is
        // still there behind the call, the number was its own during the call.
        read_proven(self.pid, pieces, target, self.proof)?;
        self.peek(self.proof.0, &mut [0])
    }

    /// Copies `source` to an address.
    ///
    /// # Errors
    /// `EFAULT` when memory is not mapped there, `ESRCH` when the memory is gone; part of it may
    /// have been written then.
    pub fn write(&self, addr: u64, source: &Region) -> Result<(), Errno> {
        let mut done = 0;
        while done < source.len() {
            let from = (source.addr() + done) as *const libc::c_void;
            let to = place(addr, done)?;
            // SAFETY: the range is mapped by the region's contract, and only read; the kernel
            // checks the other process's.
            let moved =
                unsafe { libc::pwrite(self.file.as_raw_fd(), from, source.len() - done, to) };
            done += count(moved)?;
        }
        Ok(())
    }

    /// Copies `bytes` to an address.
    ///
    /// # Errors
    /// As [`ProcessMemory::write`].
    pub fn write_bytes(&self, addr: u64, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: the region is `bytes`, which is borrowed until it has been used, and only read.
        let source = unsafe { Region::new(bytes.as_ptr() as usize, bytes.len()) };
        self.write(addr, &source.ok_or(Errno::FAULT)?)
    }

    /// Fills `bytes` from an address.
    fn peek(&self, addr: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &mut bytes[done..];
            let from = place(addr, done)?;
            // SAFETY: a borrowed slice; the kernel checks the other process's addresses.
            let moved = unsafe {
                libc::pread(self.file.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), from)
            };
            done += count(moved)?;
        }
        Ok(())
    }
}

/// An address as a place in the file.
fn place(addr: u64, offset: usize) -> Result<libc::off_t, Errno> {
    let place = addr.checked_add(offset as u64).ok_or(Errno::FAULT)?;
    libc::off_t::try_from(place).map_err(|_| Errno::FAULT)
}

/// How many bytes were moved.
fn count(moved: isize) -> Result<usize, Errno> {
    match usize::try_from(moved) {
        // That is how the file says that nobody has the address space any more.
        Ok(0) => Err(Errno::SRCH),
        Ok(moved) => Ok(moved),
        Err(_) => Err(match last_error() {
            Errno::IO => Errno::FAULT,
            error => error,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: [u8; NAME_LEN] = *b"a random name: 1";

    fn region(bytes: &mut [u8]) -> Region {
        // SAFETY: the tests keep `bytes` alive while the region is used.
        unsafe { Region::new(bytes.as_mut_ptr() as usize, bytes.len()) }.expect("no wrap")
    }

    fn own() -> (Box<[u8; NAME_LEN]>, ProcessMemory) {
        let name = Box::new(NAME);
        let at = name.as_ptr() as u64;
        let memory = ProcessMemory::open(rustix::process::getpid(), at, &NAME);
        (name, memory.expect("own memory"))
    }

    #[test]
    fn memory_is_read_and_written() {
        let (_name, memory) = own();
        let (a, b, mut all) = (*b"abc", *b"defgh", [0; 8]);
        let pieces = [(a.as_ptr() as u64, 3), (0, 0), (b.as_ptr() as u64, 5)];
        memory.read(&pieces, &region(&mut all)).expect("mapped");
        assert_eq!(&all, b"abcdefgh");
        let mut long = vec![7_u8; 100_000];
        let mut copy = vec![0_u8; 100_000];
        memory.write(copy.as_mut_ptr() as u64, &region(&mut long)).expect("mapped");
        assert!(copy == long);
        memory.write_bytes(copy.as_mut_ptr() as u64, b"xyz").expect("mapped");
        assert_eq!(&copy[..4], b"xyz\x07");
    }

    #[test]
    fn as_many_pieces_as_there_may_be_are_read() {
        let (_name, memory) = own();
        let bytes: Vec<u8> = (0..16).collect();
        let pieces: Vec<Piece> = bytes.iter().map(|byte| (&raw const *byte as u64, 1)).collect();
        let mut all = [0; 16];
        memory.read(&pieces, &region(&mut all)).expect("mapped");
        assert_eq!(all, *bytes);
    }

    #[test]
    fn unmapped_memory_is_an_error() {
        let (_name, memory) = own();
        let mut bytes = [0; 8];
        for addr in [8, u64::MAX] {
            assert_eq!(memory.read(&[(addr, 8)], &region(&mut bytes)), Err(Errno::FAULT));
            assert_eq!(memory.write(addr, &region(&mut bytes)), Err(Errno::FAULT));
        }
    }

    #[test]
    fn a_process_of_another_name_is_refused() {
        let other = Box::new(*b"a random name: 2");
        let at = other.as_ptr() as u64;
        let opened = ProcessMemory::open(rustix::process::getpid(), at, &NAME);
        assert_eq!(opened.expect_err("another name"), Errno::SRCH);
    }
}
