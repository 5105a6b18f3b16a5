//! Commands about the medium as a whole: TEST UNIT READY, START STOP UNIT, PREVENT ALLOW MEDIUM
//! REMOVAL and SANITIZE (SBC-4, section 5; SPC-5, section 6).

use super::call::{Call, Failure, Plan, done};
use super::sense::Sense;
use super::state::Medium;

pub(super) fn test_unit_ready(_call: &Call<'_>) -> Result<Plan, Failure> {
    done()
}

pub(super) fn start_stop(call: &Call<'_>) -> Result<Plan, Failure> {
    let (condition, flags) = (call.byte(4) >> 4, call.byte(4));
    let (no_flush, load, start) = (flags & 0x04 != 0, flags & 0x02 != 0, flags & 0x01 != 0);
    if condition != 0 {
        // Power conditions are accepted and change nothing: the target has none (section 5.30).
        return done();
    }
    if load && !call.unit.options().is_removable {
        return Err(Sense::INVALID_FIELD.in_cdb(4, 1).into());
    }
    if !start && !no_flush && !call.unit.options().is_read_only {
        return Ok(Plan::Run { run: flush_and_change_medium, changes: true });
    }
    change_medium(call)?;
    done()
}

fn flush_and_change_medium(call: &Call<'_>) -> Result<Vec<u8>, Failure> {
    call.unit.flush()?;
    change_medium(call)?;
    Ok(Vec::new())
}

/// Loads or ejects the medium, as START STOP UNIT asks for.
fn change_medium(call: &Call<'_>) -> Result<(), Failure> {
    let (load, start) = (call.byte(4) & 0x02 != 0, call.byte(4) & 0x01 != 0);
    let mut state = call.unit.state();
    if load && state.is_removal_prevented() {
        return Err(Sense::REMOVAL_PREVENTED.into());
    }
    let before = state.medium;
    state.medium = match (before, start, load) {
        (Medium::Ejected, true, true) => Medium::Ready,
        (Medium::Ready, false, true) => Medium::Ejected,
        (other, _, _) => other,
    };
    if before == Medium::Ejected && state.medium == Medium::Ready {
        let by = call.nexus.id;
        state.notify(|nexus| nexus != by, Sense::MEDIUM_CHANGED);
    }
    Ok(())
}

pub(super) fn prevent_allow(call: &Call<'_>) -> Result<Plan, Failure> {
    match call.byte(4) & 0x03 {
        value @ (0 | 1) => call.unit.state().prevent_removal(call.nexus.id, value == 1),
        // Obsolete, for changers.
        _ => return Err(Sense::INVALID_FIELD.in_cdb(4, 1).into()),
    }
    done()
}

/// SANITIZE, by blocks that read as zeros afterwards.
pub(super) fn block_erase(call: &Call<'_>) -> Result<Plan, Failure> {
    if call.u16(7) != 0 {
        return Err(Sense::INVALID_FIELD.in_cdb(7, None).into());
    }
    Ok(Plan::Run { run: erase, changes: true })
}

fn erase(call: &Call<'_>) -> Result<Vec<u8>, Failure> {
    sanitize(call, |call| {
        let end = call.unit.store().len();
        call.unit.store().discard(0..end).map_err(|_| Sense::SANITIZE_FAILED)
    })?;
    Ok(Vec::new())
}

/// Sanitizes while all other initiators see that, and aborts what is under way.
fn sanitize(
    call: &Call<'_>,
    erase: impl FnOnce(&Call<'_>) -> Result<(), Sense>,
) -> Result<(), Failure> {
    let may_exit = call.byte(1) & 0x20 != 0;
    call.unit.state().medium = Medium::Sanitizing;
    call.unit.abort_tasks(|nexus| nexus != call.nexus.id);
    let step = call.unit.own_step();
    let erased = erase(call).and_then(|()| call.unit.flush().map_err(|_| Sense::SANITIZE_FAILED));
    drop(step);
    call.unit.state().medium = match erased {
        Ok(()) => Medium::Ready,
        Err(_) => Medium::SanitizeFailed { may_exit },
    };
    Ok(erased?)
}

pub(super) fn exit_failure_mode(call: &Call<'_>) -> Result<Plan, Failure> {
    if call.u16(7) != 0 {
        return Err(Sense::INVALID_FIELD.in_cdb(7, None).into());
    }
    let mut state = call.unit.state();
    match state.medium {
        Medium::SanitizeFailed { may_exit: true } => state.medium = Medium::Ready,
        Medium::SanitizeFailed { may_exit: false } => {
            return Err(Sense::INVALID_FIELD.in_cdb(1, 4).into());
        }
        _ => {}
    }
    done()
}
