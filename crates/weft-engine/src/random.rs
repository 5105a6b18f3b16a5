//! Unpredictable random bytes from the system's source.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::Result;

/// Fresh random bytes.
///
/// # Errors
/// The errors of `getrandom(2)`, such as `ENOSYS` where a seccomp filter forbids it.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N]> {
    // A signal can cut longer requests short (`getrandom(2)`).
    const { assert!(N <= 256) }
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

/// A random permutation of the numbers below `N`.
///
/// # Errors
/// As [`bytes`].
pub(crate) fn order<const N: usize>() -> Result<[u8; N]> {
    const { assert!(N <= 256) }
    let mut order = [0; N];
    for (number, place) in (0..=u8::MAX).zip(&mut order) {
        *place = number;
    }
    for index in (1..N).rev() {
        // The bias of a 64-bit remainder is too small to notice.
        let choice = u64::from_ne_bytes(bytes()?) % (index as u64 + 1);
        order.swap(index, usize::try_from(choice).unwrap_or(index));
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_a_permutation_and_differs_each_time() {
        let [mut first, second] = [order::<256>().unwrap(), order::<256>().unwrap()];
        assert_ne!(first, second);
        first.sort_unstable();
        assert!((0..=u8::MAX).eq(first));
    }
}
