//! A map keyed by descriptor with a hash of one multiplication.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::RawFd;

/// A map from descriptors. The kernel hands out the smallest free numbers, so an attacker cannot
/// choose keys that collide.
pub(super) type ByFd<T> = HashMap<RawFd, T, BuildHasherDefault<Spread>>;

/// Spreads a descriptor over all bits: the map uses both the lowest and the highest.
#[derive(Debug, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    #[inline]
    fn write_i32(&mut self, fd: i32) {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 over the golden ratio: Knuth, 6.4.
        self.0 = u64::from(fd.cast_unsigned()).wrapping_mul(GOLDEN);
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3); // FNV-1a
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
