//! The functions that programs call.
//!
//! # Safety
//! `weft_tuples.h` says what a program passes: a client is one of `weft_tuples_connect` that was
//! not closed, pointers are as `arguments` and `results` say, and a pointer to a result is NULL or
//! may be written to.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use weft_tuples::model::{Operation, Outcome, Selection};
use weft_tuples::native::Client;

use crate::arguments::{self, check_flags, count, criteria, source_end, target_end, wait};
use crate::results;
use crate::status::{self, Status};
use crate::types::{
    APPEND, BACK, Bytes, CCredentials, CElements, CList, CStamp, FRONT, JUST, NewTuple, Place,
};

/// A client, which threads may share.
#[derive(Debug)]
pub(crate) struct Handle(Mutex<Client>);

/// Does an operation of a client.
///
/// # Safety
/// `client` is NULL, or a client that is not closed during the call.
unsafe fn call(
    client: *const Handle,
    operation: Operation,
    wait: Option<Duration>,
) -> Result<Outcome, Status> {
    // SAFETY: the caller says so.
    let Handle(client) = unsafe { client.as_ref() }.ok_or(Status::Argument)?;
    let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
    match client.call(operation, wait)? {
        Outcome::Refused(refusal) => Err(Status::Refused(refusal)),
        Outcome::Nothing => Err(Status::Timeout),
        outcome => Ok(outcome),
    }
}

fn number(result: Result<(), Status>) -> c_int {
    result.map_or_else(Status::number, |()| 0)
}

/// Writes a result.
///
/// # Safety
/// `to` may be written to. It is not NULL.
unsafe fn store<T>(to: *mut T, value: T) {
    // SAFETY: the caller says so.
    unsafe { to.write(value) };
}

/// Does an operation that returns tuples.
///
/// # Safety
/// As for [`call`]; `list` is NULL or may be written to.
unsafe fn call_for_list(
    client: *const Handle,
    operation: Operation,
    wait: Option<Duration>,
    list: *mut *mut CList,
) -> Result<(), Status> {
    if list.is_null() {
        return Err(Status::Argument);
    }
    // SAFETY: the caller says so.
    let found = match unsafe { call(client, operation, wait) }? {
        Outcome::Taken(at, items) => vec![(at, items)],
        Outcome::Observed(found) => found,
        Outcome::Transferred(item) => vec![(0, vec![item])],
        Outcome::Read(items) => vec![(0, items)],
        _ => return Err(Status::Protocol),
    };
    // SAFETY: it is not NULL.
    unsafe { store(list, results::list(found)) };
    Ok(())
}

/// Connects to a server.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_connect(
    server: *const c_char,
    retry_ms: u32,
    client: *mut *mut Handle,
) -> c_int {
    // SAFETY: the header says so, and there are no credentials.
    unsafe { weft_tuples_connect_with(server, retry_ms, ptr::null(), client) }
}

/// Connects to a server, with credentials.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_connect_with(
    server: *const c_char,
    retry_ms: u32,
    credentials: *const CCredentials,
    client: *mut *mut Handle,
) -> c_int {
    let connected = || {
        if client.is_null() {
            return Err(Status::Argument);
        }
        // SAFETY: the header says so.
        let address = unsafe { arguments::address(server) }?;
        // SAFETY: the header says so.
        let credentials = unsafe { arguments::credentials(credentials) }?;
        let retry_time = Duration::from_millis(retry_ms.into());
        let connected = Client::connect_with(address, retry_time, credentials)?;
        // SAFETY: it is not NULL.
        unsafe { store(client, Box::into_raw(Box::new(Handle(Mutex::new(connected))))) };
        Ok(())
    };
    number(connected())
}

/// Closes the connection of a client and frees it.
///
/// # Safety
/// As the header says: no other call of this client is under way, and none follows.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_close(client: *mut Handle) {
    if !client.is_null() {
        // SAFETY: it is a box of `weft_tuples_connect`, and nobody uses it any more.
        drop(unsafe { Box::from_raw(client) });
    }
}

/// Makes an element.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_create(
    client: *const Handle,
    element: Bytes,
    order: c_int,
    sync: c_int,
    n: u32,
) -> c_int {
    let created = || {
        let criteria = criteria(order, sync, n)?;
        // SAFETY: the header says so.
        let element = unsafe { arguments::name(element) }?;
        // SAFETY: the header says so.
        match unsafe { call(client, Operation::Create { element, criteria }, None) }? {
            Outcome::Created(_) => Ok(()),
            _ => Err(Status::Protocol),
        }
    };
    number(created())
}

/// Puts tuples.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_put(
    client: *const Handle,
    element: Bytes,
    tuples: *const NewTuple,
    tuples_count: usize,
    flags: c_uint,
    timeout_ms: i64,
) -> c_int {
    let put = || {
        check_flags(flags, FRONT | APPEND)?;
        let operation = Operation::Put {
            // SAFETY: the header says so.
            element: unsafe { arguments::name(element) }?,
            criteria: weft_tuples::model::Criteria::default(),
            end: target_end(flags),
            // SAFETY: the header says so.
            tuples: unsafe { arguments::tuples(tuples, tuples_count) }?,
            is_append: flags & APPEND != 0,
        };
        // SAFETY: the header says so.
        match unsafe { call(client, operation, wait(timeout_ms)) }? {
            Outcome::Put(..) => Ok(()),
            _ => Err(Status::Protocol),
        }
    };
    number(put())
}

/// Takes tuples.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_take(
    client: *const Handle,
    elements: *const Bytes,
    elements_count: usize,
    most: u32,
    flags: c_uint,
    timeout_ms: i64,
    list: *mut *mut CList,
) -> c_int {
    let taken = || {
        check_flags(flags, BACK | JUST)?;
        // SAFETY: the header says so.
        let elements = unsafe { arguments::names(elements, elements_count) }?;
        let (end, count) = (source_end(flags), count(most, flags));
        let operation = Operation::Take { elements, end, count };
        // SAFETY: the header says so.
        unsafe { call_for_list(client, operation, wait(timeout_ms), list) }
    };
    number(taken())
}

/// Observes tuples.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_observe(
    client: *const Handle,
    places: *const Place,
    places_count: usize,
    most: u32,
    flags: c_uint,
    timeout_ms: i64,
    list: *mut *mut CList,
) -> c_int {
    let observed = || {
        check_flags(flags, JUST)?;
        // SAFETY: the header says so.
        let elements = unsafe { arguments::places(places, places_count) }?;
        let operation = Operation::Observe { elements, count: count(most, flags) };
        // SAFETY: the header says so.
        unsafe { call_for_list(client, operation, wait(timeout_ms), list) }
    };
    number(observed())
}

/// Moves a tuple to another element.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_transfer(
    client: *const Handle,
    from: Bytes,
    to: Bytes,
    flags: c_uint,
    timeout_ms: i64,
    list: *mut *mut CList,
) -> c_int {
    let moved = || {
        check_flags(flags, FRONT | BACK)?;
        // SAFETY: the header says so.
        let from = unsafe { arguments::name(from) }?;
        // SAFETY: the header says so.
        let to = unsafe { arguments::name(to) }?;
        let (from, to) = ((from, source_end(flags)), (to, target_end(flags)));
        let operation = Operation::Transfer { from, to };
        // SAFETY: the header says so.
        unsafe { call_for_list(client, operation, wait(timeout_ms), list) }
    };
    number(moved())
}

/// Reads tuples.
///
/// # Safety
/// As the header says.
unsafe fn read(
    client: *const Handle,
    element: Bytes,
    selection: Selection,
    most: u32,
    list: *mut *mut CList,
) -> Result<(), Status> {
    // SAFETY: the header says so.
    let element = unsafe { arguments::name(element) }?;
    let operation = Operation::Read { element, selection, count: most };
    // SAFETY: the header says so.
    unsafe { call_for_list(client, operation, None, list) }
}

/// Reads tuples by their places.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_read(
    client: *const Handle,
    element: Bytes,
    first: i64,
    last: i64,
    most: u32,
    list: *mut *mut CList,
) -> c_int {
    // SAFETY: the header says so.
    number(unsafe { read(client, element, Selection::Places(first, last), most, list) })
}

/// Reads tuples by their key.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_read_key(
    client: *const Handle,
    element: Bytes,
    key: Bytes,
    most: u32,
    list: *mut *mut CList,
) -> c_int {
    // SAFETY: the header says so.
    let key = unsafe { arguments::bytes(key) };
    // SAFETY: the header says so.
    let read = |key| unsafe { read(client, element, Selection::Key(key), most, list) };
    number(key.and_then(read))
}

/// Reads tuples by their time stamps.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_read_stamps(
    client: *const Handle,
    element: Bytes,
    first: CStamp,
    last: CStamp,
    most: u32,
    list: *mut *mut CList,
) -> c_int {
    let selection = Selection::Stamps(arguments::stamp(first), arguments::stamp(last));
    // SAFETY: the header says so.
    number(unsafe { read(client, element, selection, most, list) })
}

/// Lists elements.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_elements(
    client: *const Handle,
    elements: *mut *mut CElements,
) -> c_int {
    let listed = || {
        if elements.is_null() {
            return Err(Status::Argument);
        }
        // SAFETY: the header says so.
        let Outcome::Listed(found) = (unsafe { call(client, Operation::List, None) })? else {
            return Err(Status::Protocol);
        };
        // SAFETY: it is not NULL.
        unsafe { store(elements, results::elements(found)) };
        Ok(())
    };
    number(listed())
}

/// Deletes an element.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_delete(
    client: *const Handle,
    element: Bytes,
    existed: *mut c_int,
) -> c_int {
    let deleted = || {
        // SAFETY: the header says so.
        let element = unsafe { arguments::name(element) }?;
        // SAFETY: the header says so.
        match unsafe { call(client, Operation::Delete { element }, None) }? {
            Outcome::Deleted(was_there) => {
                if !existed.is_null() {
                    // SAFETY: it is not NULL.
                    unsafe { store(existed, was_there.into()) };
                }
                Ok(())
            }
            _ => Err(Status::Protocol),
        }
    };
    number(deleted())
}

/// Frees tuples.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_free_list(list: *mut CList) {
    // SAFETY: the header says so.
    unsafe { results::free_list(list) };
}

/// Frees elements.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn weft_tuples_free_elements(elements: *mut CElements) {
    // SAFETY: the header says so.
    unsafe { results::free_elements(elements) };
}

/// Describes a status.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn weft_tuples_text(status: c_int) -> *const c_char {
    status::text(status).as_ptr()
}
