//! Required and optional attributes of each state transition: the table of the verbs specification
//! (InfiniBand Architecture vol. 1, table 96; ibv_modify_qp(3)).

use crate::attr::{AttrMask, QpState, QpType};
use crate::{Errno, Result};

struct Rule {
    from: QpState,
    to: QpState,
    required: AttrMask,
    optional: AttrMask,
}

const fn rule(from: QpState, to: QpState, required: AttrMask, optional: AttrMask) -> Rule {
    Rule { from, to, required, optional }
}

const NONE: AttrMask = AttrMask::empty();
const KEYS: AttrMask = AttrMask::PKEY_INDEX.union(AttrMask::PORT).union(AttrMask::ACCESS_FLAGS);
const PEER: AttrMask =
    AttrMask::AV.union(AttrMask::PATH_MTU).union(AttrMask::DEST_QPN).union(AttrMask::RQ_PSN);
const TO_RTR: AttrMask = PEER.union(AttrMask::MAX_DEST_RD_ATOMIC).union(AttrMask::MIN_RNR_TIMER);
const MORE_AT_RTR: AttrMask =
    AttrMask::ALT_PATH.union(AttrMask::ACCESS_FLAGS).union(AttrMask::PKEY_INDEX);
const TO_RTS: AttrMask = AttrMask::TIMEOUT
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::SQ_PSN)
    .union(AttrMask::MAX_QP_RD_ATOMIC);
const PATH: AttrMask = AttrMask::ALT_PATH.union(AttrMask::PATH_MIG_STATE);
const IN_RTS: AttrMask = PATH.union(AttrMask::CUR_STATE).union(AttrMask::ACCESS_FLAGS);
const IN_SQD: AttrMask = IN_RTS.union(AttrMask::AV).union(AttrMask::PKEY_INDEX);

/// An initiator without a responder has no responder depth and no RNR timer.
const SENDER_IN_SQD: AttrMask = IN_SQD
    .union(AttrMask::TIMEOUT)
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::MAX_QP_RD_ATOMIC)
    .union(AttrMask::PORT);
const RECEIVER_IN_RTS: AttrMask = IN_RTS.union(AttrMask::MIN_RNR_TIMER);
const RECEIVER_IN_SQD: AttrMask = IN_SQD
    .union(AttrMask::MIN_RNR_TIMER)
    .union(AttrMask::TIMEOUT)
    .union(AttrMask::MAX_DEST_RD_ATOMIC)
    .union(AttrMask::PORT);

/// The transitions of a connected service; the services differ only in their attributes.
const fn connected(
    to_rtr: AttrMask,
    to_rts: AttrMask,
    in_rts: AttrMask,
    in_sqd: AttrMask,
) -> [Rule; 9] {
    [
        rule(QpState::Reset, QpState::Init, KEYS, NONE),
        rule(QpState::Init, QpState::Init, NONE, KEYS),
        rule(QpState::Init, QpState::Rtr, to_rtr, MORE_AT_RTR),
        rule(QpState::Rtr, QpState::Rts, to_rts, in_rts),
        rule(QpState::Rts, QpState::Rts, NONE, in_rts),
        rule(QpState::Rts, QpState::Sqd, NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
        rule(QpState::Sqd, QpState::Rts, NONE, in_rts),
        rule(QpState::Sqd, QpState::Sqd, NONE, in_sqd),
        rule(QpState::Sqe, QpState::Rts, NONE, in_rts),
    ]
}

const RC: [Rule; 9] = connected(
    TO_RTR,
    TO_RTS,
    RECEIVER_IN_RTS.union(AttrMask::RATE_LIMIT),
    SENDER_IN_SQD.union(RECEIVER_IN_SQD).union(AttrMask::RATE_LIMIT),
);
/// An unreliable connection has no acknowledgements and no reads, so it has no retries and no
/// depths.
const UC: [Rule; 9] = connected(PEER, AttrMask::SQ_PSN, IN_RTS, IN_SQD);
const XRC_SEND: [Rule; 9] = connected(PEER, TO_RTS, IN_RTS, SENDER_IN_SQD);
const XRC_RECV: [Rule; 9] =
    connected(TO_RTR, AttrMask::TIMEOUT.union(AttrMask::SQ_PSN), RECEIVER_IN_RTS, RECEIVER_IN_SQD);

const UD_KEYS: AttrMask = AttrMask::PKEY_INDEX.union(AttrMask::PORT).union(AttrMask::QKEY);
const UD_IN_RTS: AttrMask = AttrMask::CUR_STATE.union(AttrMask::QKEY).union(AttrMask::RATE_LIMIT);

const UD: &[Rule] = &[
    rule(QpState::Reset, QpState::Init, UD_KEYS, NONE),
    rule(QpState::Init, QpState::Init, NONE, UD_KEYS),
    rule(QpState::Init, QpState::Rtr, NONE, AttrMask::PKEY_INDEX.union(AttrMask::QKEY)),
    rule(QpState::Rtr, QpState::Rts, AttrMask::SQ_PSN, UD_IN_RTS),
    rule(QpState::Rts, QpState::Rts, NONE, UD_IN_RTS),
    rule(QpState::Rts, QpState::Sqd, NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
    rule(QpState::Sqd, QpState::Rts, NONE, UD_IN_RTS),
    rule(QpState::Sqd, QpState::Sqd, NONE, AttrMask::PKEY_INDEX.union(AttrMask::QKEY)),
    rule(QpState::Sqe, QpState::Rts, NONE, UD_IN_RTS),
];

/// Returns the attributes with which a queue pair is brought up to INIT, RTR or RTS from the state
/// before it. `None` for other states.
#[must_use]
pub fn required(qp_type: QpType, to: QpState) -> Option<AttrMask> {
    let from = match to {
        QpState::Init => QpState::Reset,
        QpState::Rtr => QpState::Init,
        QpState::Rts => QpState::Rtr,
        QpState::Reset | QpState::Sqd | QpState::Sqe | QpState::Err => return None,
    };
    rule_of(qp_type, from, to).map(|rule| rule.required | AttrMask::STATE)
}

fn rule_of(qp_type: QpType, from: QpState, to: QpState) -> Option<&'static Rule> {
    rules_of(qp_type).iter().find(|rule| rule.from == from && rule.to == to)
}

fn rules_of(qp_type: QpType) -> &'static [Rule] {
    match qp_type {
        QpType::Rc => &RC,
        QpType::Uc => &UC,
        QpType::Ud => UD,
        QpType::XrcSend => &XRC_SEND,
        QpType::XrcRecv => &XRC_RECV,
    }
}

/// The attributes that a type uses. Programs that treat an extended connection as a reliable one
/// set those of the other side, too; the kernel's verbs ignore them.
pub(super) fn relevant(qp_type: QpType, mask: AttrMask) -> AttrMask {
    match qp_type {
        QpType::XrcSend => mask - AttrMask::MAX_DEST_RD_ATOMIC - AttrMask::MIN_RNR_TIMER,
        QpType::XrcRecv => {
            mask - AttrMask::MAX_QP_RD_ATOMIC - AttrMask::RETRY_CNT - AttrMask::RNR_RETRY
        }
        QpType::Rc | QpType::Uc | QpType::Ud => mask,
    }
}

/// Checks that a queue pair of type `qp_type` in state `from` may be modified to `to` with the
/// attributes of `mask`.
///
/// # Errors
/// `EINVAL` for a transition that does not exist, a missing attribute, or one that does not belong.
pub(super) fn check(qp_type: QpType, from: QpState, to: QpState, mask: AttrMask) -> Result<()> {
    let given = mask - AttrMask::STATE - AttrMask::CUR_STATE;
    // Every state may change to RESET and ERR, which take no attributes.
    if matches!(to, QpState::Reset | QpState::Err) {
        return if given.is_empty() { Ok(()) } else { Err(Errno::INVAL) };
    }
    let rule = rule_of(qp_type, from, to).ok_or(Errno::INVAL)?;
    let allowed = rule.required | rule.optional | AttrMask::STATE | AttrMask::CUR_STATE;
    if mask.contains(rule.required) && allowed.contains(mask) { Ok(()) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Err,
    ];

    const TYPES: [QpType; 5] =
        [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];

    /// The transitions of a type up to RTS, each with its required attributes.
    fn way_up(qp_type: QpType) -> [(QpState, QpState, AttrMask); 3] {
        let (to_init, to_rtr, to_rts) = match qp_type {
            QpType::Rc => (KEYS, TO_RTR, TO_RTS),
            QpType::Uc => (KEYS, PEER, AttrMask::SQ_PSN),
            QpType::Ud => (UD_KEYS, NONE, AttrMask::SQ_PSN),
            QpType::XrcSend => (KEYS, PEER, TO_RTS),
            QpType::XrcRecv => (KEYS, TO_RTR, AttrMask::TIMEOUT | AttrMask::SQ_PSN),
        };
        [
            (QpState::Reset, QpState::Init, to_init),
            (QpState::Init, QpState::Rtr, to_rtr),
            (QpState::Rtr, QpState::Rts, to_rts),
        ]
    }

    #[test]
    fn required_attributes_are_those_of_the_way_up() {
        for qp_type in TYPES {
            for (_, to, attributes) in way_up(qp_type) {
                assert_eq!(required(qp_type, to), Some(attributes | AttrMask::STATE));
            }
            for to in [QpState::Reset, QpState::Sqd, QpState::Sqe, QpState::Err] {
                assert_eq!(required(qp_type, to), None);
            }
        }
    }

    #[test]
    fn transition_without_a_required_attribute_is_refused() {
        for qp_type in TYPES {
            for (from, to, required) in way_up(qp_type) {
                assert_eq!(check(qp_type, from, to, AttrMask::STATE | required), Ok(()));
                for bit in required.iter() {
                    let mask = AttrMask::STATE | (required - bit);
                    assert_eq!(check(qp_type, from, to, mask), Err(Errno::INVAL));
                }
            }
        }
    }

    #[test]
    fn attributes_of_reliable_service_are_refused_by_others() {
        for (from, to, mask) in way_up(QpType::Rc) {
            if mask != KEYS {
                for other in [QpType::Uc, QpType::Ud] {
                    let checked = check(other, from, to, AttrMask::STATE | mask);
                    assert_eq!(checked, Err(Errno::INVAL));
                }
            }
        }
    }

    #[test]
    fn err_and_reset_are_reached_from_any_state_and_err_is_left_only_by_reset() {
        for (qp_type, from) in TYPES.into_iter().flat_map(|t| STATES.map(|state| (t, state))) {
            assert_eq!(check(qp_type, from, QpState::Err, AttrMask::STATE), Ok(()));
            assert_eq!(check(qp_type, from, QpState::Reset, AttrMask::STATE), Ok(()));
            let with_more = AttrMask::STATE | AttrMask::PORT;
            assert_eq!(check(qp_type, from, QpState::Err, with_more), Err(Errno::INVAL));
        }
        for to in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd] {
            assert_eq!(check(QpType::Rc, QpState::Err, to, AttrMask::all()), Err(Errno::INVAL));
        }
    }

    #[test]
    fn states_cannot_be_skipped() {
        let short = [
            (QpState::Reset, QpState::Rtr),
            (QpState::Reset, QpState::Rts),
            (QpState::Init, QpState::Rts),
        ];
        for (from, to) in short {
            assert_eq!(check(QpType::Rc, from, to, AttrMask::all()), Err(Errno::INVAL));
        }
    }

    #[test]
    fn unreliable_services_go_from_sqe_to_rts() {
        let back = |qp_type| check(qp_type, QpState::Sqe, QpState::Rts, AttrMask::STATE);
        assert_eq!(back(QpType::Uc), Ok(()));
        assert_eq!(back(QpType::Ud), Ok(()));
    }
}
