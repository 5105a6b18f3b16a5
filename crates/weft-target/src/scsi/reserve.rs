//! RESERVE (6) and RELEASE (6) (SPC-2, sections 7.21 and 7.16).

use super::call::{Call, Failure, Plan, done};

pub(super) fn reserve6(call: &Call<'_>) -> Result<Plan, Failure> {
    let mut state = call.unit.state();
    // Both kinds of reservations exclude each other (SPC-2, section 5.5.1).
    if !state.persistent.is_unused() {
        return Err(Failure::Conflict);
    }
    match state.reserved_by {
        Some(holder) if holder != call.nexus.id => return Err(Failure::Conflict),
        _ => state.reserved_by = Some(call.nexus.id),
    }
    done()
}

/// A release by another initiator is no error and changes nothing.
pub(super) fn release6(call: &Call<'_>) -> Result<Plan, Failure> {
    let mut state = call.unit.state();
    if !state.persistent.is_unused() {
        return Err(Failure::Conflict);
    }
    if state.reserved_by == Some(call.nexus.id) {
        state.reserved_by = None;
    }
    done()
}
