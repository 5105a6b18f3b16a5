//! C structures with Rust state behind them, as the program holds them: by pointer.
//!
//! # Safety
//! A pointer that a program hands back came from [`create`] and has not been destroyed since; that
//! is the contract of every verbs call. The C structure is shared with the program, so that it is
//! reached through a raw pointer only; the state behind it is reached by shared reference.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::Deref;

/// State that stands behind a structure of the C ABI.
pub(crate) trait Behind: Sized + 'static {
    /// The structure that the program sees.
    type C;
}

/// A C structure and, after it, the state that the program does not see.
#[repr(C)]
pub(crate) struct Object<T: Behind> {
    c: UnsafeCell<T::C>,
    state: T,
}

impl<T: Behind> Object<T> {
    /// The C structure.
    pub(crate) fn c(&self) -> *mut T::C {
        self.c.get()
    }
}

impl<T: Behind> Deref for Object<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.state
    }
}

/// Makes an object and gives it to the program, which returns it to [`destroy`].
pub(crate) fn create<T: Behind>(c: T::C, state: T) -> *mut T::C {
    Box::into_raw(Box::new(Object { c: UnsafeCell::new(c), state })).cast()
}

/// The object that a program names by the address of its C structure.
///
/// # Safety
/// `c` must come from [`create`] with the same `T` and stay undestroyed for `'a`.
pub(crate) unsafe fn object<'a, T: Behind>(c: *mut T::C) -> &'a Object<T> {
    // SAFETY: `create` made an `Object<T>` whose first field is at `c`, and the caller says that it
    // is still there. Nobody has a mutable reference: all access is by this function.
    unsafe { &*c.cast::<Object<T>>() }
}

/// Takes the object back from the program and frees it.
///
/// # Safety
/// As for [`object`], and nobody may use the object afterwards.
pub(crate) unsafe fn destroy<T: Behind>(c: *mut T::C) {
    // SAFETY: the pointer came from `Box::into_raw` in `create`, and this is its last use.
    drop(unsafe { Box::from_raw(c.cast::<Object<T>>()) });
}
