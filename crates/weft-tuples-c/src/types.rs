//! The structures of `weft_tuples.h`, in its order.

use std::ffi::{c_char, c_int, c_void};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    pub(crate) data: *const c_void,
    pub(crate) len: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CCredentials {
    pub(crate) token_file: *const c_char,
    pub(crate) ca_file: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CStamp {
    pub(crate) ms: u64,
    pub(crate) count: u64,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct NewTuple {
    pub(crate) key: Bytes,
    pub(crate) stamp: CStamp,
    pub(crate) fields: *const Bytes,
    pub(crate) fields_count: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CRank {
    pub(crate) key: Bytes,
    pub(crate) stamp: CStamp,
    pub(crate) position: i64,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct CItem {
    pub(crate) element: usize,
    pub(crate) rank: CRank,
    pub(crate) fields: *const Bytes,
    pub(crate) fields_count: usize,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct CList {
    pub(crate) count: usize,
    pub(crate) items: *const CItem,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) element: Bytes,
    pub(crate) behind: *const CRank,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct CElement {
    pub(crate) name: Bytes,
    pub(crate) order: c_int,
    pub(crate) sync: c_int,
    pub(crate) n: u32,
    pub(crate) tuples: u64,
    pub(crate) waiting: u64,
    pub(crate) last_stamp: CStamp,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct CElements {
    pub(crate) count: usize,
    pub(crate) elements: *const CElement,
}

pub(crate) const FRONT: u32 = 1;
pub(crate) const BACK: u32 = 2;
pub(crate) const JUST: u32 = 4;
pub(crate) const APPEND: u32 = 8;
