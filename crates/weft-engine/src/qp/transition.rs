//! Which attributes each change of state needs and takes: the table of the verbs specification
//! (InfiniBand Architecture vol. 1, table 96; ibv_modify_qp(3)), for reliable connections.

use super::attr::{AttrMask, QpState};
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
const TO_RTR: AttrMask = AttrMask::AV
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN)
    .union(AttrMask::MAX_DEST_RD_ATOMIC)
    .union(AttrMask::MIN_RNR_TIMER);
const TO_RTS: AttrMask = AttrMask::TIMEOUT
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::SQ_PSN)
    .union(AttrMask::MAX_QP_RD_ATOMIC);
const PATH: AttrMask = AttrMask::ALT_PATH.union(AttrMask::PATH_MIG_STATE);
const IN_RTS: AttrMask = PATH
    .union(AttrMask::CUR_STATE)
    .union(AttrMask::ACCESS_FLAGS)
    .union(AttrMask::MIN_RNR_TIMER)
    .union(AttrMask::RATE_LIMIT);
const IN_SQD: AttrMask = IN_RTS
    .union(AttrMask::AV)
    .union(AttrMask::TIMEOUT)
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::MAX_QP_RD_ATOMIC)
    .union(AttrMask::MAX_DEST_RD_ATOMIC)
    .union(AttrMask::PKEY_INDEX)
    .union(AttrMask::PORT);

const RULES: &[Rule] = &[
    rule(QpState::Reset, QpState::Init, KEYS, NONE),
    rule(QpState::Init, QpState::Init, NONE, KEYS),
    rule(
        QpState::Init,
        QpState::Rtr,
        TO_RTR,
        AttrMask::ALT_PATH.union(AttrMask::ACCESS_FLAGS).union(AttrMask::PKEY_INDEX),
    ),
    rule(QpState::Rtr, QpState::Rts, TO_RTS, IN_RTS),
    rule(QpState::Rts, QpState::Rts, NONE, IN_RTS),
    rule(QpState::Rts, QpState::Sqd, NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
    rule(QpState::Sqd, QpState::Rts, NONE, IN_RTS),
    rule(QpState::Sqd, QpState::Sqd, NONE, IN_SQD),
    rule(QpState::Sqe, QpState::Rts, NONE, IN_RTS),
];

/// Checks that a queue pair in state `from` may be modified to `to` with the attributes of `mask`.
///
/// # Errors
/// `EINVAL` for a transition that does not exist, a missing attribute, or one that does not belong.
pub(super) fn check(from: QpState, to: QpState, mask: AttrMask) -> Result<()> {
    let given = mask - AttrMask::STATE - AttrMask::CUR_STATE;
    // Every state may be left for RESET and ERR, which take no attributes.
    if matches!(to, QpState::Reset | QpState::Err) {
        return if given.is_empty() { Ok(()) } else { Err(Errno::INVAL) };
    }
    let rule = RULES.iter().find(|rule| rule.from == from && rule.to == to).ok_or(Errno::INVAL)?;
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

    #[test]
    fn the_way_up() {
        assert_eq!(check(QpState::Reset, QpState::Init, AttrMask::STATE | KEYS), Ok(()));
        assert_eq!(check(QpState::Init, QpState::Rtr, AttrMask::STATE | TO_RTR), Ok(()));
        assert_eq!(check(QpState::Rtr, QpState::Rts, AttrMask::STATE | TO_RTS), Ok(()));
    }

    #[test]
    fn every_required_attribute_is_missed() {
        for (from, to, required) in [
            (QpState::Reset, QpState::Init, KEYS),
            (QpState::Init, QpState::Rtr, TO_RTR),
            (QpState::Rtr, QpState::Rts, TO_RTS),
        ] {
            for bit in required.iter() {
                assert_eq!(check(from, to, AttrMask::STATE | (required - bit)), Err(Errno::INVAL));
            }
        }
    }

    #[test]
    fn err_and_reset_from_anywhere_and_nothing_else_from_err() {
        for from in STATES {
            assert_eq!(check(from, QpState::Err, AttrMask::STATE), Ok(()));
            assert_eq!(check(from, QpState::Reset, AttrMask::STATE), Ok(()));
            assert_eq!(
                check(from, QpState::Err, AttrMask::STATE | AttrMask::PORT),
                Err(Errno::INVAL)
            );
        }
        for to in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd] {
            assert_eq!(check(QpState::Err, to, AttrMask::all()), Err(Errno::INVAL));
        }
    }

    #[test]
    fn no_short_cuts() {
        let all = AttrMask::all();
        assert_eq!(check(QpState::Reset, QpState::Rtr, all), Err(Errno::INVAL));
        assert_eq!(check(QpState::Reset, QpState::Rts, all), Err(Errno::INVAL));
        assert_eq!(check(QpState::Init, QpState::Rts, all), Err(Errno::INVAL));
    }
}
