//! The arguments of system calls, as the program gives them.
//!
//! # Safety
//! They mean what the system call says.
#![allow(unsafe_code)]

use libc::{c_long, c_void};

/// The arguments of a system call.
pub(crate) type Arguments = [usize; 6];

/// Whether nobody can have memory there: beyond the processor's addresses, or among the first
/// (`vm.mmap_min_addr`). Other addresses are believed: who gives a wrong one meets a SIGSEGV.
pub(crate) fn is_nowhere<T>(place: *const T) -> bool {
    const LOWEST: usize = 1 << 16;
    const HIGHEST: usize = 1 << 56;
    !(LOWEST..HIGHEST).contains(&(place as usize))
}

/// The flags of a `clone(2)` or `clone3(2)`, or those that a `vfork(2)` stands for, whose registers
/// say nothing.
///
/// # Safety
/// The arguments are the program's.
pub(crate) unsafe fn clone_flags(number: c_long, a: Arguments) -> usize {
    match number {
        libc::SYS_vfork => return (libc::CLONE_VM | libc::CLONE_VFORK) as usize,
        libc::SYS_fork => return 0,
        libc::SYS_clone3 => {}
        _ => return a[0],
    }
    if is_nowhere(a[0] as *const c_void) {
        return 0; // The kernel refuses it.
    }
    // SAFETY: the program's own structure, which begins with them.
    unsafe { (a[0] as *const usize).read_unaligned() }
}

#[cfg(test)]
mod tests {
    use super::{clone_flags, is_nowhere};

    #[test]
    fn first_and_last_addresses_are_no_memory() {
        let here = 0_u8;
        assert!(!is_nowhere(&raw const here));
        assert!([0, 1, 0xffff, 1 << 56, usize::MAX].iter().all(|&at| is_nowhere(at as *const u8)));
    }

    #[test]
    fn flags_stand_where_the_call_has_them() {
        let flags = libc::CLONE_NEWPID as usize;
        let structure = [flags, 7];
        let of = |number, first| {
            // SAFETY: the structure that a `clone3` names is a local variable.
            unsafe { clone_flags(number, [first, 0, 0, 0, 0, 0]) }
        };
        assert_eq!(of(libc::SYS_clone, flags), flags);
        assert_eq!(of(libc::SYS_clone3, structure.as_ptr() as usize), flags);
        assert_eq!(of(libc::SYS_clone3, 0), 0, "which the kernel refuses");
        assert_eq!(of(libc::SYS_fork, flags), 0, "its registers say nothing");
        assert_eq!(of(libc::SYS_vfork, 0), (libc::CLONE_VM | libc::CLONE_VFORK) as usize);
    }
}
