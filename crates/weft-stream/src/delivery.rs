//! Receiving bytes that are taken only once a consumer has accepted them.

use std::io::IoSliceMut;

use weft_sys::Buffers;
use weft_sys::calls::io::Errno;

use crate::recv_options::RecvOptions;

/// Peeks at the bytes that are there, shows them to `deliver`, and takes as many of them as that
/// returns. Returns how many it has taken. The caller holds the reader's lock, so that no other
/// thread or process receives meanwhile.
///
/// # Errors
/// Those of `recv`.
pub(crate) fn deliver(
    bytes: &mut [u8],
    deliver: &mut dyn FnMut(&[u8]) -> usize,
    recv: &mut dyn FnMut(Buffers<'_>, RecvOptions) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let peek = RecvOptions { keep: true, ..RecvOptions::default() };
    let shown = recv(Buffers::of(&mut [IoSliceMut::new(bytes)]), peek)?;
    let delivered = deliver(&bytes[..shown]).min(shown);
    let mut taken = 0;
    while taken < delivered {
        let slices = &mut [IoSliceMut::new(&mut bytes[taken..delivered])];
        match recv(Buffers::of(slices), RecvOptions::default())? {
            0 => break,
            more => taken += more,
        }
    }
    Ok(taken)
}
