//! What programs get: structures of C that point into what Rust owns.
//!
//! # Safety
//! A result is one allocation that begins with the structure of the header. Its pointers are to
//! vectors that the same allocation owns, and that are never changed, so that they are valid until
//! it is freed. The program frees a result once, and uses it no more then.
#![allow(unsafe_code)]

use std::ffi::c_int;

use weft_tuples::model::{Criteria, Description, Item, Order, Stamp, Sync};

use crate::types::{Bytes, CElement, CElements, CItem, CList, CRank, CStamp};

/// Tuples, with the number of each one's element.
#[repr(C)]
struct List {
    head: CList,
    _items: Vec<CItem>,
    _fields: Vec<Bytes>,
    _owned: Vec<Item>,
}

/// Elements.
#[repr(C)]
struct Elements {
    head: CElements,
    _elements: Vec<CElement>,
    _owned: Vec<Description>,
}

fn view(bytes: &[u8]) -> Bytes {
    Bytes { data: bytes.as_ptr().cast(), len: bytes.len() }
}

fn stamp(stamp: Stamp) -> CStamp {
    CStamp { ms: stamp.ms, count: stamp.count }
}

/// Returns a list that the program has to free.
pub(crate) fn list(found: Vec<(usize, Vec<Item>)>) -> *mut CList {
    let elements: Vec<usize> =
        found.iter().flat_map(|(at, items)| items.iter().map(|_| *at)).collect();
    let owned: Vec<Item> = found.into_iter().flat_map(|(_, items)| items).collect();
    let fields: Vec<Bytes> =
        owned.iter().flat_map(|item| item.fields.iter().map(|field| view(field))).collect();
    let mut left = fields.as_slice();
    let mut items = Vec::with_capacity(owned.len());
    for (item, element) in owned.iter().zip(elements) {
        let (own, rest) = left.split_at(item.fields.len());
        left = rest;
        let rank = CRank {
            key: view(&item.rank.key),
            stamp: stamp(item.rank.stamp),
            position: item.rank.position,
        };
        items.push(CItem { element, rank, fields: own.as_ptr(), fields_count: own.len() });
    }
    let head = CList { count: items.len(), items: items.as_ptr() };
    Box::into_raw(Box::new(List { head, _items: items, _fields: fields, _owned: owned })).cast()
}

/// Frees a list.
///
/// # Safety
/// It is NULL, or one of [`list`] that was not freed.
pub(crate) unsafe fn free_list(list: *mut CList) {
    if !list.is_null() {
        // SAFETY: it was made by `list`, from a box of this type.
        drop(unsafe { Box::from_raw(list.cast::<List>()) });
    }
}

/// Returns elements that the program has to free.
pub(crate) fn elements(owned: Vec<Description>) -> *mut CElements {
    let elements: Vec<CElement> = owned.iter().map(element).collect();
    let head = CElements { count: elements.len(), elements: elements.as_ptr() };
    Box::into_raw(Box::new(Elements { head, _elements: elements, _owned: owned })).cast()
}

fn element(it: &Description) -> CElement {
    let Criteria { order, sync } = it.criteria;
    let order: c_int = match order {
        Order::Arrival => 0,
        Order::Key => 1,
        Order::Time => 2,
    };
    let (sync, n) = match sync {
        Sync::Unbounded => (0, 0),
        Sync::Bound(n) => (1, n),
        Sync::Unread(n) => (2, n),
        Sync::Exactly(n) => (3, n),
    };
    CElement {
        name: view(&it.name),
        order,
        sync,
        n,
        tuples: it.len as u64,
        waiting: it.waiting as u64,
        last_stamp: stamp(it.last),
    }
}

/// Frees elements.
///
/// # Safety
/// It is NULL, or from [`elements`] and was not freed.
pub(crate) unsafe fn free_elements(elements: *mut CElements) {
    if !elements.is_null() {
        // SAFETY: it was made by `elements`, from a box of this type.
        drop(unsafe { Box::from_raw(elements.cast::<Elements>()) });
    }
}
