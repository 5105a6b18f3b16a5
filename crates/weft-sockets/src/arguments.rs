//! The arguments of the program's system calls.
//!
//! # Safety
//! Pointers are read only as the system call's own contract allows.
#![allow(unsafe_code)]

use libc::{c_long, c_void};

/// The arguments of a system call.
pub(crate) type Arguments = [usize; 6];

/// Returns whether no process can have memory at `place`: the address is beyond the processor's
/// address space, or below `vm.mmap_min_addr`. Other addresses are trusted: a program that passes a
/// bad one gets a SIGSEGV, where the kernel would return `EFAULT`.
pub(crate) fn is_nowhere<T>(place: *const T) -> bool {
    const LOWEST: usize = 1 << 16;
    const HIGHEST: usize = 1 << 56;
    !(LOWEST..HIGHEST).contains(&(place as usize))
}

/// Returns the flags of a `clone(2)` or `clone3(2)`. For `vfork(2)`, whose registers hold no flags,
/// it returns the equivalent ones.
///
/// # Safety
/// The arguments are those of a system call that the program makes.
pub(crate) unsafe fn clone_flags(number: c_long, a: Arguments) -> usize {
    match number {
        libc::SYS_vfork => return (libc::CLONE_VM | libc::CLONE_VFORK) as usize,
        libc::SYS_fork => return 0,
        libc::SYS_clone3 => {}
        _ => return a[0],
    }
    if is_nowhere(a[0] as *const c_void) {
        return 0; // The kernel refuses the call.
    }
    // SAFETY: `clone3` takes a pointer to the program's structure, whose first word is the flags.
    unsafe { (a[0] as *const usize).read_unaligned() }
}

#[cfg(test)]
mod tests {
    use super::{clone_flags, is_nowhere};

    #[test]
    fn lowest_and_highest_addresses_are_not_memory() {
        let here = 0_u8;
        assert!(!is_nowhere(&raw const here));
        assert!([0, 1, 0xffff, 1 << 56, usize::MAX].iter().all(|&at| is_nowhere(at as *const u8)));
    }

    #[test]
    fn clone_flags_are_read_from_where_each_call_passes_them() {
        let flags = libc::CLONE_NEWPID as usize;
        let structure = [flags, 7];
        let of = |number, first| {
            // SAFETY: the structure that a `clone3` names is a local variable.
            unsafe { clone_flags(number, [first, 0, 0, 0, 0, 0]) }
        };
        assert_eq!(of(libc::SYS_clone, flags), flags);
        assert_eq!(of(libc::SYS_clone3, structure.as_ptr() as usize), flags);
        assert_eq!(of(libc::SYS_clone3, 0), 0, "the kernel refuses NULL");
        assert_eq!(of(libc::SYS_fork, flags), 0, "fork has no flags");
        assert_eq!(of(libc::SYS_vfork, 0), (libc::CLONE_VM | libc::CLONE_VFORK) as usize);
    }
}
