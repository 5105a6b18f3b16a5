//! The NUMA node of memory.
//!
//! # Safety
//! The kernel reads and writes masks of nodes and a mode, which live until the call returns. A
//! policy changes where pages are, never what is in them.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::calls::call;
use crate::calls::io::Errno;

const WORD_BITS: usize = 64;
/// A set of nodes, as many as the largest kernels have.
type Mask = [u64; 1_024 / WORD_BITS];
/// The kernel takes one bit less than the number says.
const MASK_BITS: usize = size_of::<Mask>() * 8 + 1;
/// `MPOL_DEFAULT`.
const DEFAULT: libc::c_int = 0;
/// `MPOL_BIND`: pages come from the nodes of the mask only.
const BIND: libc::c_int = 2;
/// `MPOL_F_ADDR`: the policy of an address, not of the thread.
const OF_ADDRESS: usize = 1 << 1;

/// Has the pages at some addresses, none of which has been touched yet, come from a NUMA node only.
///
/// # Errors
/// `EINVAL` if there is no such node, or it has no memory, or the range begins inside of a page;
/// `ENOSYS` if the kernel has no NUMA policies; `EPERM` in containers that forbid them.
pub fn bind_to_node(range: &Range<usize>, node: u16) -> Result<(), Errno> {
    let node = usize::from(node);
    let mut mask = Mask::default();
    *mask.get_mut(node / WORD_BITS).ok_or(Errno::INVAL)? = 1 << (node % WORD_BITS);
    set(range, BIND, &mask)
}

/// Has the pages at some addresses come from where those of other memory come from, which begins at
/// `addr`. Without NUMA policies there is nothing to do.
pub(crate) fn place_like(addr: usize, range: &Range<usize>) {
    let (mut mode, mut mask) = (DEFAULT, Mask::default());
    let (mode_at, mask_at) = (&raw mut mode as usize, mask.as_mut_ptr() as usize);
    let arguments = [mode_at, mask_at, MASK_BITS, addr, OF_ADDRESS, 0];
    // SAFETY: the kernel writes a mode and the bits of the mask, which live until it returns.
    let asked = unsafe { call(libc::SYS_get_mempolicy, arguments) };
    if asked.is_ok() && mode != DEFAULT {
        // The kernel has accepted this policy before; and what it refuses now is only slower.
        let _ = set(range, mode, &mask);
    }
}

fn set(range: &Range<usize>, mode: libc::c_int, mask: &Mask) -> Result<(), Errno> {
    let mask_at = mask.as_ptr() as usize;
    let arguments = [range.start, range.len(), mode as usize, mask_at, MASK_BITS, 0];
    // SAFETY: the kernel reads the bits of the mask; see the module's comment for the range.
    unsafe { call(libc::SYS_mbind, arguments) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_blocks;

    /// The policy of the mapping that begins at an address, as the kernel shows it.
    fn policy_at(addr: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
        let line = maps.lines().find(|line| line.starts_with(&format!("{addr:x} ")))?;
        line.split(' ').nth(1).map(str::to_owned)
    }

    #[test]
    fn memory_comes_from_a_node_and_so_does_memory_like_it() {
        const LEN: usize = 64 << 10;
        let blocks: Vec<_> = (0..2).flat_map(|_| private_blocks(1, LEN).expect("memory")).collect();
        let [one, other] = [0, 1].map(|at: usize| blocks[at].as_ptr() as usize);
        let range = |start| start..start + LEN;
        // Without NUMA, or where it is forbidden, there is nothing to see.
        if policy_at(one).is_none() || bind_to_node(&range(one), 0) == Err(Errno::PERM) {
            return;
        }
        assert_eq!(policy_at(one).as_deref(), Some("bind:0"));
        assert_ne!(policy_at(other).as_deref(), Some("bind:0"));
        place_like(one, &range(other));
        assert_eq!(policy_at(other).as_deref(), Some("bind:0"));
        for none in [1_023, 1_024, u16::MAX] {
            assert_eq!(bind_to_node(&range(one), none), Err(Errno::INVAL));
        }
    }
}
