//! Bodies of the fuzz targets: what another server sends, and what a snapshot of it may say.
//! `fuzz/` runs them with libFuzzer, `tests/fuzz.rs` without.

use crate::group::Group;
use crate::member::split;
use crate::network::{Call, decode};
use crate::proposal::{Chain, Step, parts};

/// A call of another server. Returns whether it is one.
pub fn call(input: &[u8]) -> bool {
    decode::<Call>(input).is_ok()
}

/// A snapshot of the leader. Returns whether it is cut into records.
///
/// # Panics
/// If bytes are lost or added.
pub fn snapshot(input: &[u8]) -> bool {
    let Some(records) = split(input) else { return false };
    let len: usize = records.iter().map(|record| record.len() + 8).sum();
    assert_eq!(len, input.len(), "bytes are lost");
    true
}

/// A file that describes a group. Returns whether it does.
pub fn group(input: &[u8]) -> bool {
    std::str::from_utf8(input).is_ok_and(|text| Group::parse(text, "a").is_ok())
}

/// Proposals of several leaders, whose parts come in any order. Each pair of bytes chooses a
/// proposal and what it follows.
///
/// # Panics
/// If a proposal takes effect that does not follow the last one.
pub fn proposals(input: &[u8]) {
    let (mut chain, mut last) = (Chain::default(), 0);
    for choice in input.chunks_exact(3) {
        let (id, base) = (u128::from(choice[0] % 8), u128::from(choice[1] % 8));
        let mut all = parts(id, base, choice.to_vec());
        let part = &mut all[0];
        (part.at, part.is_last) = (u32::from(choice[2] % 4), choice[2] & 8 != 0);
        if let Step::Holds(held, _) = chain.take(part.clone()) {
            assert_eq!(base, last, "{held} does not follow {last}");
            last = held;
        }
    }
}
