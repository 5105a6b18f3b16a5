//! What the servers agree on: the effects of the turns of a leader's event loop.

use std::io::Cursor;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::limits::{PART_LEN_MAX, PARTS_MAX};

/// The number of a proposal. No two proposals have the same, because its first half is chosen at
/// random by each process. 0 is before the first one.
pub(crate) type ProposalId = u128;

/// A part of a proposal: the effects of one turn, cut into pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) id: ProposalId,
    /// The proposal that it follows.
    pub(crate) base: ProposalId,
    /// The place of the part, from 0 on.
    pub(crate) at: u32,
    pub(crate) is_last: bool,
    pub(crate) effects: Bytes,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "part {} of {:x}", self.at, self.id)
    }
}

openraft::declare_raft_types!(
    /// The types of the Raft log.
    pub(crate) Types:
        D = Part,
        R = (),
        NodeId = u64,
        Node = openraft::EmptyNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = openraft::TokioRuntime,
);

/// Cuts the effects of a turn into parts.
pub(crate) fn parts(id: ProposalId, base: ProposalId, effects: Vec<u8>) -> Vec<Part> {
    let mut rest = Bytes::from(effects);
    let mut parts = Vec::new();
    loop {
        let effects = rest.split_to(rest.len().min(PART_LEN_MAX));
        let (at, is_last) = (parts.len() as u32, rest.is_empty());
        parts.push(Part { id, base, at, is_last, effects });
        if is_last {
            return parts;
        }
    }
}

/// Which proposals have taken effect. All servers come to the same answers, because they depend on
/// the log alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chain {
    /// The last one that has.
    pub(crate) last: ProposalId,
    /// The one whose parts arrive.
    open: Option<Open>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Open {
    id: ProposalId,
    parts: u32,
    #[serde(with = "serde_bytes_vec")]
    effects: Vec<u8>,
}

/// What a part leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing yet, or it is left over from a proposal that another one has interrupted.
    Goes,
    /// This proposal takes effect.
    Holds(ProposalId, Vec<u8>),
    /// This proposal does not follow the last one, and has no effects.
    Void(ProposalId),
}

impl Chain {
    /// Takes the next part of the log.
    pub(crate) fn take(&mut self, part: Part) -> Step {
        let Part { id, base, at, is_last, effects } = part;
        if at == 0 {
            self.open = Some(Open { id, parts: 0, effects: Vec::new() });
        }
        let Some(open) = self.open.as_mut().filter(|open| open.id == id && open.parts == at) else {
            return if is_last { Step::Void(id) } else { Step::Goes };
        };
        if open.parts >= PARTS_MAX {
            self.open = None;
            return Step::Void(id);
        }
        open.parts += 1;
        open.effects.extend_from_slice(&effects);
        if !is_last {
            return Step::Goes;
        }
        let effects = self.open.take().map(|open| open.effects).unwrap_or_default();
        if base != self.last {
            return Step::Void(id);
        }
        self.last = id;
        Step::Holds(id, effects)
    }
}

/// Bytes as one string, not as a list of numbers.
mod serde_bytes_vec {
    use bytes::Bytes;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        Bytes::deserialize(from).map(Vec::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(id: ProposalId, base: ProposalId, text: &str) -> Part {
        parts(id, base, text.into()).remove(0)
    }

    #[test]
    fn proposal_that_does_not_follow_the_last_one_is_void() {
        let mut chain = Chain::default();
        assert_eq!(chain.take(one(1, 0, "a")), Step::Holds(1, b"a".to_vec()));
        // A leader of the past, which has not seen 1.
        assert_eq!(chain.take(one(2, 0, "b")), Step::Void(2));
        assert_eq!(chain.take(one(3, 1, "c")), Step::Holds(3, b"c".to_vec()));
        // What followed the void one.
        assert_eq!(chain.take(one(4, 2, "d")), Step::Void(4));
        assert_eq!(chain.last, 3);
    }

    #[test]
    fn long_proposal_takes_effect_with_its_last_part() {
        let effects: Vec<u8> = (0..PART_LEN_MAX * 2 + 7).map(|at| at as u8).collect();
        let all = parts(1, 0, effects.clone());
        assert_eq!(all.len(), 3);
        let mut chain = Chain::default();
        assert_eq!(chain.take(all[0].clone()), Step::Goes);
        assert_eq!(chain.take(all[1].clone()), Step::Goes);
        assert_eq!(chain.take(all[2].clone()), Step::Holds(1, effects));
    }

    #[test]
    fn interrupted_proposal_has_no_effects() {
        let all = parts(1, 0, vec![0; PART_LEN_MAX + 1]);
        let mut chain = Chain::default();
        assert_eq!(chain.take(all[0].clone()), Step::Goes);
        assert_eq!(chain.take(one(2, 0, "b")), Step::Holds(2, b"b".to_vec()));
        assert_eq!(chain.take(all[1].clone()), Step::Void(1));
        // A part is missing.
        let all = parts(3, 2, vec![0; PART_LEN_MAX * 2 + 1]);
        assert_eq!(chain.take(all[0].clone()), Step::Goes);
        assert_eq!(chain.take(all[2].clone()), Step::Void(3));
        assert_eq!(chain.last, 2);
    }

    #[test]
    fn turn_without_bytes_is_one_part() {
        let all = parts(1, 0, Vec::new());
        assert!(all.len() == 1 && all[0].is_last);
    }
}
