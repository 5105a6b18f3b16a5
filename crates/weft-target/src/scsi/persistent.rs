//! PERSISTENT RESERVE IN and OUT (SPC-5, sections 5.14, 6.16 and 6.17). Reservations last as long
//! as the target runs, or longer if the last registration asked for that (APTPL). That is refused
//! if there is no place to keep them.

use super::call::{Call, Failure, Plan, finished};
use super::nexus::Initiator;
use super::reservations::{Registration, Reservations, Type};
use super::sense::Sense;
use super::state::State;
use crate::bytes::{be16, be32, be64};
use crate::limits::PARAMETER_LEN_MAX;

fn header(reservations: &Reservations, content: &[u8]) -> Vec<u8> {
    let mut data = reservations.generation.to_be_bytes().to_vec();
    data.extend((content.len() as u32).to_be_bytes());
    data.extend(content);
    data
}

/// READ KEYS.
pub(super) fn read_keys(call: &Call<'_>) -> Result<Plan, Failure> {
    let state = call.unit.state();
    let registrations = &state.persistent.registrations;
    let keys: Vec<u8> = registrations.iter().flat_map(|each| each.key.to_be_bytes()).collect();
    finished(header(&state.persistent, &keys), usize::from(call.u16(7)))
}

/// READ RESERVATION.
pub(super) fn read_reservation(call: &Call<'_>) -> Result<Plan, Failure> {
    let state = call.unit.state();
    let content = match &state.persistent.reservation {
        None => Vec::new(),
        Some((kind, holder)) => {
            // If all are holders there is no key of one (section 5.14.9).
            let key = holder.as_ref().and_then(|holder| state.persistent.key(holder)).unwrap_or(0);
            let mut content = key.to_be_bytes().to_vec();
            content.extend([0, 0, 0, 0, 0, kind.number(), 0, 0]);
            content
        }
    };
    finished(header(&state.persistent, &content), usize::from(call.u16(7)))
}

/// REPORT CAPABILITIES.
pub(super) fn capabilities(call: &Call<'_>) -> Result<Plan, Failure> {
    // Transport IDs may be named (SIP_C) and all ports of the target are registered with (ATP_C);
    // the mask of types is valid (TMV). PTPL_C and PTPL_A: they can be kept, and are.
    let state = call.unit.state();
    let can_keep = u8::from(state.keeper.is_some());
    let is_kept = u8::from(state.persistent.is_kept);
    let mut data = vec![0, 8, 0x0c | can_keep, 0x80 | is_kept, 0, 0, 0, 0];
    for kind in Type::ALL {
        let number = kind.number();
        if number < 8 {
            data[4] |= 1 << number;
        } else {
            data[5] |= 1 << (number - 8);
        }
    }
    finished(data, usize::from(call.u16(7)))
}

/// READ FULL STATUS.
pub(super) fn full_status(call: &Call<'_>) -> Result<Plan, Failure> {
    let state = call.unit.state();
    let persistent = &state.persistent;
    let mut content = Vec::new();
    for each in &persistent.registrations {
        let is_holder = persistent.is_holder(&each.initiator);
        let kind = persistent.reservation.as_ref().filter(|_| is_holder);
        content.extend(each.key.to_be_bytes());
        content.extend([0; 4]);
        // Registered by all ports of the target, of which there is one.
        content.push(0x02 | u8::from(is_holder));
        content.push(kind.map_or(0, |(kind, _)| kind.number()));
        content.extend([0, 0, 0, 0, 0, 1]);
        let id = each.initiator.transport_id();
        content.extend((id.len() as u32).to_be_bytes());
        content.extend(id);
    }
    finished(header(persistent, &content), usize::from(call.u16(7)))
}

/// The parameter list of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy)]
struct Parameters<'a> {
    key: u64,
    action_key: u64,
    /// Transport IDs are named.
    names_initiators: bool,
    keeps: bool,
    initiators: &'a [u8],
}

const LIST_LEN: usize = 24;

/// All service actions but REGISTER AND MOVE.
pub(super) fn out(call: &Call<'_>) -> Result<Plan, Failure> {
    let len = call.u32(5) as usize;
    // Only a list that names initiators is longer than this.
    if !(LIST_LEN..=PARAMETER_LEN_MAX).contains(&len) {
        return Err(Sense::PARAMETER_LIST_LENGTH.into());
    }
    Ok(Plan::Receive(len, finish_out))
}

fn parse(list: &[u8]) -> Result<Parameters<'_>, Sense> {
    let names_initiators = list[20] & 0x08 != 0;
    let initiators = if names_initiators {
        if list.len() < 28 {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let len = be32(list, 24) as usize;
        list.get(28..28 + len).ok_or(Sense::PARAMETER_LIST_LENGTH)?
    } else if list.len() != LIST_LEN {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    } else {
        &[]
    };
    let keeps = list[20] & 0x01 != 0;
    Ok(Parameters {
        key: be64(list, 0),
        action_key: be64(list, 8),
        names_initiators,
        keeps,
        initiators,
    })
}

fn finish_out(call: &Call<'_>, list: &[u8]) -> Result<(), Failure> {
    let parameters = parse(list)?;
    let action = call.byte(1) & 0x1f;
    let is_register = matches!(action, 0x00 | 0x06);
    let mut state = call.unit.state();
    let asks_too_much = parameters.keeps && is_register && state.keeper.is_none();
    if parameters.names_initiators && action != 0x00 || asks_too_much {
        return Err(Sense::INVALID_PARAMETER.in_parameters(20).into());
    }
    if state.reserved_by.is_some_and(|holder| holder != call.nexus.id) {
        return Err(Failure::Conflict);
    }
    let registered = state.persistent.key(&call.nexus.initiator);
    if !is_register && registered != Some(parameters.key) {
        return Err(Failure::Conflict);
    }
    let before = state.persistent.clone();
    let mut victims = Vec::new();
    match action {
        0x00 | 0x06 => register(call, &mut state, parameters, action == 0x06)?,
        0x01 => reserve(call, &mut state)?,
        0x02 => release(call, &mut state)?,
        0x03 => clear(call, &mut state),
        _ => victims = preempt(call, &mut state, parameters)?,
    }
    state.keep(before)?;
    // PREEMPT AND ABORT: of the preempted initiators. A unit attention has been given.
    if action == 0x05 {
        let sessions = state.sessions_of(&victims);
        drop(state);
        call.unit.abort_tasks(|nexus| sessions.contains(&nexus));
    }
    Ok(())
}

fn register(
    call: &Call<'_>,
    state: &mut State,
    parameters: Parameters<'_>,
    ignores_key: bool,
) -> Result<(), Failure> {
    let this = &*call.nexus.initiator;
    let registered = state.persistent.key(this);
    if !ignores_key && registered.unwrap_or(0) != parameters.key {
        return Err(Failure::Conflict);
    }
    let others = named_initiators(parameters.initiators)?;
    if parameters.action_key == 0 {
        if registered.is_some() {
            let released = state.persistent.unregister(this);
            notify_released(call, state, released);
        }
    } else {
        // All are registered, or none.
        let mut changed = state.persistent.clone();
        for initiator in std::iter::once(this).chain(&others) {
            changed.register(initiator, parameters.action_key)?;
        }
        state.persistent = changed;
    }
    state.persistent.is_kept = parameters.keeps;
    state.persistent.generation = state.persistent.generation.wrapping_add(1);
    Ok(())
}

/// The initiators of transport IDs. An initiator without a part of the session's identity could be
/// any of its sessions, and is refused.
fn named_initiators(mut ids: &[u8]) -> Result<Vec<Initiator>, Sense> {
    let invalid = || Sense::INVALID_PARAMETER.in_parameters(28);
    let mut initiators = Vec::new();
    while !ids.is_empty() {
        match Initiator::parse_transport_id(ids) {
            Some((name, Some(isid))) => initiators.push(Initiator { name, isid }),
            _ => return Err(invalid()),
        }
        let len = 4 + usize::from(be16(ids, 2));
        ids = ids.get(len..).ok_or_else(invalid)?;
    }
    Ok(initiators)
}

/// Tells registered sessions that a reservation, of a kind that gave them something, is gone.
fn notify_released(call: &Call<'_>, state: &mut State, released: Option<Type>) {
    if released.is_some_and(Type::is_for_registrants) {
        notify_registered(call, state, Sense::RESERVATIONS_RELEASED);
    }
}

fn notify_registered(call: &Call<'_>, state: &mut State, attention: Sense) {
    let others: Vec<Initiator> = state
        .persistent
        .registrations
        .iter()
        .map(|each| each.initiator.clone())
        .filter(|initiator| *initiator != *call.nexus.initiator)
        .collect();
    state.notify_initiators(&others, attention);
}

fn reservation_type(call: &Call<'_>) -> Result<Type, Sense> {
    // The scope is the unit.
    if call.byte(2) >> 4 != 0 {
        return Err(Sense::INVALID_FIELD.in_cdb(2, 7));
    }
    Type::of(call.byte(2) & 0x0f).ok_or_else(|| Sense::INVALID_FIELD.in_cdb(2, 3))
}

fn reserve(call: &Call<'_>, state: &mut State) -> Result<(), Failure> {
    let kind = reservation_type(call)?;
    let this = &*call.nexus.initiator;
    let persistent = &mut state.persistent;
    match &persistent.reservation {
        None => {
            let holder = (!kind.has_all_as_holders()).then(|| this.clone());
            persistent.reservation = Some((kind, holder));
            Ok(())
        }
        // The holder may say it again (section 5.14.10).
        Some((other, _)) if *other == kind && persistent.is_holder(this) => Ok(()),
        Some(_) => Err(Failure::Conflict),
    }
}

fn release(call: &Call<'_>, state: &mut State) -> Result<(), Failure> {
    let kind = reservation_type(call)?;
    let this = &*call.nexus.initiator;
    let Some((held, _)) = state.persistent.reservation else { return Ok(()) };
    if !state.persistent.is_holder(this) {
        return Ok(());
    }
    if held != kind {
        return Err(Sense::INVALID_RELEASE.into());
    }
    state.persistent.reservation = None;
    notify_released(call, state, Some(held));
    Ok(())
}

fn clear(call: &Call<'_>, state: &mut State) {
    notify_registered(call, state, Sense::RESERVATIONS_PREEMPTED);
    state.persistent.registrations.clear();
    state.persistent.reservation = None;
    state.persistent.generation = state.persistent.generation.wrapping_add(1);
}

/// PREEMPT (section 5.14.11.4): removes the registrations with a key, and takes the reservation
/// over if one of them holds it. Returns the other initiators that are not registered any more.
fn preempt(
    call: &Call<'_>,
    state: &mut State,
    parameters: Parameters<'_>,
) -> Result<Vec<Initiator>, Failure> {
    let this = &*call.nexus.initiator;
    let key = parameters.action_key;
    let persistent = &mut state.persistent;
    let kind = reservation_type(call)?;
    let (takes_over, all_others) = match &persistent.reservation {
        Some((held, _)) if held.has_all_as_holders() => (key == 0, key == 0),
        Some((_, Some(holder))) => (persistent.key(holder) == Some(key), false),
        _ => (false, false),
    };
    if key == 0 && !all_others {
        return Err(Sense::INVALID_PARAMETER.in_parameters(8).into());
    }
    let is_victim = |each: &Registration| all_others || each.key == key;
    if !takes_over && !persistent.registrations.iter().any(is_victim) {
        return Err(Failure::Conflict);
    }
    let victims: Vec<Initiator> = persistent
        .registrations
        .iter()
        .filter(|each| is_victim(each) && each.initiator != *this)
        .map(|each| each.initiator.clone())
        .collect();
    let keeps_itself = takes_over;
    persistent
        .registrations
        .retain(|each| !is_victim(each) || keeps_itself && each.initiator == *this);
    let mut released = None;
    if takes_over {
        let before = persistent.reservation.take().map(|(kind, _)| kind);
        let holder = (!kind.has_all_as_holders()).then(|| this.clone());
        persistent.reservation = Some((kind, holder));
        released = before.filter(|before| *before != kind);
    } else if persistent.registrations.is_empty() {
        persistent.reservation = None;
    }
    persistent.generation = persistent.generation.wrapping_add(1);
    state.notify_initiators(&victims, Sense::REGISTRATIONS_PREEMPTED);
    notify_released(call, state, released);
    Ok(victims)
}

/// REGISTER AND MOVE (section 5.14.8).
pub(super) fn move_registration(call: &Call<'_>) -> Result<Plan, Failure> {
    let len = call.u32(5) as usize;
    if !(LIST_LEN + 24..=PARAMETER_LEN_MAX).contains(&len) {
        return Err(Sense::PARAMETER_LIST_LENGTH.into());
    }
    Ok(Plan::Receive(len, finish_move))
}

fn finish_move(call: &Call<'_>, list: &[u8]) -> Result<(), Failure> {
    let (key, action_key) = (be64(list, 0), be64(list, 8));
    let (unregisters, keeps) = (list[17] & 0x02 != 0, list[17] & 0x01 != 0);
    let port = be16(list, 18);
    let this = &*call.nexus.initiator;
    let mut state = call.unit.state();
    if state.persistent.key(this) != Some(key) {
        return Err(Failure::Conflict);
    }
    let kind = reservation_type(call)?;
    let Some((held, _)) = state.persistent.reservation else { return Err(Failure::Conflict) };
    if held.has_all_as_holders() || !state.persistent.is_holder(this) {
        return Err(Failure::Conflict);
    }
    if keeps && state.keeper.is_none() || port != 1 {
        return Err(Sense::INVALID_PARAMETER.in_parameters(17).into());
    }
    if action_key == 0 {
        return Err(Sense::INVALID_PARAMETER.in_parameters(8).into());
    }
    let mut others = named_initiators(list.get(24..).unwrap_or_default())?;
    let Some(other) = others.pop().filter(|other| others.is_empty() && other != this) else {
        return Err(Sense::INVALID_PARAMETER.in_parameters(24).into());
    };
    let before = state.persistent.clone();
    let persistent = &mut state.persistent;
    persistent.register(&other, action_key)?;
    if unregisters {
        persistent.registrations.retain(|each| each.initiator != *this);
    }
    persistent.reservation = Some((kind, Some(other)));
    persistent.is_kept = keeps;
    persistent.generation = persistent.generation.wrapping_add(1);
    Ok(state.keep(before)?)
}
