//! Copying between messages and scatter/gather lists.

use super::host::{Keys, Pinned};
use super::payload::{Misplaced, Payload};
use crate::access::Access;
use crate::mr::AccessError;
use crate::wr::Sge;

/// Sum of the lengths of a list.
pub(super) fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// The entries of a list that hold the `len` bytes from `offset` on: key, address, length.
pub(super) fn pieces(sges: &[Sge], offset: u64, len: u64) -> impl Iterator<Item = (u32, u64, u64)> {
    let end = offset + len;
    let mut start = 0;
    sges.iter().filter_map(move |sge| {
        let (first, last) = (start, start + u64::from(sge.length));
        start = last;
        let (from, to) = (first.max(offset), last.min(end));
        (from < to).then(|| (sge.lkey, sge.addr.wrapping_add(from - first), to - from))
    })
}

/// Checks that every byte of the list may be accessed with the rights `needs`.
pub(super) fn check<K: Keys>(
    keys: &mut K,
    context: K::Context<'_>,
    sges: &[Sge],
    needs: Access,
) -> Result<(), AccessError> {
    for (lkey, addr, len) in pieces(sges, 0, total(sges)) {
        keys.access(context, lkey, addr, len, needs)?;
    }
    Ok(())
}

/// Appends `len` bytes of the list, from `offset` on, to `out`.
pub(crate) fn gather<K: Keys>(
    keys: &mut K,
    context: K::Context<'_>,
    sges: &[Sge],
    offset: u64,
    len: u64,
    out: &mut Vec<u8>,
) -> Result<(), AccessError> {
    for (lkey, addr, len) in pieces(sges, offset, len) {
        let pin = keys.access(context, lkey, addr, len, Access::empty())?;
        pin.read(out);
    }
    Ok(())
}

/// Copies a payload to the memory of the list, from `offset` on. The list must be long enough.
pub(crate) fn scatter<K: Keys>(
    keys: &mut K,
    context: K::Context<'_>,
    sges: &[Sge],
    offset: u64,
    payload: Payload<'_>,
) -> Result<(), Misplaced> {
    let mut done = 0;
    for (lkey, addr, len) in pieces(sges, offset, payload.len() as u64) {
        let pin = keys.access(context, lkey, addr, len, Access::LOCAL_WRITE);
        let pin = pin.map_err(|_| Misplaced::Target)?;
        done += pin.write(&payload, done).map_err(Misplaced::Source)?;
    }
    debug_assert!(done == payload.len(), "the caller has compared the lengths");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_each_byte_of_a_range_once() {
        let sges: Vec<Sge> = [(100, 3), (200, 0), (300, 5), (400, 1)]
            .into_iter()
            .map(|(addr, length)| Sge { addr, length, lkey: 7 })
            .collect();
        let bytes: Vec<u64> = vec![100, 101, 102, 300, 301, 302, 303, 304, 400];
        for offset in 0..=9 {
            for len in 0..=9 - offset {
                let covered: Vec<u64> = pieces(&sges, offset, len)
                    .flat_map(|(_, addr, len)| addr..addr + len)
                    .collect();
                let (from, to) = (offset as usize, (offset + len) as usize);
                assert_eq!(covered, bytes[from..to]);
            }
        }
    }
}
