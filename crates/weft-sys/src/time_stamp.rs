//! A clock that can be read in a few nanoseconds, to tell which of two events came first.
//!
//! # Safety
//! The instruction only reads a register.
#![allow(unsafe_code)]

/// A number that grows with time, the same for all processes of a host. On `x86_64` it is the time
/// stamp counter, which the kernel keeps synchronised across cores; elsewhere nanoseconds.
#[inline]
#[must_use]
pub fn time_stamp() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every such processor has the instruction, and it changes nothing.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        use crate::calls::time::{ClockId, clock_gettime};
        let time = clock_gettime(ClockId::Monotonic);
        time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn later_time_stamps_are_greater() {
        let first = time_stamp();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(time_stamp() > first);
    }
}
