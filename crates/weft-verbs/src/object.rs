//! Objects of the C ABI: C structures, followed by Rust state, which a program holds by pointer.
//!
//! # Safety
//! A pointer that a program passes came from [`create`] and has not been destroyed since: every
//! verbs call requires this. The program accesses the C structure, so that this library accesses it
//! through a raw pointer only. It accesses the state through shared references.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::Deref;

/// The state of an object of the C ABI.
pub(crate) trait AbiState: Sized + 'static {
    /// The C structure that programs access.
    type C;
}

/// A C structure, and after it the state, which programs do not know.
#[repr(C)]
pub(crate) struct Object<T: AbiState> {
    c: UnsafeCell<T::C>,
    state: T,
}

impl<T: AbiState> Object<T> {
    /// The C structure.
    pub(crate) fn c(&self) -> *mut T::C {
        self.c.get()
    }
}

impl<T: AbiState> Deref for Object<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.state
    }
}

/// Creates an object for the program; [`destroy`] frees it.
pub(crate) fn create<T: AbiState>(c: T::C, state: T) -> *mut T::C {
    Box::into_raw(Box::new(Object { c: UnsafeCell::new(c), state })).cast()
}

/// The object at the address of its C structure.
///
/// # Safety
/// `c` must come from [`create`] with the same `T` and not be destroyed during `'a`.
pub(crate) unsafe fn object<'a, T: AbiState>(c: *mut T::C) -> &'a Object<T> {
    // SAFETY: the caller guarantees that `c` came from `create`, so that it points to the first
    // field of an `Object<T>`, and that the object is live. All access is through shared references
    // from this function.
    unsafe { &*c.cast::<Object<T>>() }
}

/// Takes the object back from the program and frees it.
///
/// # Safety
/// `c` must come from [`create`] with the same `T`, be live, and not be used afterwards.
pub(crate) unsafe fn destroy<T: AbiState>(c: *mut T::C) {
    // SAFETY: the caller guarantees that the pointer came from `Box::into_raw` in `create`, and
    // that this is its last use.
    drop(unsafe { Box::from_raw(c.cast::<Object<T>>()) });
}
