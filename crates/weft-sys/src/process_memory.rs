//! The memory of one process, which is never confused with another's.
//!
//! A process number does not always name the same memory: the process may run another program
//! (`execve(2)`), or end, after which the number is reused. An open `/proc/PID/mem` stays with the
//! address space that the process had when the file was opened; once that is gone, reads and writes
//! move no bytes. But the file copies each page twice. So it is used only for writes, which must
//! not reach another process, and to check whether the address space still exists. Reads use
//! `process_vm_readv(2)`, and a check afterwards shows whether they read another process. Where
//! that call is refused (a seccomp filter, a kernel without it), reads use the file, too.
//!
//! # Safety
//! The kernel checks the other process's addresses. The local addresses come from a [`Region`],
//! whose creator guarantees that they are valid, or from a borrowed slice.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::calls::fs::{Mode, OFlags, open};
use crate::calls::io::Errno;
use crate::calls::process::Pid;
use crate::calls::{call, read_at};
use crate::process_vm::{Piece, Proof, read_proven};
use crate::region::Region;

/// Length of the name that identifies a process.
const NAME_LEN: usize = 16;

/// The memory of one process.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: Pid,
    /// The process's `/proc/PID/mem`.
    file: OwnedFd,
    /// A part of the process's name.
    proof: Proof,
    /// Whether `process_vm_readv(2)` has been refused. It is not called again then.
    refuses_call: AtomicBool,
}

impl ProcessMemory {
    /// Opens the memory of process `pid`, if that has `name`, which no other process has, at
    /// address `at`.
    ///
    /// # Errors
    /// `EACCES` if the kernel forbids it (ptrace rules); `ENOENT` if there is no such process, or
    /// `/proc` does not show it; `ESRCH` if it is another process.
    pub fn open(pid: Pid, at: u64, name: &[u8; NAME_LEN]) -> Result<Self, Errno> {
        let path = format!("/proc/{}/mem", pid.as_raw_nonzero());
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let [a, b, c, d, e, f, g, h, ..] = *name;
        let proof = (at, u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
        let memory = Self { pid, file, proof, refuses_call: AtomicBool::new(false) };
        let mut found = [0; NAME_LEN];
        memory.peek(at, &mut found)?;
        if found == *name { Ok(memory) } else { Err(Errno::SRCH) }
    }

    /// Fills `target` from pieces of the memory. Their total length is that of `target`.
    ///
    /// # Errors
    /// `EFAULT` if an address is not mapped, `ESRCH` if the memory is gone. Part of the target may
    /// have been filled then.
    pub fn read(&self, pieces: &[Piece], target: &Region) -> Result<(), Errno> {
        if self.refuses_call.load(Ordering::Relaxed) {
            return self.read_file(pieces, target);
        }
        // A process with the proof is the right one, or a child that it forked. If its address
        // space still exists after the call, the number belonged to it during the call.
        match read_proven(self.pid, pieces, target, self.proof) {
            Ok(()) => self.peek(self.proof.0, &mut [0]),
            Err(error) => {
                // These two are about the memory. A filter may choose any other error.
                let is_refusal = !matches!(error, Errno::FAULT | Errno::SRCH);
                self.refuses_call.store(is_refusal, Ordering::Relaxed);
                self.read_file(pieces, target)
            }
        }
    }

    /// Fills `target` from pieces of the memory, by the file.
    fn read_file(&self, pieces: &[Piece], target: &Region) -> Result<(), Errno> {
        let mut done = 0;
        for &(addr, len) in pieces {
            let part = target.part(done, len).ok_or(Errno::FAULT)?;
            self.fill(addr, &part)?;
            done += len;
        }
        Ok(())
    }

    /// Fills `target` from an address of the memory, by the file.
    fn fill(&self, addr: u64, target: &Region) -> Result<(), Errno> {
        let mut done = 0;
        while done < target.len() {
            let (file, from) = (self.file.as_raw_fd() as usize, place(addr, done)?);
            let (to, rest) = (target.addr() + done, target.len() - done);
            let arguments = [file, to, rest, from as usize, 0, 0];
            // SAFETY: the creator of the region guarantees that the range is mapped and writable;
            // the kernel checks the other process's addresses.
            done += count(unsafe { call(libc::SYS_pread64, arguments) })?;
        }
        Ok(())
    }

    /// Copies `source` to an address of the memory.
    ///
    /// # Errors
    /// `EFAULT` if an address is not mapped, `ESRCH` if the memory is gone. Part of it may have
    /// been written then.
    pub fn write(&self, addr: u64, source: &Region) -> Result<(), Errno> {
        let mut done = 0;
        while done < source.len() {
            let (file, to) = (self.file.as_raw_fd() as usize, place(addr, done)?);
            let (from, rest) = (source.addr() + done, source.len() - done);
            let arguments = [file, from, rest, to as usize, 0, 0];
            // SAFETY: the creator of the region guarantees that the range is mapped, and it is only
            // read; the kernel checks the other process's addresses.
            done += count(unsafe { call(libc::SYS_pwrite64, arguments) })?;
        }
        Ok(())
    }

    /// Copies `bytes` to an address of the memory.
    ///
    /// # Errors
    /// Those of [`ProcessMemory::write`].
    pub fn write_bytes(&self, addr: u64, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: the region is `bytes`, which stays borrowed until the last use, and is only read.
        let source = unsafe { Region::new(bytes.as_ptr() as usize, bytes.len()) };
        self.write(addr, &source.ok_or(Errno::FAULT)?)
    }

    /// Fills `bytes` from an address of the memory.
    fn peek(&self, addr: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &mut bytes[done..];
            done += count(read_at(&self.file, rest, place(addr, done)?))?;
        }
        Ok(())
    }

    /// Has [`ProcessMemory::read`] use the file, as where the kernel refuses the call.
    #[cfg(test)]
    fn refuse_call(&self) {
        self.refuses_call.store(true, Ordering::Relaxed);
    }
}

/// The offset in the file of an address plus `offset`.
fn place(addr: u64, offset: usize) -> Result<u64, Errno> {
    let place = addr.checked_add(offset as u64).ok_or(Errno::FAULT)?;
    if i64::try_from(place).is_ok() { Ok(place) } else { Err(Errno::FAULT) }
}

/// Converts the result of a read or write.
fn count(moved: Result<usize, Errno>) -> Result<usize, Errno> {
    match moved {
        // The file returns 0 when the address space is gone.
        Ok(0) => Err(Errno::SRCH),
        Err(Errno::IO) => Err(Errno::FAULT),
        moved => moved,
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

    /// Calls `check` with memory that is read by the call, and then by the file.
    fn for_both_ways(check: impl Fn(&ProcessMemory)) {
        let (_name, memory) = own();
        check(&memory);
        memory.refuse_call();
        check(&memory);
    }

    #[test]
    fn memory_is_read() {
        for_both_ways(|memory| {
            let (a, b, mut all) = (*b"abc", *b"defgh", [0; 8]);
            let pieces = [(a.as_ptr() as u64, 3), (0, 0), (b.as_ptr() as u64, 5)];
            memory.read(&pieces, &region(&mut all)).expect("mapped");
            assert_eq!(&all, b"abcdefgh");
            let long: Vec<u8> = (0..=255).cycle().take(100_000).collect();
            let mut copy = vec![0_u8; 100_000];
            memory.read(&[(long.as_ptr() as u64, 100_000)], &region(&mut copy)).expect("mapped");
            assert!(copy == long);
        });
    }

    #[test]
    fn memory_is_written() {
        let (_name, memory) = own();
        let mut long = vec![7_u8; 100_000];
        let mut copy = vec![0_u8; 100_000];
        memory.write(copy.as_mut_ptr() as u64, &region(&mut long)).expect("mapped");
        assert!(copy == long);
        memory.write_bytes(copy.as_mut_ptr() as u64, b"xyz").expect("mapped");
        assert_eq!(&copy[..4], b"xyz\x07");
    }

    #[test]
    fn maximum_number_of_pieces_is_read() {
        for_both_ways(|memory| {
            let bytes: Vec<u8> = (0..16).collect();
            let pieces = bytes.iter().map(|byte| (&raw const *byte as u64, 1));
            let pieces: Vec<Piece> = pieces.collect();
            let mut all = [0; 16];
            memory.read(&pieces, &region(&mut all)).expect("mapped");
            assert_eq!(all, *bytes);
        });
    }

    #[test]
    fn unmapped_memory_is_an_error() {
        for_both_ways(|memory| {
            let mut bytes = [0; 8];
            for addr in [8, u64::MAX] {
                assert_eq!(memory.read(&[(addr, 8)], &region(&mut bytes)), Err(Errno::FAULT));
                assert_eq!(memory.write(addr, &region(&mut bytes)), Err(Errno::FAULT));
            }
        });
    }

    #[test]
    fn process_with_another_name_is_refused() {
        let other = Box::new(*b"a random name: 2");
        let at = other.as_ptr() as u64;
        let opened = ProcessMemory::open(rustix::process::getpid(), at, &NAME);
        assert_eq!(opened.expect_err("another name"), Errno::SRCH);
    }
}
