//! Structures in memory that several processes share. Each has one definition, with the offset and
//! the initial value of each field.
//!
//! # Safety
//! A structure defined by [`shared_layout`](crate::shared_layout) consists of atomics without
//! padding. So any bytes are a valid value, and other processes may change them at any time.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A type that may be referred to in memory that other processes write.
///
/// # Safety
/// The type consists of atomics and has no padding.
pub unsafe trait SharedLayout {
    /// The value of its atomics.
    type Value: Copy;

    /// Sets all atomics to this value, in no particular order.
    fn start_with(&self, value: Self::Value);
}

// SAFETY: an atomic has no padding.
unsafe impl SharedLayout for AtomicU32 {
    type Value = u32;

    fn start_with(&self, value: u32) {
        self.store(value, Ordering::Relaxed);
    }
}

// SAFETY: an atomic has no padding.
unsafe impl SharedLayout for AtomicU64 {
    type Value = u64;

    fn start_with(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }
}

// SAFETY: an array has no padding besides that of its elements, which have none.
unsafe impl<T: SharedLayout, const N: usize> SharedLayout for [T; N] {
    type Value = T::Value;

    fn start_with(&self, value: T::Value) {
        self.iter().for_each(|element| element.start_with(value));
    }
}

/// Defines a structure in shared memory: its length, and each field with its offset. `reset` sets
/// the fields that have a value behind `=`, and leaves the others as they are.
///
/// Does not compile if an offset or the length is wrong, if there is padding, or if a field does
/// not consist of atomics.
///
/// ```
/// use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
///
/// weft_sys::shared_layout! {
///     /// A counter and its owner.
///     struct Counter[16] {
///         /// The current count.
///         0: count: AtomicU64 = 0,
///         8: owner: AtomicU32,
///         12: _gap: [AtomicU32; 1],
///     }
/// }
///
/// let (memory, _fd) = weft_sys::SharedMemory::create(4096)?;
/// let counter: &Counter = memory.structure(64);
/// counter.owner.store(7, Ordering::Relaxed);
/// counter.count.fetch_add(1, Ordering::Relaxed);
/// counter.reset();
/// assert_eq!(counter.count.load(Ordering::Relaxed), 0);
/// assert_eq!(memory.word32(72).load(Ordering::Relaxed), 7);
/// # Ok::<(), weft_sys::Errno>(())
/// ```
#[macro_export]
macro_rules! shared_layout {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident[$len:expr] {
            $(
                $(#[$field_meta:meta])*
                $at:literal: $field:ident: $type:ty $(= $start:expr)?,
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug)]
        #[repr(C)]
        $visibility struct $name {
            $($(#[$field_meta])* $visibility $field: $type,)*
        }

        const _: () = {
            const fn is_shared<T: $crate::SharedLayout>() {}
            $(
                is_shared::<$type>();
                assert!(::std::mem::offset_of!($name, $field) == $at);
            )*
            assert!(0 $(+ size_of::<$type>())* == $len, "there is padding");
            assert!(size_of::<$name>() == $len);
        };

        // SAFETY: the structure consists of its fields, each of which is `SharedLayout`, and the
        // assertions above exclude padding.
        #[allow(unsafe_code)]
        unsafe impl $crate::SharedLayout for $name {
            type Value = ();

            fn start_with(&self, (): ()) {
                $($($crate::SharedLayout::start_with(&self.$field, $start);)?)*
            }
        }

        impl $name {
            /// Sets the fields that have an initial value to it, in no particular order.
            #[allow(dead_code)] // Not every structure is reset.
            $visibility fn reset(&self) {
                $crate::SharedLayout::start_with(self, ());
            }
        }
    };
}
