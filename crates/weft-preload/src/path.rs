//! Recognises the paths that the hooks emulate.
//!
//! # Safety
//! Paths are the program's C strings, and are read at most up to their NUL.
#![allow(unsafe_code)]

use std::ffi::c_char;

use crate::limits::{DIGITS_MAX, NAME_MAX};

const NODE: &[u8] = b"/dev/infiniband/weft_";
const ATTRIBUTES: &[u8] = b"/sys/class/infiniband/weft_";
const TYPES: &[u8] = b"/ports/1/gid_attrs/types/";
const NET: &[u8] = b"/device/net";
const INTERFACES: &[u8] = b"/ports/1/gid_attrs/ndevs/";

/// The meaning of an emulated path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ours {
    /// The device node.
    Node,
    /// The type of a GID.
    GidType,
    /// The network interface of a GID: pointer into the path, and length.
    GidInterface(*const c_char, usize),
    /// The directory that contains the network interface's name: pointer into the path, and length.
    NetDirectory(*const c_char, usize),
}

/// Returns the meaning of `path`, if it is emulated.
///
/// # Safety
/// `path` is NULL or a C string.
pub(crate) unsafe fn ours(path: *const c_char) -> Option<Ours> {
    if path.is_null() {
        return None;
    }
    // SAFETY: not NULL, so the caller guarantees a C string; each tail of it is one, too.
    let node = unsafe { after(path, NODE) };
    if let Some(name) = node {
        // SAFETY: a tail of the C string.
        let end = unsafe { skip(name, NAME_MAX, is_name) };
        // SAFETY: a tail of the C string.
        return (end != name && unsafe { *end } == 0).then_some(Ours::Node);
    }
    // SAFETY: not NULL, so the caller guarantees a C string.
    let name = unsafe { after(path, ATTRIBUTES) }?;
    // SAFETY: a tail of the C string.
    let end = unsafe { skip(name, NAME_MAX, is_name) };
    let length = end.addr() - name.addr();
    // SAFETY: a tail of the C string.
    if let Some(rest) = unsafe { after(end, NET) } {
        // SAFETY: a tail of the C string.
        let end = unsafe { skip(rest, 1, |byte| byte == b'/') };
        // SAFETY: a tail of the C string.
        let whole = length != 0 && unsafe { *end } == 0;
        return whole.then_some(Ours::NetDirectory(name, length));
    }
    // SAFETY: a tail of the C string.
    let (kind, index) = match unsafe { after(end, TYPES) } {
        Some(index) => (Ours::GidType, index),
        // SAFETY: a tail of the C string.
        None => (Ours::GidInterface(name, length), unsafe { after(end, INTERFACES) }?),
    };
    // SAFETY: a tail of the C string.
    let end = unsafe { skip(index, DIGITS_MAX, |byte| byte.is_ascii_digit()) };
    // SAFETY: a tail of the C string.
    (length != 0 && end != index && unsafe { *end } == 0).then_some(kind)
}

fn is_name(byte: u8) -> bool {
    byte != 0 && byte != b'/'
}

/// Returns what follows `prefix`, if the text begins with it.
///
/// # Safety
/// `text` is a C string.
unsafe fn after(text: *const c_char, prefix: &[u8]) -> Option<*const c_char> {
    let mut at = text;
    for &wanted in prefix {
        // SAFETY: not past the NUL, because all earlier bytes were equal to bytes of `prefix`,
        // which has none.
        if unsafe { *at }.cast_unsigned() != wanted {
            return None;
        }
        at = at.wrapping_add(1);
    }
    Some(at)
}

/// Returns the end of the leading bytes for which `good` is true, at most `most` bytes. `good` is
/// false for NUL.
///
/// # Safety
/// `text` is a C string.
unsafe fn skip(text: *const c_char, most: usize, good: impl Fn(u8) -> bool) -> *const c_char {
    let mut at = text;
    // SAFETY: not past the NUL, because `good` is false for it.
    while at.addr() - text.addr() < most && good(unsafe { *at }.cast_unsigned()) {
        at = at.wrapping_add(1);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn check(path: &CStr) -> Option<Ours> {
        // SAFETY: the argument is a C string.
        unsafe { ours(path.as_ptr()) }
    }

    #[test]
    fn device_nodes_are_recognised() {
        assert_eq!(check(c"/dev/infiniband/weft_eth0"), Some(Ours::Node));
        for other in [
            c"",
            c"/dev/infiniband",
            c"/dev/infiniband/weft_",
            c"/dev/infiniband/weft_/",
            c"/dev/infiniband/weft_eth0/x",
            c"/dev/infiniband/weft_abcdefghijklmnop",
            c"/dev/infiniband/uverbs0",
            c"dev/infiniband/weft_eth0",
        ] {
            assert_eq!(check(other), None, "{other:?}");
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { ours(std::ptr::null()) }, None);
    }

    #[test]
    fn interface_directory_is_recognised() {
        for path in [
            c"/sys/class/infiniband/weft_lo/device/net",
            c"/sys/class/infiniband/weft_lo/device/net/",
        ] {
            assert!(matches!(check(path), Some(Ours::NetDirectory(_, 2))), "{path:?}");
        }
        for other in [
            c"/sys/class/infiniband/weft_/device/net",
            c"/sys/class/infiniband/weft_lo/device/net/lo",
            c"/sys/class/infiniband/weft_lo/device/network",
            c"/sys/class/infiniband/weft_lo/device",
        ] {
            assert_eq!(check(other), None, "{other:?}");
        }
    }

    #[test]
    fn gid_attributes_are_recognised() {
        let types = c"/sys/class/infiniband/weft_lo/ports/1/gid_attrs/types/0";
        assert_eq!(check(types), Some(Ours::GidType));
        let interfaces = c"/sys/class/infiniband/weft_lo/ports/1/gid_attrs/ndevs/12";
        let Some(Ours::GidInterface(_, 2)) = check(interfaces) else {
            panic!("{:?}", check(interfaces));
        };
        for other in [
            c"/sys/class/infiniband/weft_lo",
            c"/sys/class/infiniband/weft_lo/ports/1/gid_attrs/types/",
            c"/sys/class/infiniband/weft_lo/ports/1/gid_attrs/types/x",
            c"/sys/class/infiniband/weft_lo/ports/1/gid_attrs/types/1234",
            c"/sys/class/infiniband/weft_/ports/1/gid_attrs/types/0",
            c"/sys/class/infiniband/weft_lo/ports/2/gid_attrs/types/0",
            c"/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0",
        ] {
            assert_eq!(check(other), None, "{other:?}");
        }
    }
}
