//! Unpredictable random bytes from the system's source.

use weft_sys::calls::io::retry_on_intr;
use weft_sys::calls::rand::{GetRandomFlags, getrandom};

use crate::Result;

/// Fresh random bytes.
///
/// # Errors
/// The errors of `getrandom(2)`, such as `ENOSYS` where a seccomp filter forbids it.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
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
    // One call for all of them: each call costs a signal where calls by hand are reported.
    let mut choices = [[0; size_of::<u64>()]; N];
    fill(choices.as_flattened_mut())?;
    for (index, choice) in choices.into_iter().enumerate().rev() {
        // The bias of a 64-bit remainder is too small to notice.
        let choice = u64::from_ne_bytes(choice) % (index as u64 + 1);
        order.swap(index, usize::try_from(choice).unwrap_or(index));
    }
    Ok(order)
}

/// Fills `bytes`. A signal can cut requests of more than 256 bytes short (`getrandom(2)`).
fn fill(bytes: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let left = &mut bytes[filled..];
        filled += retry_on_intr(|| getrandom(&mut *left, GetRandomFlags::empty()))?;
    }
    Ok(())
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
