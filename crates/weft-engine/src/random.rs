//! Random bytes that nobody can guess, from the system's source.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::Result;

/// Fresh random bytes.
///
/// # Errors
/// What `getrandom(2)` reports, such as `ENOSYS` where a filter forbids it.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N]> {
    // More could be cut short by a signal (`getrandom(2)`).
    const { assert!(N <= 256) }
    let mut bytes = [0; N];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

/// The numbers below `N` in an order that nobody can guess.
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
        // A remainder of 64 bits prefers no number in a way that could be noticed.
        let choice = u64::from_ne_bytes(bytes()?) % (index as u64 + 1);
        order.swap(index, usize::try_from(choice).unwrap_or(index));
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_each_number_once_and_is_another_each_time() {
        let [mut first, second] = [order::<256>().unwrap(), order::<256>().unwrap()];
        assert_ne!(first, second);
        first.sort_unstable();
        assert!((0..=u8::MAX).eq(first));
    }
}
