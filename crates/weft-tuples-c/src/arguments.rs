//! What programs pass: copies in Rust.
//!
//! # Safety
//! `weft_tuples.h` says what pointers point to: a pointer with a count points to as many objects,
//! and another one is NULL or points to one. The program leaves them as they are during the call.
//! Everything is copied before the call goes on.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use std::slice;
use std::time::Duration;

use weft_tuples::access::{Token, Trust};
use weft_tuples::limits::{FIELDS_MAX, NAMES_MAX, PUT_TUPLES_MAX};
use weft_tuples::model::{
    Count, Criteria, ElementEnd, Name, Order, Rank, Refusal, Stamp, Sync, Tuple,
};
use weft_tuples::native::{Address, Credentials};

use crate::status::Status;
use crate::types::{BACK, Bytes, CCredentials, CRank, CStamp, FRONT, JUST, NewTuple, Place};

/// Returns so many objects.
///
/// # Safety
/// `data` is NULL or points to `count` objects, which stay as they are for the call.
unsafe fn objects<'a, T>(data: *const T, count: usize, most: usize) -> Result<&'a [T], Status> {
    match count {
        0 => Ok(&[]),
        _ if data.is_null() => Err(Status::Argument),
        _ if count > most => Err(Status::Refused(Refusal::Limit)),
        // SAFETY: it is not NULL, and points to so many objects.
        _ => Ok(unsafe { slice::from_raw_parts(data, count) }),
    }
}

/// Copies bytes.
///
/// # Safety
/// As the header says.
pub(crate) unsafe fn bytes(bytes: Bytes) -> Result<Vec<u8>, Status> {
    // The server has limits of its own for each use.
    let most = isize::MAX as usize;
    // SAFETY: the header says so.
    unsafe { objects(bytes.data.cast::<u8>(), bytes.len, most) }.map(<[u8]>::to_vec)
}

/// Copies the name of an element.
///
/// # Safety
/// As the header says.
pub(crate) unsafe fn name(name: Bytes) -> Result<Name, Status> {
    // SAFETY: the header says so.
    unsafe { bytes(name) }.map(Rc::from)
}

/// Copies names.
///
/// # Safety
/// As the header says.
pub(crate) unsafe fn names(data: *const Bytes, count: usize) -> Result<Vec<Name>, Status> {
    // SAFETY: the header says so.
    let all = unsafe { objects(data, count, NAMES_MAX) }?;
    // SAFETY: the header says so of each.
    all.iter().map(|it| unsafe { name(*it) }).collect()
}

/// Copies a text that ends with 0, and parses it as the address of a server.
///
/// # Safety
/// As the header says.
pub(crate) unsafe fn address(text: *const c_char) -> Result<Address, Status> {
    if text.is_null() {
        return Err(Status::Argument);
    }
    // SAFETY: it is not NULL, and the text ends with 0.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    if let Some(address) = text.strip_prefix(b"tls://") {
        let address = std::str::from_utf8(address).map_err(|_| Status::Argument)?;
        return Ok(Address::Tls(address.to_owned()));
    }
    if text.contains(&b'/') {
        return Ok(Address::Unix(OsStr::from_bytes(text).into()));
    }
    let text = std::str::from_utf8(text).map_err(|_| Status::Argument)?;
    Ok(Address::Tcp(text.to_owned()))
}

/// Reads the files that credentials name.
///
/// # Safety
/// As the header says.
pub(crate) unsafe fn credentials(from: *const CCredentials) -> Result<Credentials, Status> {
    // SAFETY: the header says so.
    let Some(from) = (unsafe { from.as_ref() }) else { return Ok(Credentials::default()) };
    // SAFETY: the header says so.
    let token = unsafe { path(from.token_file) }.map(Token::read).transpose()?;
    // SAFETY: the header says so.
    let trust = unsafe { path(from.ca_file) }.map(Trust::read).transpose()?;
    Ok(Credentials { token, trust })
}

/// A path that ends with 0, or none.
///
/// # Safety
/// `text` is NULL, or a text that ends with 0 and stays as it is.
unsafe fn path<'a>(text: *const c_char) -> Option<&'a Path> {
    if text.is_null() {
        return None;
    }
    // SAFETY: it is not NULL, and the text ends with 0.
    let text = unsafe { CStr::from_ptr(text) };
    Some(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// Copies tuples.
///
/// # Safety
/// As the header says.
pub(crate) unsafe fn tuples(data: *const NewTuple, count: usize) -> Result<Vec<Tuple>, Status> {
    // SAFETY: the header says so.
    let all = unsafe { objects(data, count, PUT_TUPLES_MAX) }?;
    // SAFETY: the header says so of each.
    all.iter().map(|it| unsafe { tuple(it) }).collect()
}

/// Copies a tuple.
///
/// # Safety
/// As the header says.
unsafe fn tuple(tuple: &NewTuple) -> Result<Tuple, Status> {
    // SAFETY: the header says so.
    let key = unsafe { bytes(tuple.key) }?;
    // SAFETY: the header says so.
    let fields = unsafe { objects(tuple.fields, tuple.fields_count, FIELDS_MAX) }?;
    // SAFETY: the header says so of each.
    let fields = fields.iter().map(|field| unsafe { bytes(*field) }).collect::<Result<_, _>>()?;
    let stamp = stamp(tuple.stamp);
    Ok(Tuple { key, stamp: (stamp != Stamp::default()).then_some(stamp), fields })
}

/// Copies places.
///
/// # Safety
/// As the header says.
pub(crate) unsafe fn places(
    data: *const Place,
    count: usize,
) -> Result<Vec<(Name, Option<Rank>)>, Status> {
    // SAFETY: the header says so.
    let all = unsafe { objects(data, count, NAMES_MAX) }?;
    let place = |place: &Place| {
        // SAFETY: the header says so.
        let name = unsafe { name(place.element) }?;
        // SAFETY: it is NULL or points to a rank.
        let behind = unsafe { place.behind.as_ref() };
        // SAFETY: the header says so.
        Ok((name, behind.map(|it| unsafe { rank(it) }).transpose()?))
    };
    all.iter().map(place).collect()
}

/// Copies a rank.
///
/// # Safety
/// As the header says.
unsafe fn rank(rank: &CRank) -> Result<Rank, Status> {
    // SAFETY: the header says so.
    let key = unsafe { bytes(rank.key) }?;
    Ok(Rank { key, stamp: stamp(rank.stamp), position: rank.position })
}

pub(crate) fn stamp(stamp: CStamp) -> Stamp {
    Stamp { ms: stamp.ms, count: stamp.count }
}

pub(crate) fn criteria(order: c_int, sync: c_int, n: u32) -> Result<Criteria, Status> {
    let order = match order {
        0 => Order::Arrival,
        1 => Order::Key,
        2 => Order::Time,
        _ => return Err(Status::Argument),
    };
    let sync = match sync {
        0 => Sync::Unbounded,
        1 => Sync::Bound(n),
        2 => Sync::Unread(n),
        3 => Sync::Exactly(n),
        _ => return Err(Status::Argument),
    };
    Ok(Criteria { order, sync })
}

/// Fails if there are other flags than these.
pub(crate) fn check_flags(flags: u32, known: u32) -> Result<(), Status> {
    if flags & !known == 0 { Ok(()) } else { Err(Status::Argument) }
}

pub(crate) fn count(most: u32, flags: u32) -> Count {
    if flags & JUST != 0 { Count::Exactly(most) } else { Count::AtMost(most) }
}

/// The end from which to take.
pub(crate) fn source_end(flags: u32) -> ElementEnd {
    if flags & BACK != 0 { ElementEnd::Back } else { ElementEnd::Front }
}

/// The end to which to put.
pub(crate) fn target_end(flags: u32) -> ElementEnd {
    if flags & FRONT != 0 { ElementEnd::Front } else { ElementEnd::Back }
}

pub(crate) fn wait(timeout_ms: i64) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}
